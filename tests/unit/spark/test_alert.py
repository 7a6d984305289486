"""The texts of findings in the monitor's tables (D3)."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession, functions

from lapse_spark import local_rows, schema
from lapse_spark.cli import spark as commands
from lapse_spark.monitoring import alert, monitor
from lapse_spark.records import dead_letter
from lapse_spark.stream.output import Output

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SHARE_GROUP = [("__dlq.errors.topic", b"orders"), ("__dlq.errors.partition", b"0"), ("__dlq.errors.group", b"group")]


@pytest.mark.spark
@pytest.mark.feature("D2", "X7")
def test_an_alert_about_letters_that_state_no_fault_ends_with_their_number(spark: SparkSession, tmp_path: Path) -> None:
    """A share group's letters need no message (KIP-1191)."""
    raw = [
        ("dlq.orders", 0, at, NOON, b"k", b"{}", [*SHARE_GROUP, ("__dlq.errors.offset", b"%d" % at), *fault])
        for at, fault in enumerate([[], [], [], [("__dlq.errors.message", b"it is odd")]])
    ]
    letters = dead_letter.parse(local_rows.frame(spark, raw, schema.RAW)).drop("value", "headers", "fault")
    texts = []
    for name, kept in (("silent", letters.where("message IS NULL")), ("telling", letters)):
        output = Output(spark, str(tmp_path / name))
        output.write("counts", monitor.counts(kept), functions.col("window_start"), 0)
        output.write("letters", kept, functions.col("letter_at"), 0)
        found = alert.find(spark, output.path, since=NOON, at_least=100)
        texts += [(one.rule, one.text) for one in found]
    assert texts[0] == ("poison", "key 'k' has 3 dead letters")
    assert texts[1][1].startswith("key 'k' has 4 dead letters")
    assert "None" not in texts[1][1]


@pytest.mark.spark
@pytest.mark.feature("D2")
def test_messages_without_a_key_have_an_alert_each_and_none_is_that_of_a_key(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first one was the last one: the others had its id, which was known."""
    facts = [("__dlq.errors.topic", b"orders"), ("__dlq.errors.partition", b"0"), ("__dlq.errors.group", b"q")]
    facts += [("lapse-reasons", b"max_cancels"), ("lapse-redriven-count", b"1")]
    raw = []
    for at, key in enumerate([None, None, b"None"]):
        own = [("lapse-id", b"q/orders:0:%d/1" % at), ("__dlq.errors.offset", b"%d" % at)]
        raw.append(("dlq.q", 0, at, NOON, key, b"{}", [*facts, *own]))
    letters = dead_letter.parse(local_rows.frame(spark, raw, schema.RAW))
    assert letters.where("fault IS NOT NULL").count() == 0
    kept = letters.drop("value", "headers", "fault")
    output = Output(spark, str(tmp_path))
    output.write("counts", monitor.counts(kept), functions.col("window_start"), 0)
    output.write("letters", kept, functions.col("letter_at"), 0)
    found = alert.find(spark, output.path, since=datetime(1970, 1, 1, tzinfo=UTC), at_least=100)
    assert sorted((one.id, one.text.partition(" dead letter")[0]) for one in found) == [
        ("poison-letter/q/q/orders:0:0/1", "a message without a key has 1"),
        ("poison-letter/q/q/orders:0:1/1", "a message without a key has 1"),
        ("poison/q/None", "key 'None' has 1"),
    ]


@pytest.mark.spark
@pytest.mark.feature("X7")
def test_a_report_whose_writing_fails_says_so_in_a_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_checkpoint").mkdir()
    (tmp_path / "_checkpoint" / "metadata").touch()
    monkeypatch.setattr("os.access", lambda *_: True)  # root may write everywhere, but not here
    done = CliRunner().invoke(commands, ["report", str(tmp_path), "--output", "/proc/none/letters.html"])
    assert (done.exit_code, done.stderr.startswith("Error: [Errno 2] No such file")) == (1, True), done.output
