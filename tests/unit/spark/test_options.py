"""Values that cannot be meant are refused on the command line, before Spark's start takes seconds (X7)."""

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lapse.cli.instant import INSTANT as OTHERS
from lapse_spark.cli import spark
from lapse_spark.option_type import INSTANT, INTERVAL, MASTER, WINDOW

pytestmark = pytest.mark.feature("X7")


@pytest.mark.parametrize(
    "line",
    [
        "monitor out --every nonsense",
        "monitor out --every '30 years'",
        "archive out --every soon",
        "monitor out --window 0s",
        "monitor out --window '1 fortnight'",
        "monitor out --horizon-hours nan",
        "alerts out --sigmas nan",
        "alerts out --sigmas -1",
        "alerts out --at-least 0",
        "alerts out --poison -3",
        "alerts out --within-hours inf",
        "redrive audit --max-redrives -1",
        "ledger --queue work --topics orders --expected-depth -1",
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_as_wrong_usage(line: str) -> None:
    words = shlex.split(line)
    done = CliRunner().invoke(spark, words)
    assert done.exit_code == 2, done.output
    assert f"Invalid value for '{words[-2]}'" in done.output


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("30s", 30_000),
        ("30 seconds", 30_000),
        ("1 hour 30 minutes", 5_400_000),
        ("INTERVAL 1  day", 86_400_000),
        ("1.5 seconds", 1_500),
        ("1 hour", 3_600_000),
        ("2 weeks", 1_209_600_000),
        ("250", 250),
    ],
)
def test_an_interval_is_a_duration_or_what_spark_takes(text: str, ms: int) -> None:
    assert WINDOW.convert(text, None, None) == f"{ms} milliseconds"


def test_batches_may_follow_at_once_but_a_window_has_a_length() -> None:
    assert INTERVAL.convert("0 seconds", None, None) == "0 milliseconds"
    for text in ("0 seconds", "100 years", "40000d"):
        with pytest.raises(click.BadParameter):
            WINDOW.convert(text, None, None)


@pytest.mark.parametrize("pattern", ["dlq.(", "[a", "*", "a)"])
def test_what_is_no_regular_expression_anywhere_is_refused(pattern: str, tmp_path: Path) -> None:
    words = ["monitor", str(tmp_path / "out"), "--pattern", pattern, "-b", "localhost:1"]
    done = CliRunner().invoke(spark, words)
    assert done.exit_code == 1
    assert f"--pattern {pattern!r}: " in done.output


def test_old_days_are_deleted_without_a_broker(tmp_path: Path) -> None:
    words = ["archive", str(tmp_path), "--purge-before", "2026-01-01", "-b", "localhost:1"]
    done = CliRunner().invoke(spark, words)
    assert f"{tmp_path}: no output of the archive" in done.output, "a broker is not even asked for"


@pytest.mark.parametrize("master", ["nonsense", "local[]", "local[x]", "local[2", "spark:/one:7077", ""])
def test_what_is_no_master_is_refused(master: str) -> None:
    done = CliRunner().invoke(spark, ["ledger", "--queue", "work", "--topics", "orders", "--master", master])
    assert done.exit_code == 2, done.output
    assert "Invalid value for '--master'" in done.output


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[*, 3]", "local-cluster[2,1,1024]", "yarn", "spark://a:7,b:7", "k8s://https://a:6"],
)
def test_masters_of_spark_are_taken(master: str) -> None:
    assert MASTER.convert(master, None, None) == master


@given(st.sampled_from(["2026-01-31T12:00:00Z", "2026-01-31 12:00:00.250", "250", " 250 "]) | st.text())
def test_instants_are_the_same_as_those_of_the_other_commands(text: str) -> None:
    """Spark's commands take no time before now, which depends on when Spark has started."""
    try:
        other = OTHERS.convert(text, None, None)
    except click.BadParameter:
        other = None
    if isinstance(other, int):
        assert INSTANT.convert(text, None, None) == other
    else:
        with pytest.raises(click.BadParameter):
            INSTANT.convert(text, None, None)
