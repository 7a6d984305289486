"""Which options a JVM gets for an archive of classes."""

from pathlib import Path

import pytest

from lapse.embedded import class_archive
from lapse.embedded.kafka import EmbeddedKafka


def test_only_an_archive_that_is_there_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kafka.jsa"
    monkeypatch.setenv(class_archive.VARIABLE, str(path))
    assert class_archive.options() == []
    path.touch()
    used = f"-XX:SharedArchiveFile={path}"
    assert used in class_archive.options()
    assert used in EmbeddedKafka()._jvm_options()
    assert used not in EmbeddedKafka(quick_start=False)._jvm_options(), "it would be of other compilers"
    monkeypatch.delenv(class_archive.VARIABLE)
    assert class_archive.options() == []
