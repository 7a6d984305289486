"""The ledger, the readers and the lives of messages, from real topics."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from lapse.core.generation import position_of
from lapse.core.reason import Reason
from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.event import EventKind
from lapse_client import Connection as Client
from lapse_spark import Connection, ledger, option, read
from lapse_spark.cli import spark as commands
from lapse_spark.read import Span
from support.kafka.wire import Wire
from support.programs import notebook

pytestmark = pytest.mark.spark

NOTEBOOK = Path(__file__).parents[3] / "examples" / "dead_letters.ipynb"


@pytest.fixture
def queue(kafka, unique, create_topic):
    """A queue's topics with 1,000 messages: 900 acknowledged, 50 dead, 10 dropped, 40 queued; some told twice."""
    name, wire = unique("q"), Wire(kafka)
    underlying = create_topic(f"under-{name}", partitions=2)
    for own in (topic.events(name), topic.dead_letters(name)):
        create_topic(own)
    for partition in (0, 1):
        wire.records(underlying, [b"x"] * 500, partition=partition)
        for first in (0, 100, 200, 300, 300):
            wire.event(name, EventKind.ACKNOWLEDGED, BookmarkRange(underlying, partition, first, first + 99))
        wire.event(name, EventKind.ACKNOWLEDGED, BookmarkRange(underlying, partition, 400, 449))
        dead = BookmarkRange(underlying, partition, 450, 474)
        where = topic.dead_letters(name)
        wire.event(name, EventKind.DEAD_LETTERED, dead, reasons=("time_limit",), dead_letter_topic=where)
        for bookmark in [*dead, *dead]:
            wire.letter(name, bookmark, Reason.TIME_LIMIT)
        dropped = BookmarkRange(underlying, partition, 475, 479)
        wire.event(name, EventKind.EXPIRED, dropped, reasons=("purged",))
        wire.event(name, EventKind.CANCELLED, BookmarkRange(underlying, partition, 480, 480), subscription="s1")
    wire.flush()
    return name, underlying, wire


@pytest.mark.feature("X7")
@pytest.mark.parametrize("command", ["ledger --queue", "ledger --follow --queue", "lives --bookmark a:0:0 --entity"])
def test_what_is_not_there_is_named_before_spark_starts(kafka, queue, monkeypatch, command):
    name, underlying, _ = queue

    def refused(asked, *topics):
        words = [*command.split(), asked, "--topics", ",".join(topics), "--bootstrap", kafka]
        answer = CliRunner().invoke(commands, words)
        assert answer.exit_code == 1, answer.output
        (line,) = answer.stderr.splitlines()
        return line

    monkeypatch.setattr(option, "session", lambda *_, **__: pytest.fail("Spark was started"))
    assert f"there is no queue or SOW topic '{name}x' on this cluster" in refused(f"{name}x", underlying)
    failures = refused(name, underlying, f"{underlying}s")
    assert f"there is no topic '{underlying}s' on this cluster; did you mean '{underlying}'?" in failures


@pytest.mark.feature("D1", "D2")
def test_the_notebook_counts_letters_and_keeps_the_books(kafka, queue, spark, monkeypatch):
    name, underlying, _ = queue
    for variable, value in (("KAFKA_BOOTSTRAP_SERVERS", kafka), ("QUEUE", name), ("TOPICS", underlying)):
        monkeypatch.setenv(variable, value)
    _, counted, odd, lateness, poison, books = notebook.results(NOTEBOOK)
    assert [(row.entity, list(row.reasons), row["count"]) for _, row in counted.iterrows()] == [
        (name, ["time_limit"], 50)
    ]
    assert odd == 0
    assert list(lateness.entity) in ([], [name])
    assert [*poison.letters] == [50]
    assert books.startswith("1000 published; {'acknowledged': 900, 'dead_lettered': 50, 'expired': 10")


