"""Which options a JVM gets for an archive of classes."""

from pathlib import Path

import pytest

from lapse.embedded import class_archive
from lapse.embedded.kafka import EmbeddedKafka
from support.kafka.prepared import PreparedKafka
from support.suite import class_archives


def test_only_an_archive_that_is_there_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kafka.jsa"
    monkeypatch.setenv(class_archive.VARIABLE, str(path))
    assert class_archive.options() == []
    path.touch()
    used = f"-XX:SharedArchiveFile={path}"
    assert used in class_archive.options()
    assert used in EmbeddedKafka()._jvm_options()
    assert used in EmbeddedKafka(quick_start=False)._jvm_options(), "classes depend on neither compiler nor collector"
    assert used not in EmbeddedKafka(java_options=["-XX:+UseZGC"])._jvm_options(), "who gives options gives all"
    monkeypatch.delenv(class_archive.VARIABLE)
    assert class_archive.options() == []


def test_a_checkpoint_beside_the_archive_prepares_data_without_a_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not where properties are given: Kafka's own tool refuses wrong ones."""
    archive = tmp_path / "kafka.jsa"
    monkeypatch.setenv(class_archive.VARIABLE, str(archive))
    assert class_archive.checkpoint() is None
    class_archive.beside(archive).write_bytes(b"features")
    formatted: list[Path] = []
    ids = set()
    for number in range(3):
        own = EmbeddedKafka(tmp_path / str(number), properties={"num.partitions": "2"} if number == 2 else None)
        monkeypatch.setattr(own, "_format", lambda command, server: formatted.append(server))
        own._prepare(["java"], tmp_path / str(number) / "server.properties")
        if number < 2:
            assert (own.data / "log" / "bootstrap.checkpoint").read_bytes() == b"features"
            ids.add(own._cluster_id())
    assert len(ids) == 2
    assert formatted == [tmp_path / "2" / "server.properties"]
    monkeypatch.delenv(class_archive.VARIABLE)
    assert class_archive.checkpoint() is None


def test_a_broker_with_properties_of_the_tests_is_prepared_without_a_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, formatted = tmp_path / "kafka.jsa", list[Path]()
    monkeypatch.setenv(class_archive.VARIABLE, str(archive))
    own = PreparedKafka(tmp_path / "data", properties={"num.partitions": "2"})
    monkeypatch.setattr(own, "_format", lambda command, server: formatted.append(server))
    own._prepare(["java"], tmp_path / "server.properties")
    assert formatted == [tmp_path / "server.properties"], "there is no checkpoint"
    class_archive.beside(archive).write_bytes(b"features")
    own._prepare(["java"], tmp_path / "server.properties")
    assert len(formatted) == 1
    assert (own.data / "log" / "bootstrap.checkpoint").read_bytes() == b"features"


def test_tests_name_the_archives_that_are_there_and_keep_what_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, spark = tmp_path / "kafka.jsa", tmp_path / "spark.jsa"
    monkeypatch.setattr(class_archives, "_KAFKA", broker)
    monkeypatch.setattr(class_archives, "_SPARK", spark)
    environment: dict[str, str] = {"SPARK_SUBMIT_OPTS": "-Dmine=1"}
    class_archives.use(environment)
    assert environment == {"SPARK_SUBMIT_OPTS": "-Dmine=1"}, "nothing is there"
    broker.touch()
    spark.touch()
    for _ in range(2):  # as the processes of a parallel run do, each of which inherits
        class_archives.use(environment)
    assert environment[class_archive.VARIABLE] == str(broker)
    assert environment["SPARK_SUBMIT_OPTS"].split() == [
        "-Dmine=1",
        *class_archives.QUICK_SPARK,
        *class_archive.options(spark),
    ]
