"""The streaming jobs on real topics: each letter once, whatever happens in between."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace

import orjson
import pytest
from click.testing import CliRunner
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql.functions import upper as upper_case

from lapse.core.reason import Reason
from lapse.protocol import dead_letter, topic
from lapse.protocol.bookmark import Bookmark
from lapse_client import Connection as ClientConnection
from lapse_client.kafka.topic_reader import TopicReader
from lapse_spark import Connection, ledger, read
from lapse_spark.cli import spark as commands
from lapse_spark.letters import archive, redrive
from lapse_spark.monitoring import monitor
from lapse_spark.stream import recreated_topics
from lapse_spark.stream.output import JOB_FILE, Output
from lapse_spark.stream.recreated_topics import RecreatedTopics
from lapse_spark.stream.stream import follow
from support.kafka.log import until
from support.programs.standalone import quick_java
from support.suite.at_length import cases
from support.suite.class_archives import interpreted

pytestmark = pytest.mark.spark


def counted(spark, path):
    totals = monitor.totals(spark, path)
    return {} if totals is None else {(row.reasons, row.window_start.hour): row.letters for row in totals.collect()}


def check_the_report(path, tmp_path):
    """The page shows the counts of a monitor, and ledgers beside them."""
    fates = {"acknowledged": 7, "dead_lettered": 2}
    sound = ledger.Ledger(
        queue="orders.work",
        published=9,
        fates=fates,
        dead_lettered={"time_limit": 2},
        expired={},
        still_queued=0,
        quarantined=3,
    )
    odd = {"bookmark": "orders:0:5", "difference": "letter_missing", "fates": "dead_lettered", "reasons": ""}
    torn = replace(sound, queue="orders.risk", difference_counts={"letter_missing": 1}, differences=[odd])
    words = ["--output", str(tmp_path / "report.html")]
    for found in (sound, torn):
        file = tmp_path / f"{found.queue}.json"
        file.write_bytes(orjson.dumps(found.as_json()))
        words += ["--ledger", str(file)]
    page = CliRunner().invoke(commands, ["report", path, *words])
    assert page.exit_code == 0, page.output
    text = (tmp_path / "report.html").read_text()
    shown = (
        "max_cancels",
        "What became of the messages of orders.work",
        "orders:0:5",
        "records in quarantine",
        "✓ balanced",
    )
    assert [word for word in (*shown, "✗ NOT balanced") if word not in text] == []
    data = json.loads(CliRunner().invoke(commands, ["report", path, *words[2:], "--json"]).stdout)
    assert "Ledger of orders.risk" in [part["title"] for part in data["parts"]]
    refused = CliRunner().invoke(commands, ["report", path, "--ledger", str(tmp_path / "report.html")])
    assert (refused.exit_code, "no ledger as lapse spark ledger --json prints it" in refused.output) == (1, True)


@pytest.mark.feature("D2", "D3", "X7")
def test_counts_survive_a_restart_and_a_crash_without_counting_twice(
    spark, kafka, dead, create_topic, tmp_path, monkeypatch
):
    path, connection = str(tmp_path / "out"), Connection(kafka)

    def run(**options):
        return monitor.run(spark, connection, path, pattern=f"{dead.pattern}.*", **options)

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
        if table == "letters":
            raise RuntimeError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(Output, "write", failing)
        with pytest.raises(Exception, match="killed"):
            run()
    assert tables == ["counts", "letters"]
    dead(22, 24, Reason.MAX_CANCELS, Reason.MAX_DELIVERIES)
    # The interrupted batch was planned without this topic. Spark refused to repeat it as one that is available now.
    later = create_topic(f"{topic.dead_letters(dead.name)}-later")
    dead.wire.letter(dead.name, Bookmark("orders", 0, 24), Reason.PURGED, on=later, expired_at_ms=0)
    dead.wire.flush()
    run()
    assert counted(spark, path) == first | {
        ("time_limit", 2): 2,
        ("max_cancels,max_deliveries", 2): 2,
        ("purged", 0): 1,
    }
    assert Output(spark, path).read("quarantine").count() == 1
    assert json.loads((tmp_path / "out" / "lag.json").read_text())["lag"] == 0

    check_the_report(path, tmp_path)


@pytest.mark.feature("D2", "D3", "X7")
@pytest.mark.parametrize("ends", cases(["counts"], long=["counts letters partitions"]))
def test_a_monitor_that_ends_behind_any_of_its_tables_counts_each_letter_once(
    spark, kafka, dead, tmp_path, monkeypatch, ends
):
    """Also one whose counts were written and whose letters, by which copies are known, were not."""
    path, connection, write = str(tmp_path / "out"), Connection(kafka), Output.write

    def run():
        return monitor.run(spark, connection, path, pattern=dead.pattern)

    dead(0, 4, Reason.TIME_LIMIT)
    run()
    for number, last in enumerate(ends.split(), 1):
        dead(4 * number - 2, 4 * number + 4, Reason.TIME_LIMIT)  # two are copies of letters of the batch before

        def failing(output, table, *rest, last=last):
            write(output, table, *rest)
            if table == last:
                raise RuntimeError("killed")

        with monkeypatch.context() as broken:
            broken.setattr(Output, "write", failing)
            with pytest.raises(Exception, match="killed"):
                run()
        dead(4 * number + 2, 4 * number + 4, Reason.TIME_LIMIT)  # what a crashed worker writes again
        assert run().lag == 0
        count = 4 * number + 4
        assert sum(counted(spark, path).values()) == count, last
        letters = Output(spark, path).read("letters")
        assert (letters.count(), letters.select("id").distinct().count()) == (count, count), last
    reached = Output(spark, path).read("partitions")
    assert reached.agg({"missing_before": "sum"}).collect()[0][0] == 0
    assert reached.agg({"records": "sum"}).collect()[0][0] == 4 + len(ends.split()) * (6 + 2), "one twice"


@pytest.mark.feature("D2", "D3", "X7")
@pytest.mark.parametrize("job", cases(["monitor"], long=["archive"]))
def test_each_record_is_read_from_kafka_once(spark, kafka, dead, tmp_path, job):
    """Spark counts what its source has given: a batch that is looked at twice is read twice, and counted twice."""
    path, letters = str(tmp_path / "out"), topic.dead_letters(dead.name)

    def run():
        """Run it as a user does; return the records read, those still to be read, and the quarantine."""
        answer = CliRunner().invoke(commands, [job, path, "--pattern", dead.pattern, "--bootstrap", kafka])
        assert answer.exit_code == 0, answer.output
        (read, behind), *_ = re.findall(r"(\d+) records read, (\d+) behind", " ".join(answer.output.split()))
        aside = Output(spark, path).read("quarantine").select("value").collect()
        return int(read), int(behind), sorted(bytes(row.value) for row in aside)

    alerts = []
    for first in (0, 100):
        dead(first, first + 100, Reason.TIME_LIMIT)
        dead.wire.records(letters, [b"foreign %d" % first])
        alerts.append(run())
    assert alerts == [(101, 0, [b"foreign 0"]), (101, 0, [b"foreign 0", b"foreign 100"])]


@pytest.mark.feature("X7")
def test_an_output_without_its_checkpoint_is_refused(spark, kafka, dead, tmp_path):
    path = str(tmp_path / "out")
    Output(spark, path).write("counts", spark.range(1), monitor.F.current_timestamp(), 0)
    answer = CliRunner().invoke(commands, ["monitor", path, "--pattern", dead.pattern, "--bootstrap", kafka])
    assert answer.exit_code == 1
    assert "has batches and no checkpoint" in answer.output


@pytest.mark.feature("X7")
@pytest.mark.parametrize(("first", "second"), cases([("monitor", "archive")], long=[("archive", "monitor")]))
def test_the_output_of_another_job_is_refused(spark, kafka, dead, tmp_path, first, second):
    """It would go on from that job's checkpoint, and leave out all earlier letters without a word."""
    path = str(tmp_path / "out")
    dead(0, 3, Reason.TIME_LIMIT)

    def run(job):
        return CliRunner().invoke(commands, [job, path, "--pattern", dead.pattern, "--bootstrap", kafka])

    assert run(first).exit_code == 0
    for of_an_earlier_version in (False, True):  # which notes no job beside its tables
        if of_an_earlier_version:
            Output(spark, path).remove(JOB_FILE)
        refused = run(second)
        assert refused.exit_code == 1
        assert f"{path} is the output of lapse spark {first}: the {second} would go on" in refused.output
        assert "\n" not in refused.output.strip()
    # Commands that read or delete it as another job's found nothing, or deleted its letters.
    readers = ["report {}", "alerts {} -b {}"] if first == "archive" else ["archive {} --purge-before 2100-01-01 -b {}"]
    readers += ["redrive {}-audit --archive {} -b {}"] if first == "monitor" else []
    for words in readers:
        refused = CliRunner().invoke(commands, words.replace("-b {}", f"-b {kafka}").replace("{}", path).split())
        assert refused.exit_code == 1, words
        assert f"{path} is the output of lapse spark {first}, not that of the {second}" in refused.output
    again = run(first)
    assert (again.exit_code, "0 records read" in " ".join(again.output.split())) == (0, True)