@pytest.mark.feature("D2", "D3", "D4", "X7")
def test_the_ledger_of_a_queue(spark, kafka, queue, tmp_path):
    name, underlying, wire = queue
    found = ledger.run(spark, Connection(kafka), name, [underlying], expected_depth=40)
    assert found.balanced
    assert (found.published, found.still_queued) == (1000, 40)
    assert {kind: number for kind, number in found.fates.items() if number} == {
        "acknowledged": 900,
        "dead_lettered": 50,
        "expired": 10,
    }
    assert (found.dead_lettered, found.expired) == ({"time_limit": 50}, {"purged": 10})

    # A message that was also acknowledged, a letter of nobody, records that are neither letters nor events.
    wire.event(name, EventKind.ACKNOWLEDGED, BookmarkRange(underlying, 0, 450, 450))
    wire.letter(name, Bookmark(underlying, 1, 5000), Reason.PURGED)
    wire.records(topic.dead_letters(name), [b"foreign", None])
    wire.records(topic.events(name), [b"foreign"])
    runner = CliRunner()
    options = ["ledger", "--queue", name, "--topics", underlying, "--bootstrap", kafka, "--output", str(tmp_path)]
    answer = runner.invoke(commands, [*options, "--json"])
    assert answer.exit_code == 1, answer.output
    printed = json.loads(answer.stdout)
    assert printed["balanced"] is False
    assert printed["quarantined"] == 3
    assert [(row["bookmark"], row["difference"]) for row in printed["differences"]] == [
        (f"{underlying}:0:450", "several_fates"),
        (f"{underlying}:1:5000", "not_published"),
    ]
    assert spark.read.parquet(f"{tmp_path}/differences").count() == 2
    assert spark.read.parquet(f"{tmp_path}/quarantine").count() == 3


@pytest.mark.feature("D4", "Q22", "C61")
def test_the_ledger_counts_what_a_rewind_brought_back_once_more(spark, kafka, queue):
    """Of twenty acknowledged messages that came back, some ended again; one is acknowledged that did not come back."""
    name, underlying, wire = queue
    back = BookmarkRange(underlying, 0, position_of(0, 1), position_of(19, 1))
    for _ in range(2):  # a crash tells it twice
        wire.event(name, EventKind.REWOUND, back, detail="one")
    wire.event(name, EventKind.ACKNOWLEDGED, BookmarkRange(underlying, 0, position_of(0, 1), position_of(9, 1)))
    dead = Bookmark(underlying, 0, position_of(10, 1))
    where = topic.dead_letters(name)
    reported = BookmarkRange(*dead, dead.offset)
    wire.event(name, EventKind.DEAD_LETTERED, reported, reasons=("max_cancels",), dead_letter_topic=where)
    wire.letter(name, dead, Reason.MAX_CANCELS)
    wire.event(name, EventKind.ACKNOWLEDGED, BookmarkRange(underlying, 0, position_of(20, 1), position_of(20, 1)))
    wire.flush()
    found = ledger.run(spark, Connection(kafka), name, [underlying], expected_depth=49, ask=False)
    assert (found.published, found.rewound, found.still_queued) == (1000, 20, 49)
    assert (found.fates["acknowledged"], found.dead_lettered) == (910, {"max_cancels": 1, "time_limit": 50})
    assert [(row["bookmark"], row["difference"]) for row in found.differences] == [
        (f"{underlying}:0:20~1", "not_published")
    ], "it balances but for what did not come back"


@pytest.mark.feature("D4", "D6")
def test_the_life_of_a_message(kafka, spark, queue):
    name, underlying, _ = queue
    options = ["lives", "--entity", name, "--bookmark", f"{underlying}:1:480", "--bootstrap", kafka, "--json"]
    answer = CliRunner().invoke(commands, options)
    assert answer.exit_code == 0, answer.output
    assert [(row["event"], row["subscription"]) for row in json.loads(answer.stdout)] == [("cancelled", "s1")]


