"""What tests keep for seconds is in memory, where there is enough of it, and is not left there."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.suite import scratch


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())
    if not scratch.suits(scratch.MEMORY):  # as in a container with 64 MiB of it, or on macOS: runs are on disk there
        pytest.skip("this machine has no room in memory")
    return scratch.MEMORY


def test_a_run_has_a_directory_in_memory_and_deletes_what_one_that_is_gone_has_left(memory: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    left = memory / f"{scratch.PREFIX}{gone.pid}"
    left.mkdir()
    (left / "file").touch()
    other = Path(tempfile.mkdtemp(prefix=f"{scratch.PREFIX}kafka-", dir=memory))
    environment: dict[str, str] = {}
    own = scratch.use(environment)
    assert own == memory / f"{scratch.PREFIX}{os.getpid()}"
    assert environment == {"TMPDIR": str(own)}
    assert Path(tempfile.mkdtemp()).parent == own
    assert not left.exists()
    assert other.is_dir()
    other.rmdir()
    if os.environ.get("TMPDIR") != str(own):  # the directory of the whole run is another process's
        shutil.rmtree(own)


def test_a_place_that_somebody_names_is_taken() -> None:
    environment = {"TMPDIR": "/somewhere"}
    assert scratch.use(environment) is None
    assert environment == {"TMPDIR": "/somewhere"}


def test_a_place_that_is_not_in_memory_is_not_taken(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    assert scratch.use(environment, tmp_path) is None
    assert environment == {}