@pytest.mark.feature("X7")
def test_another_window_than_that_of_the_output_is_refused(spark, kafka, dead, tmp_path):
    """Its counts would mix windows of both lengths."""
    path = str(tmp_path / "out")
    dead(0, 3, Reason.TIME_LIMIT)

    def run(*options):
        return CliRunner().invoke(
            commands, ["monitor", path, "--pattern", dead.pattern, "--bootstrap", kafka, *options]
        )

    assert run("--window", "90m").exit_code == 0
    refused = run()
    assert refused.exit_code == 1
    assert refused.output == (
        f"Error: {path} counts in windows of 5,400,000 ms: windows of 3,600,000 ms would mix with them. Go on with "
        "--window 5400000ms, or give a new directory, which counts all letters that are still in their topics\n"
    )
    with pytest.raises(ValueError, match="windows of 7,200,000 ms would mix"):
        monitor.run(spark, Connection(kafka), path, pattern=dead.pattern, window="120 minutes")
    assert run("--window", "1 hour 30 minutes").exit_code == 0
    Output(spark, path).put_text(JOB_FILE, '{"job": "monitor"}')
    assert run().exit_code == 1, "what noted no window says so by its counts"


@pytest.mark.feature("X7")
def test_a_checkpoint_that_is_broken_is_reported_in_one_line(spark, kafka, dead, tmp_path):
    """Java's calls helped nobody, and the sentence named no file and no step."""
    path = tmp_path / "out"
    dead(0, 3, Reason.TIME_LIMIT)
    words = ["monitor", str(path), "--pattern", dead.pattern, "--bootstrap", kafka]
    assert CliRunner().invoke(commands, words).exit_code == 0
    for file in ("metadata", "offsets/0"):
        place = path / "_checkpoint" / file
        before = place.read_bytes()
        (place.parent / f".{place.name}.crc").unlink(missing_ok=True)
        place.write_text("garbage\nx")
        broken = CliRunner().invoke(commands, words)
        place.write_bytes(before)
        assert broken.exit_code == 1
        (line,) = broken.output.strip().splitlines()
        assert line.endswith("The checkpoint cannot be read: put back a copy of the whole directory, or give a new one")


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
        printed = json.loads(answer.stdout)
        return printed["sent"], printed["earlier"], printed["dry_run"]

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
    found = arrived()
    assert sorted(row[0] for row in found) == ["payload 0", "payload 1"]
    assert all(set(row.names) == {"lapse-redriven-count", "lapse-message-id", "lapse-redrive-queue"} for row in found)

    day = Output(spark, kept).days("letters")[0]
    assert archive.purge(spark, kept, day) == []
    assert archive.purge(spark, kept, day.replace(year=day.year + 1)) == [day]
    assert archive.letters(spark, kept) is None