@pytest.mark.feature("D4", "D6")
def test_what_another_lifetime_would_have_done(kafka, spark, queue, create_topic):
    """The topics of the fixture have no deliveries; with some, messages have waited and been leased, too."""
    name, underlying, wire = queue

    def ask(*words):
        options = ["lives", "--entity", name, "--topics", underlying, "--lifetimes", "--bootstrap", kafka, *words]
        answer = CliRunner().invoke(commands, options)
        assert answer.exit_code == 0, answer.output
        return json.loads(answer.stdout) if "--json" in words else answer.output

    # All fates are told as of 1 s after 1970, so nothing lived; what counts here is that it is told at all.
    before = ask("--at", "45s")
    assert f"{name}: at 45 s instead of" in before
    assert before.count(f"{name}: at ") == 1
    assert "lived" in before
    assert "leased" not in before
    create_topic(topic.deliveries(name))
    for offset in (0, 1):
        headers = {
            "lapse-kind": "delivery",
            "lapse-subscription": "s1",
            "lapse-bookmark": f"{underlying}:0:{offset}",
            "lapse-delivery-count": "1",
            "lapse-epoch": "1",
        }
        wire.records(topic.deliveries(name), [b"x"], headers=[(key, value.encode()) for key, value in headers.items()])
    found = ask("--json")
    assert {row["time"]: row["messages"] for row in found["spent"]} == {"lived": 960, "waited": 900, "leased": 2}
    assert [(row["expired"], row["served"]) for row in found["what_if"]] == [(50, 0)] * 5
    assert len(found["sentences"]) == 5


@pytest.mark.feature("D2", "D4", "S8")
def test_every_reader_is_a_stream_too(kafka, spark, queue, create_topic, unique, tmp_path):
    name, _, wire = queue
    connection, state = Connection(kafka), unique("prices")
    for own in (topic.deliveries(name), topic.sow(state)):
        create_topic(own)
    wire.records(topic.deliveries(name), [b"x"], headers=[("lapse-kind", b"epoch"), ("lapse-epoch", b"1")])
    wire.records(topic.sow(state), [b"1", b"2", None])
    span = Span(streaming=True)
    readers = {
        "letters": (read.dead_letters(spark, connection, names=[topic.dead_letters(name)], span=span), 100),
        "events": (read.events(spark, connection, [name], span=span), 18),
        "deliveries": (read.deliveries(spark, connection, [name], span=span), 1),
        "sow": (read.sow_updates(spark, connection, state, span=span), 3),
    }
    for table, (rows, number) in readers.items():
        writer = rows.writeStream.format("memory").queryName(table).option("checkpointLocation", str(tmp_path / table))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        found = spark.table(table)
        assert (found.count(), found.where("fault IS NOT NULL").count()) == (number, 0)
        spark.catalog.dropTempView(table)
    assert read.sow_state(spark, connection, state).collect() == []  # the last record is a tombstone


@pytest.mark.feature("D2")
def test_letters_of_a_span_of_time(kafka, spark, queue):
    name, _, _ = queue
    connection = Connection(kafka)
    names = [topic.dead_letters(name)]
    everything = read.dead_letters(spark, connection, names=names)
    latest = everything.selectExpr("max(unix_millis(letter_at))").collect()[0][0]
    assert everything.count() == 100
    assert read.dead_letters(spark, connection, names=names, span=Span(start_ms=latest + 1)).count() == 0
    assert read.dead_letters(spark, connection, names=names, span=Span(start_ms=latest)).count() > 0


@pytest.mark.feature("L1")
def test_a_span_of_time_has_all_of_its_records_where_producers_stamp_them(kafka, spark, create_topic, unique):
    """Their timestamps need not ascend."""
    own = create_topic(unique("stamped"), config={"message.timestamp.type": "CreateTime"})
    producer, now_ms = Client(kafka).producer(), time.time_ns() // 1_000_000
    for seconds in (1, 5, 2, 9, 3):
        producer.produce(own, b"%d" % seconds, timestamp=now_ms + 1_000 * seconds)
    assert producer.flush(30) == 0

    def read_values(**span):
        ms = {name: now_ms + 1_000 * seconds for name, seconds in span.items()}
        rows = read.records(spark, Connection(kafka), names=[own], span=Span(**ms))
        return sorted(int(row.value) for row in rows.collect())

    assert read_values(end_ms=4) == [1, 2, 3]
    assert read_values(start_ms=3) == [3, 5, 9]
    assert read_values(start_ms=2, end_ms=6) == [2, 3, 5]


@pytest.mark.feature("X7")
def test_a_topic_that_does_not_exist_is_named(kafka, spark, unique):
    missing = unique("missing")
    answer = CliRunner().invoke(commands, ["ledger", "--queue", missing, "--topics", missing, "--bootstrap", kafka])
    assert answer.exit_code == 1
    assert missing in answer.output
    assert "Traceback" not in answer.output
