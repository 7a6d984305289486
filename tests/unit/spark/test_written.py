"""A directory that no job has written is told before Spark starts."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from lapse_spark import option
from lapse_spark.cli import spark
from lapse_spark.instant import inquiry
from lapse_spark.monitoring import upkeep


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("Spark starts")

    for place in (option, inquiry, upkeep):
        monkeypatch.setattr(place, "session", started)
    monkeypatch.setattr(option.Cluster, "await_broker", lambda _: None)
    for name in option._SET_UP:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("words", "job"),
    [
        (["report", "{}"], "monitor"),
        (["alerts", "{}"], "monitor"),
        (["compact", "{}"], "archive"),
        (["redrive", "audit", "--archive", "{}"], "archive"),
    ],
)
def test_a_directory_that_is_not_there_is_told_before_spark_starts(words: list[str], job: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "monitr")
    done = CliRunner().invoke(spark, [one.format(missing) for one in words])
    assert done.exit_code == 1
    assert f"Error: {missing}: no output of the {job}; run it first: lapse spark {job} {missing}" in done.stderr


@pytest.mark.parametrize(
    ("path", "config", "environment"),
    [
        ("s3a://letters/monitor", {}, {}),
        ("monitor", {"spark.hadoop.fs.defaultFS": "hdfs://here"}, {}),
        ("monitor", {}, {"HADOOP_CONF_DIR": "/etc/hadoop"}),
    ],
)
def test_what_only_spark_can_see_is_left_to_it(
    path: str, config: dict[str, str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    option.check_written(path, config)