class Webhook(BaseHTTPRequestHandler):
    """Takes what is posted to it; refuses the first time."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posted.append(body["alerts"])
        self.send_response(500 if len(self.server.posted) == 1 else 204)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def webhook():
    server = HTTPServer(("127.0.0.1", 0), Webhook)
    server.posted = []
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()


def removed(kafka, name, before):
    """Remove records, as retention does."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for done in admin.delete_records([TopicPartition(name, 0, before)]).values():
        done.result(30)


def abort(kafka, name, transaction):
    """Write a record in a transaction that is aborted."""
    producer = ClientConnection(kafka).producer(**{"transactional.id": transaction})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"never", partition=0)
    producer.flush()
    producer.abort_transaction(30)


def check_that_no_letters_are_no_error(kafka, path, kept):
    """The topic has only a foreign record, which is an alert already."""
    words = ["alerts", path, "--bootstrap", kafka, "--json"]
    (foreign,) = json.loads(CliRunner().invoke(commands, words).stdout)
    assert foreign["rule"] == "quarantine"
    parts = json.loads(CliRunner().invoke(commands, ["report", path, "--json"]).stdout)["parts"]
    assert "Quarantine" in [part.get("title") for part in parts]
    nothing = CliRunner().invoke(commands, ["redrive", f"{path}-audit", "--archive", kept, "--bootstrap", kafka])
    assert nothing.exit_code == 0, nothing.output


