"""The streaming jobs on real topics: each letter once, whatever happens in between."""

import json

import pytest
from click.testing import CliRunner

from lapse.core.reason import Reason
from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark
from lapse_spark import Connection, archive, monitor
from lapse_spark.cli import spark as commands
from lapse_spark.output import Output
from support.wire import Wire

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000


@pytest.fixture
def dead(kafka, unique, create_topic):
    """A queue with a dead-letter topic of two partitions; `dead(first, last, reason)` writes letters to it."""
    name, wire = unique("q"), Wire(kafka)
    create_topic(topic.dead_letters(name), partitions=2)

    def write(first, last, *reasons):
        for offset in range(first, last):
            wire.letter(name, Bookmark("orders", 0, offset), *reasons, expired_at_ms=offset * HOUR_MS // 10)
        wire.flush()

    write.wire, write.name, write.pattern = wire, name, topic.dead_letters(name).replace(".", "[.]")
    return write


def counted(spark, path):
    totals = monitor.totals(spark, path)
    return {} if totals is None else {(row.reasons, row.window_start.hour): row.letters for row in totals.collect()}


@pytest.mark.feature("D2", "D3", "X7")
def test_counts_survive_a_restart_and_a_crash_without_counting_twice(spark, kafka, dead, tmp_path, monkeypatch):
    path, connection = str(tmp_path / "out"), Connection(kafka)

    def run(**options):
        return monitor.run(spark, connection, path, pattern=dead.pattern, **options)

    dead(0, 20, Reason.TIME_LIMIT)
    dead(0, 5, Reason.TIME_LIMIT)  # what a crashed worker writes again
    dead.wire.records(topic.dead_letters(dead.name), [b"foreign"])
    assert run(max_records_per_batch=10).lag == 0
    first = {("time_limit", 0): 10, ("time_limit", 1): 10}
    assert counted(spark, path) == first
    run()
    assert counted(spark, path) == first

    # The job ends between its tables, and is started again: the batch overwrites what it had written.
    dead(18, 22, Reason.TIME_LIMIT)
    write, tables = Output.write, []

    def failing(output, table, *rest):
        write(output, table, *rest)
        tables.append(table)
        if table == "counts":
            raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(Output, "write", failing)
        with pytest.raises(Exception, match="killed"):
            run()
    assert tables == ["letters", "counts"]
    dead(22, 24, Reason.MAX_CANCELS, Reason.MAX_DELIVERIES)
    run()
    assert counted(spark, path) == first | {("time_limit", 2): 2, ("max_cancels,max_deliveries", 2): 2}
    assert Output(spark, path).read("quarantine").count() == 1
    assert json.loads((tmp_path / "out" / "lag.json").read_text())["lag"] == 0

    page = CliRunner().invoke(commands, ["report", path, "--output", str(tmp_path / "report.html")])
    assert page.exit_code == 0, page.output
    assert "max_cancels" in (tmp_path / "report.html").read_text()


@pytest.mark.feature("X7")
def test_an_output_without_its_checkpoint_is_refused(spark, kafka, dead, tmp_path):
    path = str(tmp_path / "out")
    Output(spark, path).write("counts", spark.range(1), monitor.F.current_timestamp(), 0)
    answer = CliRunner().invoke(commands, ["monitor", path, "--pattern", dead.pattern, "--bootstrap", kafka])
    assert answer.exit_code == 1
    assert "has batches and no checkpoint" in answer.output


@pytest.mark.feature("X7")
def test_a_strict_monitor_ends_and_names_the_record(spark, kafka, dead, tmp_path):
    dead.wire.records(topic.dead_letters(dead.name), [b"foreign"])
    options = ["monitor", str(tmp_path / "out"), "--pattern", dead.pattern, "--bootstrap", kafka, "--strict"]
    answer = CliRunner().invoke(commands, options)
    assert answer.exit_code == 1
    assert f"{topic.dead_letters(dead.name)}:0:0: no dead letter" in answer.output


@pytest.mark.feature("D1", "D2", "D5", "C29")
def test_letters_are_archived_and_redriven_once(spark, kafka, dead, create_topic, unique, tmp_path):
    kept, audit = str(tmp_path / "archive"), str(tmp_path / "audit")
    origin = create_topic(unique("orders"))
    for offset in (0, 1, 0):
        dead.wire.letter(dead.name, Bookmark(origin, 0, offset), Reason.MAX_DELIVERIES, value=b"payload %d" % offset)
    dead.wire.flush()
    archive.run(spark, Connection(kafka), kept, pattern=dead.pattern)
    letters = archive.letters(spark, kept)
    assert sorted((row.offset, bytes(row.value)) for row in letters.collect()) == [(0, b"payload 0"), (1, b"payload 1")]

    def redrive(*options):
        answer = CliRunner().invoke(
            commands, ["redrive", audit, "--archive", kept, "--bootstrap", kafka, "--json", *options]
        )
        assert answer.exit_code == 0, answer.output
        told = json.loads(answer.stdout)
        return told["sent"], told["earlier"], told["dry_run"]

    def arrived():
        return (
            spark.read.format("kafka")
            .options(**Connection(kafka).reading())
            .option("subscribe", origin)
            .load()
            .selectExpr("CAST(value AS STRING)", "transform(headers, h -> h.key) AS names")
            .collect()
        )

    assert redrive() == (2, 0, True)
    assert arrived() == []
    assert redrive("--send", "--limit", "1") == (1, 0, False)
    assert redrive("--send", "--rate", "100") == (1, 1, False)
    assert redrive("--send") == (0, 2, False)
    found = arrived()
    assert sorted(row[0] for row in found) == ["payload 0", "payload 1"]
    assert all(set(row.names) == {"lapse-redriven-count", "lapse-message-id", "lapse-redrive-queue"} for row in found)

    day = Output(spark, kept).days("letters")[0]
    assert archive.purge(spark, kept, day) == []
    assert archive.purge(spark, kept, day.replace(year=day.year + 1)) == [day]
    assert archive.letters(spark, kept) is None