@pytest.mark.feature("D2", "X7")
def test_an_archive_refuses_a_pattern_that_leaves_out_a_topic_that_it_has_read(
    spark, kafka, dead, create_topic, unique, tmp_path
):
    """Spark's error came at the first batch, and from then on with the old pattern, too."""
    other = create_topic(topic.dead_letters(unique("other")))
    dead(0, 2, Reason.MAX_DELIVERIES)
    both = f"{dead.pattern}|{re.escape(other)}"

    def archived(pattern, *more):
        options = ["archive", str(tmp_path), "--pattern", pattern, "--bootstrap", kafka, *more]
        answer = CliRunner().invoke(commands, options)
        return answer.exit_code, " ".join(answer.output.split())

    assert archived(both)[0] == 0
    dead(2, 3, Reason.MAX_DELIVERIES)
    code, text = archived(dead.pattern)
    assert code == 1
    assert f"has letters of {other}, and the pattern" in text
    assert archived(both)[0] == 0
    assert sorted(row.offset for row in archive.letters(spark, str(tmp_path)).collect()) == [0, 1, 2]
    dead(3, 4, Reason.MAX_DELIVERIES)
    archive.run(spark, Connection(kafka), str(tmp_path), pattern=dead.pattern, keeps_topics=True)
    dead(4, 5, Reason.MAX_DELIVERIES)
    assert archived(dead.pattern, "--allow-gaps")[0] == 0
    assert sorted(row.offset for row in archive.letters(spark, str(tmp_path)).collect()) == [0, 1, 2, 3, 4]


@pytest.mark.feature("D2", "X7")
def test_lost_offsets_and_other_alerts_are_reported_once(spark, kafka, dead, webhook, create_topic, unique, tmp_path):
    path, kept, connection = str(tmp_path / "out"), str(tmp_path / "archive"), Connection(kafka)
    letters, alerted = topic.dead_letters(dead.name), create_topic(unique("alerts"))
    dead.wire.records(letters, [b"foreign"])
    monitor.run(spark, connection, path, pattern=dead.pattern)
    archive.run(spark, connection, kept, pattern=dead.pattern)

    check_that_no_letters_are_no_error(kafka, path, kept)
    dead(0, 5, Reason.MAX_DELIVERIES)
    monitor.run(spark, connection, path, pattern=dead.pattern)
    archive.run(spark, connection, kept, pattern=dead.pattern)
    dead(5, 12, Reason.MAX_DELIVERIES)
    removed(kafka, letters, 10)
    dead(12, 14, Reason.MAX_DELIVERIES)

    # The archive has nothing with a hole unless asked; the monitor reports it.
    options = ["archive", kept, "--pattern", dead.pattern, "--bootstrap", kafka]
    refused = CliRunner().invoke(commands, options)
    assert refused.exit_code == 1
    assert "Traceback" not in refused.output
    assert CliRunner().invoke(commands, [*options, "--allow-gaps"]).exit_code == 0
    assert sorted(row.offset for row in archive.letters(spark, kept).collect()) == [0, 1, 2, 3, 4, 9, 10, 11, 12, 13]
    monitor.run(spark, connection, path, pattern=dead.pattern)
    read = Output(spark, path).read("partitions").where("missing_before > 0").collect()
    assert [(row.letter_topic, row.first_offset, row.missing_before) for row in read] == [(letters, 10, 4)]

    def tell():
        secret = f"http://127.0.0.1:{webhook.server_port}/s3cret"
        options = ["alerts", path, "--topic", alerted, "--webhook", secret, "--bootstrap", kafka, "--json"]
        options += ["--within-hours", "1000000", "--poison", "10"]
        return CliRunner().invoke(commands, options)

    # The webhook fails: nothing counts as told.
    failed = tell()
    assert (failed.exit_code, "answered 500" in failed.output, "s3cret" in failed.output) == (1, True, False)
    found = json.loads(tell().stdout)
    assert sorted((alert["rule"], alert["entity"], alert["value"]) for alert in found) == [
        ("gap", letters, 4.0),
        ("poison", dead.name, 10.0),
    ]
    assert webhook.posted == [found, found]
    assert json.loads(tell().stdout) == []
    rows = spark.read.format("kafka").options(**connection.reading()).option("subscribe", alerted).load()
    texts = [json.loads(bytes(row.value)) for row in rows.orderBy("offset").collect()]
    assert texts == [*found, *found]  # the failed run had told the topic

    # The last batch may be repeated, so it stays. Only one table has two batches before it.
    merged = CliRunner().invoke(commands, ["compact", path, "--json"])
    assert {table: number for table, number in json.loads(merged.stdout).items() if number} == {"partitions": 2}

    # The offsets of an aborted transaction have no letters either, and nobody has removed them.
    abort(kafka, letters, dead.name)
    dead(14, 15, Reason.MAX_DELIVERIES)
    monitor.run(spark, connection, path, pattern=dead.pattern)
    after = Output(spark, path).read("partitions").where("missing_before > 0 OR first_offset > 12").collect()
    gap, letter = sorted((row.first_offset, row.missing_before) for row in after)
    assert gap == (10, 4)
    assert letter in ((16, 0), (17, 0))  # the coordinator writes the marker soon after it has answered


def made_again(kafka, name, create_topic):
    """Delete a topic, and create it again with the same name. It has a foreign record of the year 11476."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([name])[name].result(30)
    create_topic(name, partitions=2, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(name, b"foreign", partition=1, timestamp=300_000_000_000_000)
    producer.flush()


@pytest.mark.feature("D2", "X7")
def test_a_topic_that_is_deleted_while_a_batch_reads_it_is_named_at_once(
    spark, kafka, dead, tmp_path, caplog, monkeypatch
):
    """Spark waits minutes for its records before it says anything, and cannot repeat the batch."""
    monkeypatch.setattr(recreated_topics, "_AGAIN_S", 0.1)  # there is one broker, so all looks see the same
    letters, connection, output = topic.dead_letters(dead.name), Connection(kafka), Output(spark, str(tmp_path))
    admin = AdminClient({"bootstrap.servers": kafka})
    dead(0, 10, Reason.TIME_LIMIT)

    def run(write, *, allowed):
        source = read.dead_letters(
            spark, connection, pattern=dead.pattern, span=read.Span(streaming=True, fail_on_data_loss=not allowed)
        )
        return follow(source, write, output, recreated=RecreatedTopics(output, connection, allowed=allowed))

    def hang(batch, number):
        admin.delete_topics([letters])[letters].result(30)
        until(lambda: f"deleted, or hidden from this user, while it is read: {letters}" in caplog.text, "it is named")
        raise RuntimeError("named")

    with pytest.raises(RuntimeError, match="named"):
        run(hang, allowed=True)
    with pytest.raises(ValueError, match=f"deleted while a batch read it: {letters}. .* --allow-gaps goes on"):
        run(lambda batch, _: batch.count(), allowed=False)
    assert run(lambda batch, _: batch.count(), allowed=True).lag == 0
    assert f"deleted while a batch read it, and now left out: {letters}" in caplog.text


@pytest.mark.feature("C42", "D2", "X7")
def test_a_topic_that_was_created_again_is_read_from_its_beginning(spark, kafka, dead, create_topic, tmp_path):
    """Spark would go on at the offset of the old topic, and silently leave out the letters before it."""
    path, kept, connection = str(tmp_path / "out"), str(tmp_path / "archive"), Connection(kafka)
    letters = topic.dead_letters(dead.name)
    dead(0, 10, Reason.TIME_LIMIT)
    archive.run(spark, connection, kept, pattern=dead.pattern)
    seen = []

    def watch(_):
        """Create the topic again while the stream runs, and end it when the new letters are counted."""
        letters_now = sum(counted(spark, path).values())
        if letters_now == 10 and not seen:
            seen.append(letters_now)
            made_again(kafka, letters, create_topic)
            dead(100, 104, Reason.TIME_LIMIT)
        if letters_now == 14:
            signal.raise_signal(signal.SIGINT)

    monitor.run(spark, connection, path, pattern=dead.pattern, every="1 second", watch=watch)
    assert sum(counted(spark, path).values()) == 14
    assert {row.missing_before for row in Output(spark, path).read("partitions").collect()} == {0}

    # The new topic has more letters than the archive has read of the old one: no offset is missing.
    dead(104, 112, Reason.TIME_LIMIT)
    options = ["archive", kept, "--pattern", dead.pattern, "--bootstrap", kafka]
    refused = CliRunner().invoke(commands, options)
    assert (refused.exit_code, f"deleted and created again since it was read: {letters}" in refused.output) == (1, True)
    for _ in range(2):
        assert CliRunner().invoke(commands, [*options, "--allow-gaps"]).exit_code == 0
        assert sorted(row.offset for row in archive.letters(spark, kept).collect()) == [*range(10), *range(100, 112)]
    assert Output(spark, kept).read("letters").count() == 22
    for output in (path, kept):  # the monitor may have read it in the last batch before it looked, too
        aside = Output(spark, output).read("quarantine").select("value", "timestamp").distinct().collect()
        assert [(bytes(row.value), row.timestamp.year) for row in aside] == [(b"foreign", 9999)]


@pytest.mark.feature("C3", "D5")
def test_the_window_of_alerts_goes_by_the_brokers_clock(kafka, spark, dead, create_topic, unique, tmp_path):
    """The job runs on a machine whose clock is wrong by an hour; the letters of one key are in the window."""
    origin, now_ms, path = unique("orders"), time.time_ns() // 1_000_000, tmp_path / "out"
    for offset in range(6):
        key, ago_ms = (b"recent", 1_800_000) if offset % 2 else (b"old", 5_400_000)
        death = dead_letter.Death(
            entity=dead.name,
            bookmark=Bookmark(origin, 0, offset),
            reasons=(Reason.MAX_DELIVERIES,),
            expired_at_ms=now_ms - ago_ms,
        )
        headers = dead_letter.headers(death, [])
        dead.wire.put(topic.dead_letters(dead.name), b"{}", key=key, headers=headers)
    dead.wire.flush()
    monitor.run(spark, Connection(kafka), str(path), pattern=dead.pattern)

    right, right_ns = time.time, time.time_ns
    for ahead_s in (3_600, -3_600):
        copied = shutil.copytree(path, tmp_path / f"ahead by {ahead_s} s")  # an alert is told once
        words = ["alerts", str(copied), "--bootstrap", kafka, "--within-hours", "1", "--at-least", "100", "--json"]
        with pytest.MonkeyPatch.context() as clock:
            clock.setattr(time, "time", lambda ahead_s=ahead_s: right() + ahead_s)
            clock.setattr(time, "time_ns", lambda ahead_s=ahead_s: right_ns() + ahead_s * 1_000_000_000)
            answer = CliRunner().invoke(commands, words)
        assert "Warning" not in answer.output
        assert [(one["rule"], one["text"][:12]) for one in json.loads(answer.stdout)] == [("poison", "key 'recent'")]


def upper(records):
    """A hook: changes the payload."""
    return records.withColumn("value", upper_case(records["value"].cast("string")).cast("binary"))


@pytest.mark.feature("D5", "X6")
def test_a_redrive_that_dies_half_way_sends_each_letter_once(
    spark, kafka, dead, create_topic, unique, tmp_path, monkeypatch
):
    origin, path = create_topic(unique("orders")), str(tmp_path / "audit")
    for offset in range(6):
        dead.wire.letter(dead.name, Bookmark(origin, 0, offset), Reason.MAX_DELIVERIES, value=b"n%d" % offset)
    dead.wire.flush()
    sending = redrive.send

    def torn(records, connection, batch_bytes):
        sending(records.where("CAST(value AS STRING) IN ('N1', 'N3', 'N4')"), connection, batch_bytes)
        raise RuntimeError("killed")

    options = ["redrive", path, "--entity", dead.name, "--pattern", dead.pattern, "--bootstrap", kafka, "--json"]
    options += ["--hook", f"{__name__}:upper"]
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or SimpleNamespace(upper=upper))
    with monkeypatch.context() as broken:
        broken.setattr(redrive, "send", torn)
        died = CliRunner().invoke(commands, [*options, "--send"])
    assert "killed" in str(died.exception)
    printed = [json.loads(CliRunner().invoke(commands, [*options, *more]).stdout) for more in ([], ["--send"])]
    assert [(one["sent"], one["earlier"]) for one in printed] == [(3, 3), (3, 3)]
    rows = spark.read.format("kafka").options(**Connection(kafka).reading()).option("subscribe", origin).load()
    assert sorted(bytes(row.value) for row in rows.collect()) == [b"N%d" % offset for offset in range(6)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.feature("D5")
def test_a_redrive_that_is_killed_sends_the_rest_when_it_is_run_again(
    spark, kafka, dead, create_topic, unique, tmp_path
):
    origin, audit_path = create_topic(unique("orders")), str(tmp_path / "audit")
    for offset in range(60):
        dead.wire.letter(dead.name, Bookmark(origin, 0, offset), Reason.MAX_DELIVERIES, value=b"n%d" % offset)
    dead.wire.flush()

    def arrived():
        records = TopicReader(ClientConnection(bootstrap_servers=kafka), origin, 1)
        return sorted(int((record.value() or b"")[1:]) for record in records)

    options = ["redrive", audit_path, "--pattern", dead.pattern, "--bootstrap", kafka, "--json", "--send"]
    job = [
        sys.executable,
        "-m",
        "lapse_spark",
        "redrive",
        *options[1:],
        "--rate",
        "2",
    ]  # ten letters in 5 s
    log = (tmp_path / "log").open("w+")
    running = subprocess.Popen(job, stdout=log, stderr=log, env=interpreted(quick_java()), start_new_session=True)
    try:
        while not (half := arrived()):
            assert running.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.1)
    finally:
        os.killpg(running.pid, signal.SIGKILL)  # Python and the JVM at once
        running.wait()
    half = arrived()
    assert 0 < len(half) < 60
    printed = [json.loads(CliRunner().invoke(commands, options).stdout) for _ in range(2)]
    assert [(one["sent"], one["earlier"]) for one in printed] == [(60 - len(half), len(half)), (0, 60)]
    assert arrived() == list(range(60))
