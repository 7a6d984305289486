"""The redrive of Spark and the command `lapse dlq redrive`: one memory, and the same refusals."""

import json
import time
from collections import Counter
from contextlib import closing
from threading import Thread

import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions

from lapse.core.reason import Reason
from lapse.protocol import dead_letter, topic
from lapse.protocol.bookmark import Bookmark
from lapse_client import Connection as Client
from lapse_client.error import LapseError
from lapse_client.kafka.span import span
from lapse_client.letters.dead_letter import DeadLetterReader
from lapse_client.letters.redrive import Choice, Known, Target, plan, send
from lapse_client.letters.redriven import Redriven
from lapse_spark import Connection, read
from lapse_spark.cli import spark as commands
from lapse_spark.letters import audit, redriven
from lapse_spark.letters.announced import AnnouncedRedrive, Overtaken
from lapse_spark.option import Cluster
from support.kafka.log import Tail
from support.suite.at_length import cases

pytestmark = [pytest.mark.spark, pytest.mark.feature("D5")]


@pytest.fixture
def redrive(kafka, dead, tmp_path):
    """Runs the job with options; returns how many it sent, left out, and refused for which reason."""

    def run(*options):
        words = ["redrive", str(tmp_path / "audit"), "--pattern", dead.pattern, "--bootstrap", kafka, "--json"]
        answer = CliRunner().invoke(commands, [*words, *options])
        assert answer.exit_code == 0, answer.output
        printed = json.loads(answer.stdout)
        refused = Counter()
        for group in printed["groups"]:
            if group["refused"]:
                refused[group["refused"]] += group["letters"]
        return printed["sent"], printed["earlier"], refused

    return run


@pytest.fixture
def command(kafka, dead):
    """What `lapse dlq redrive` does; returns how many it sends."""

    def run(**choice):
        connection = Client(kafka)
        known = Known.of(connection)
        letters = DeadLetterReader(dead.name, connection=connection)
        lines = plan(letters, Choice(**choice), Target(), 0, known)
        return send(lines, connection, letters=letters.topic, redriven=known.redriven)

    return run


def values(spark, kafka, name):
    rows = spark.read.format("kafka").options(**Connection(kafka).reading()).option("subscribe", name).load()
    return sorted(
        (None if row.value is None else bytes(row.value) for row in rows.collect()), key=lambda one: one or b""
    )


@pytest.mark.feature("C58")
def test_a_letter_is_sent_once_by_the_job_and_the_command_together(
    spark, kafka, dead, redrive, command, create_topic, unique
):
    origin = create_topic(unique("orders"))

    def die(first, last, **facts):
        for offset in range(first, last):
            dead.wire.letter(
                dead.name, Bookmark(origin, 0, offset), Reason.MAX_DELIVERIES, value=b"%d" % offset, **facts
            )
        dead.wire.flush()

    trace = ("traceparent", b"00-9df59580d7e83b8c3abd8fedd95628b5-a679a417c747789d-01")
    die(0, 3, original=[trace])
    assert redrive("--send") == (3, 0, {})
    with closing(Tail(kafka, origin)) as sent:
        assert all(trace in one.headers() for one in sent.wait(3)), "its life is one trace"
    assert command() == 0
    die(3, 5)
    assert command() == 2
    assert redrive("--send") == (0, 5, {})
    assert values(spark, kafka, origin) == [b"%d" % offset for offset in range(5)]

    # The third letter of a message: what both have sent counts for the limit, whatever its own header says.
    first = f"redrive/{dead.name}/{origin}:0:0/0"
    die(5, 6, original=[("lapse-message-id", first.encode())])
    assert redrive("--send", "--max-redrives", "2") == (1, 5, {})
    die(6, 7, original=[("lapse-message-id", f"redrive/{dead.name}/{origin}:0:5/0".encode())])
    assert redrive("--max-redrives", "2") == (0, 6, {"loop limit": 1})
    assert command(max_redrives=2) == 0
    assert redrive("--again", "--send", "--limit", "1")[:2] == (1, 0)


@pytest.mark.feature("C58")
def test_the_notes_of_a_killed_command_are_waited_for(kafka, unique):
    connection, letter = Client(kafka), unique("letter").encode()
    Redriven(connection).make_topic()
    producer = connection.producer(**{"transactional.id": letter.decode()})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(redriven.TOPIC, json.dumps({"first": letter.decode(), "times": 1}).encode(), letter)
    assert producer.flush(20) == 0

    def noted():
        return {one.key() for one in span(connection, {redriven.TOPIC: connection.partitions()[redriven.TOPIC]})}

    assert letter not in noted()
    end = Thread(target=producer.commit_transaction, args=(20,))
    end.start()
    redriven.await_notes(Connection(kafka))
    assert letter in noted()
    end.join()


@pytest.mark.feature("D2", "C75")
def test_topics_with_a_dead_letter_topics_name_in_theirs_are_not_read(spark, kafka, dead, create_topic):
    """A queue over the dead-letter topic has commands, deliveries and a journal, which are called after it."""
    letters = topic.dead_letters(dead.name)
    dead.wire.letter(dead.name, Bookmark("orders", 0, 1), Reason.MAX_DELIVERIES)
    for name in (topic.commands(letters), f"app-{letters}-changelog"):
        dead.wire.records(create_topic(name), [b"no letter"])
    dead.wire.flush()
    for rows in (
        read.dead_letters(spark, Connection(kafka), pattern=dead.pattern),
        read.dead_letters(spark, Connection(kafka)).where(functions.col("letter_topic").contains(dead.name)),
    ):
        assert [(row.letter_topic, row.offset, row.fault) for row in rows.collect()] == [(letters, 1, None)]


@pytest.mark.feature("D1")
def test_letters_on_a_topic_that_a_definition_names_are_read_unless_a_pattern_is_given(
    spark, kafka, dead, create_topic, unique
):
    own, definitions = create_topic(unique("own.letters")), create_topic(topic.definitions(unique("app")))
    create_topic(f"{definitions}.commands")
    said = {"kind": "queue", "version": 1, "origin": "", "settings": {"dead_letter": own}}
    dead.wire.records(definitions, [json.dumps(said).encode()], key=dead.name.encode())
    dead.wire.records(definitions, [b"{", b"[]", b'{"settings": 1}'], key=b"garbage")
    dead.wire.letter(dead.name, Bookmark("orders", 0, 1), Reason.MAX_DELIVERIES)
    dead.wire.flush()
    (letter,) = DeadLetterReader(topic.dead_letters(dead.name), connection=Client(kafka))
    dead.wire.records(own, [letter.value], headers=letter.headers)
    dead.wire.flush()
    cluster = Cluster(Connection(kafka), None, {})
    pattern = cluster.await_letters("")
    found = read.dead_letters(spark, Connection(kafka), pattern=pattern).where(functions.col("entity") == dead.name)
    assert {row.letter_topic for row in found.collect()} == {own, topic.dead_letters(dead.name)}
    assert cluster.await_letters(dead.pattern) == dead.pattern


def test_a_letter_above_a_megabyte_goes_back_where_the_topic_takes_it(
    spark, kafka, dead, create_topic, unique, tmp_path
):
    large = {"max.message.bytes": "3000000"}
    letters, origin = (create_topic(unique(name), config=large) for name in ("dlq.large", "large"))
    dead.wire.letter(dead.name, Bookmark(origin, 0, 0), Reason.MAX_DELIVERIES)
    dead.wire.flush()
    (letter,) = DeadLetterReader(dead.name, connection=Client(kafka))
    producer = Client(kafka).producer(**{"message.max.bytes": 3_000_000})
    producer.produce(letters, b"x" * 1_500_000, headers=list(letter.headers))
    assert producer.flush(30) == 0
    words = ["redrive", str(tmp_path / "audit"), "--pattern", letters, "--bootstrap", kafka, "--json", "--send"]
    answer = CliRunner().invoke(commands, words)
    assert answer.exit_code == 0, answer.output
    assert [len(value) for value in values(spark, kafka, origin)] == [1_500_000]


@pytest.mark.feature("X7")
def test_a_letter_that_its_topic_does_not_take_is_reported_and_keeps_no_other_one_back(
    spark, kafka, dead, redrive, create_topic, unique
):
    small = create_topic(unique("small"), config={"max.message.bytes": "1000"})
    keyed = create_topic(unique("keyed"), config={"cleanup.policy": "compact"})
    letters = topic.dead_letters(dead.name)

    def die(origin, offset, value, key):
        death = dead_letter.Death(
            entity=dead.name, bookmark=Bookmark(origin, 0, offset), reasons=(Reason.PURGED,), expired_at_ms=1_000
        )
        dead.wire.put(letters, value, key=key, headers=[*dead_letter.headers(death, [("own", b"\x00\xff")])])

    die(keyed, 0, b"named", b"k")
    die(keyed, 1, b"nameless", None)
    die(small, 0, b"fits", None)
    # The record's other bytes, as Kafka counts them; its batch may have 1,000.
    ours = [("own", b"\x00\xff"), ("lapse-redriven-count", b"1"), ("lapse-redrive-queue", dead.name.encode())]
    ours.append(("lapse-message-id", f"redrive/{dead.name}/{small}:0:1/0".encode()))
    own = sum(len(name) + len(value) + (2 if len(value) < 64 else 3) for name, value in ours)
    most = 1_000 - 61 - 2 - 3 - 1 - 2 - 1 - own
    die(small, 1, b"x" * most, None)
    die(small, 2, b"x" * (most + 1), None)
    dead.wire.flush()
    refused = {"too large for the topic": 1, "no key for a compacted topic": 1}
    assert redrive("--send") == (3, 0, refused)
    assert [len(value) for value in values(spark, kafka, small)] == [4, most]
    assert values(spark, kafka, keyed) == [b"named"]
    # What counts is what a hook makes of it.
    assert redrive("--send", "--hook", f"{__name__}:shorter") == (2, 3, {})
    assert values(spark, kafka, small) == [b"fits", b"x" * 4, b"x" * most]
    assert redrive("--send") == (0, 5, {})


@pytest.mark.feature("C58")
def test_while_a_job_has_not_ended_the_command_and_other_jobs_refuse_its_letters(
    spark, kafka, dead, redrive, command, create_topic, unique, tmp_path
):
    """A job dies at its second record, whose topic does not exist: no note tells of the first, which it has sent."""
    origin, missing = create_topic(unique("orders")), unique("missing")
    for offset, target in enumerate((origin, missing)):
        place = Bookmark(origin, 0, offset)
        dead.wire.letter(dead.name, place, Reason.MAX_DELIVERIES, value=target.encode(), expired_at_ms=1_000 + offset)
    dead.wire.flush()
    to_value = f"{__name__}:to_the_topic_that_is_the_value"
    words = ["redrive", "--pattern", dead.pattern, "--bootstrap", kafka, "--json", "--send"]
    options = tmp_path / "client.properties"
    options.write_text("max.block.ms=2000\n")

    def job(directory, *more):
        given = [*words, str(tmp_path / directory), "--kafka-config", str(options), *more]
        return CliRunner().invoke(commands, given)

    died = job("audit", "--hook", to_value)
    assert "UnknownTopic" in died.output
    assert values(spark, kafka, origin) == [origin.encode()]
    with pytest.raises(LapseError, match=f"{tmp_path / 'audit'} began .*{dead.name}.* --send .*--end-unfinished"):
        command()
    other = job("other")
    assert other.exit_code == 1
    assert f"{tmp_path / 'audit'} began" in other.output
    words.remove("--send")
    tried = job("other")
    assert (
        f"Warning: With --send this is refused: lapse spark redrive with the directory {tmp_path / 'audit'} began"
        in (tried.stderr)
    )
    assert f"{tmp_path / 'audit'} began" in json.loads(tried.stdout)["refusal"]
    assert not job("other", "--end-unfinished").stderr.count("refused")
    assert not job("audit").stderr.count("refused"), "its own directory goes on"
    words.append("--send")
    # A run with another choice finds what was sent, and notes it.
    assert redrive("--send", "--since", "1970-01-01T00:00:01.001") == (1, 0, {})
    assert values(spark, kafka, origin) == sorted([origin.encode(), missing.encode()])
    assert command() == 0
    assert json.loads(job("other").stdout)["earlier"] == 2


@pytest.mark.feature("C58")
def test_what_is_sent_without_a_note_may_be_given_up(spark, kafka, dead, command, create_topic, unique):
    origin = create_topic(unique("orders"))
    dead.wire.letter(dead.name, Bookmark(origin, 0, 0), Reason.MAX_DELIVERIES, value=b"0")
    dead.wire.flush()
    connection, letters = Client(kafka), topic.dead_letters(dead.name)
    lost = AnnouncedRedrive(connection, "lost", "/lost", 1_000)
    lost.begin([letters], end_unfinished=False)
    with pytest.raises(LapseError, match="/lost began"):
        command()
    known = Known.of(connection)
    assert [one.directory for one in known.redriven.unfinished(letters)] == ["/lost"]
    lines = plan(DeadLetterReader(dead.name, connection=connection), Choice(), Target(), 0, known)
    assert send(lines, connection, letters=letters, redriven=known.redriven, end_unfinished=True) == 1
    assert not Redriven(connection).read().unfinished(letters)
    with pytest.raises(Overtaken):
        lost.begin([letters], end_unfinished=False)


@pytest.mark.feature("C58")
def test_a_command_beside_a_running_job_sends_nothing_twice(
    spark, kafka, dead, command, create_topic, unique, tmp_path
):
    """It has its turn when the job has chosen, and again when the job has announced itself."""
    origin = create_topic(unique("orders"))
    for offset in range(4):
        place = Bookmark(origin, 0, offset)
        dead.wire.letter(dead.name, place, Reason.MAX_DELIVERIES, value=b"%d" % offset, expired_at_ms=offset)
    dead.wire.flush()
    results = []

    def beside(records):
        try:
            results.append(command(until_ms=2))
        except LapseError as error:
            results.append(str(error))
        return records

    connection = Connection(kafka)
    done = audit.run(
        spark, connection, read.dead_letters(spark, connection, pattern=dead.pattern), audit.Choice(), audit.Target(),
        path=str(tmp_path), now_ms=time.time_ns() // 1_000_000, dry_run=False, hook=beside,
    )  # fmt: skip
    assert results[0] == 2
    assert "has not ended" in results[-1]
    assert (done.sent, done.earlier) == (2, 2)
    assert values(spark, kafka, origin) == [b"%d" % offset for offset in range(4)]


@pytest.mark.feature("C58")
def test_of_two_jobs_with_one_directory_at_once_the_later_one_is_refused(
    spark, kafka, dead, create_topic, unique, tmp_path
):
    """The later one begins while the first one sends, and would send the same letters."""
    origin = create_topic(unique("orders"))
    dead.wire.letter(dead.name, Bookmark(origin, 0, 0), Reason.MAX_DELIVERIES, value=b"0")
    dead.wire.flush()
    connection, directory, second = Connection(kafka), str(tmp_path / "audit"), []

    def job(**more):
        letters = read.dead_letters(spark, connection, pattern=dead.pattern)
        now_ms = time.time_ns() // 1_000_000
        return audit.run(
            spark, connection, letters, audit.Choice(), audit.Target(), path=directory, now_ms=now_ms, **more
        )  # fmt: skip

    def beside(records):
        if not second:
            with pytest.raises(LapseError, match="audit is running. Nothing was done here") as refused:
                second.append(job(dry_run=False))
            second.extend([refused, job()])
        return records

    assert job(dry_run=False, hook=beside).sent == 1
    assert second[1].sent == 1, "one that only counts is not refused"
    assert values(spark, kafka, origin) == [b"0"]
    assert job(dry_run=False).earlier == 1


def to_the_topic_that_is_the_value(records):
    """A hook."""
    named = functions.col("value").cast("string")
    return records.withColumns({"topic": named, "partition": functions.lit(None).cast("int")})


@pytest.mark.long
@pytest.mark.feature("C58")
def test_what_a_hook_sends_elsewhere_is_found_there_after_a_run_that_died(
    spark, kafka, dead, create_topic, unique, tmp_path
):
    """The run dies at its second record, whose topic does not exist. Nothing notes the first one but its topic."""
    origin, there, missing = create_topic(unique("orders")), create_topic(unique("there")), unique("missing")
    for offset, target in enumerate((there, missing)):
        place = Bookmark(origin, 0, offset)
        dead.wire.letter(dead.name, place, Reason.MAX_DELIVERIES, value=target.encode(), expired_at_ms=1_000 + offset)
    dead.wire.flush()
    connection = Connection(kafka, client={"max.block.ms": "2000"})

    def elsewhere(records):
        named = functions.col("value").cast("string")
        return records.withColumns({"topic": named, "partition": functions.lit(None).cast("int")})

    def send_all():
        return audit.run(
            spark, connection, read.dead_letters(spark, connection, pattern=dead.pattern), audit.Choice(),
            audit.Target(), path=str(tmp_path), now_ms=time.time_ns() // 1_000_000, dry_run=False, rate=100,
            hook=elsewhere,
        )  # fmt: skip

    with pytest.raises((Py4JJavaError, PySparkException), match=missing):
        send_all()
    assert values(spark, kafka, there) == [there.encode()]
    create_topic(missing)
    done = send_all()
    assert (done.sent, done.earlier) == (1, 1)
    assert [values(spark, kafka, name) for name in (there, missing)] == [[there.encode()], [missing.encode()]]


def shorter(records):
    """A hook that makes what has no room have room."""
    short = functions.when(functions.length("value") > 800, b"x" * 4).otherwise(functions.col("value"))
    return records.withColumns({"value": short, "key": functions.coalesce("key", functions.lit(b"none"))})


@pytest.mark.feature("C84")
def test_letters_that_must_stay_are_refused_and_counted(spark, kafka, dead, redrive, create_topic, unique):
    origin, letters = create_topic(unique("prices")), topic.dead_letters(dead.name)
    state = create_topic(topic.sow(dead.name))
    dead.wire.records(state, [b"new"], key=b"newer", headers=[("lapse-bookmark", f"{origin}:0:10".encode())])
    dead.wire.records(state, [b"old"], key=b"older", headers=[("lapse-bookmark", f"{origin}:0:1".encode())])
    dead.wire.records(state, [b"x", None], key=b"gone", headers=[("lapse-bookmark", f"{origin}:0:11".encode())])

    def die(offset, value, key=b"k", *more):
        death = dead_letter.Death(
            entity=dead.name,
            bookmark=Bookmark(origin, 0, offset),
            reasons=(Reason.MAX_DELIVERIES,),
            expired_at_ms=1_000,
        )
        dead.wire.put(letters, value, key=key, headers=[*dead_letter.headers(death, []), *more])
        dead.wire.flush()

    die(2, b"a", b"newer")
    die(3, b"b", b"older")
    die(4, b"c", b"gone")
    die(5, None)
    die(6, b"d", b"k", ("lapse-unconfirmed-transfer", b"other/t1"))
    die(7, b"e", None, ("lapse-record-key", b"newer"))  # the key is in the payload
    die(8, None, b"k", ("lapse-null-value", b"true"))  # no payload was lost
    for place in (Bookmark("nowhere", 0, 1), Bookmark(origin, 99, 1), Bookmark(state, 0, 1)):
        dead.wire.letter(dead.name, place, Reason.MAX_DELIVERIES, value=b"astray")
    dead.wire.flush()
    astray = {"no such topic": 1, "no such partition": 1, "not a topic for letters": 1}
    refused = {"newer record": 2, "no payload": 1, "unconfirmed transfer": 1} | astray
    assert redrive("--send") == (3, 0, refused)
    assert values(spark, kafka, origin) == [None, b"b", b"c"]
    assert redrive("--overwrite", "--send") == (2, 3, {"no payload": 1, "unconfirmed transfer": 1} | astray)
    assert values(spark, kafka, origin) == [None, b"a", b"b", b"c", b"e"]


@pytest.mark.feature("C84", "C29")
def test_letters_of_a_deleted_queue_are_not_sent_where_nobody_takes_them(kafka, dead, redrive, create_topic, unique):
    """Their topic is still there, for other queues; the command and the job say the same.

    So it is with letters of a queue that reads other topics now.
    """
    origin, gone, moved = create_topic(unique("orders")), unique("gone"), unique("moved")
    own = [create_topic(one) for one in (topic.commands(moved), topic.deliveries(moved))]
    definitions = create_topic(topic.definitions(unique("app")))
    create_topic(f"{definitions}.commands")
    for settings in ({"topics": [origin]}, {"topics": [own[0]]}):
        dead.wire.put(definitions, json.dumps({"kind": "queue", "settings": settings}).encode(), key=moved.encode())
    dead.wire.letter(dead.name, Bookmark(origin, 0, 1), Reason.TIME_LIMIT, value=b"there")
    for entity, value in ((gone, b"gone"), (moved, b"moved")):
        death = dead_letter.Death(
            entity=entity, bookmark=Bookmark(origin, 0, 2), reasons=(Reason.TIME_LIMIT,), expired_at_ms=1_000
        )
        dead.wire.put(topic.dead_letters(dead.name), value, key=b"k", headers=dead_letter.headers(death, []))
    # Another system's letter at the same place is for all queues of the topic.
    group = [("__dlq.errors.topic", origin.encode()), ("__dlq.errors.partition", b"0"), ("__dlq.errors.offset", b"2")]
    dead.wire.put(
        topic.dead_letters(dead.name), b"of a group", key=b"k", headers=[*group, ("__dlq.errors.group", gone.encode())]
    )
    dead.wire.flush()
    connection = Client(kafka)
    letters = DeadLetterReader(dead.name, connection=connection)

    def refused(target):
        lines = plan(letters, Choice(), target, 0, Known.of(connection))
        return {line.letter.value: line.refused for line in lines}

    assert refused(Target()) == {
        b"there": "",
        b"gone": "no such entity",
        b"moved": "entity reads other topics",
        b"of a group": "",
    }
    assert refused(Target(topic=origin)) == dict.fromkeys((b"there", b"gone", b"moved", b"of a group"), "")
    assert redrive() == (2, 0, {"no such entity": 1, "entity reads other topics": 1})
    assert redrive("--to", origin) == (4, 0, {})


@pytest.mark.feature("C84")
def test_letters_that_go_elsewhere_stay_where_a_sow_topic_of_another_name_is_newer(
    spark, kafka, dead, redrive, create_topic, unique
):
    """A topic that several SOW topics read, none of which bears its name; the command and the job say the same."""
    target, other = create_topic(unique("market")), create_topic(unique("other"))
    states = [create_topic(topic.sow(unique(f"prices{n}"))) for n in range(3)]
    for state, place, key in zip(states, (target, target, other), (b"first", b"second", b"other"), strict=True):
        dead.wire.records(state, [b"junk"], key=b"unnamed")
        dead.wire.records(state, [b"new"], key=key, headers=[("lapse-bookmark", f"{place}:0:10".encode())])
    origin = Bookmark(unique("orders"), 0, 0)
    for offset, key in enumerate((b"first", b"second", b"other", b"free")):
        death = dead_letter.Death(
            entity=dead.name, bookmark=origin._replace(offset=offset), reasons=(Reason.TIME_LIMIT,), expired_at_ms=1_000
        )
        dead.wire.put(topic.dead_letters(dead.name), key, key=key, headers=dead_letter.headers(death, []))
    # Another system's letter goes home for everybody, and a newer record of its key is there.
    foreign = [("__connect.errors.topic", target.encode()), ("__connect.errors.partition", b"0")]
    foreign += [("__connect.errors.offset", b"3"), ("__connect.errors.connector.name", b"sink-1")]
    dead.wire.put(topic.dead_letters(dead.name), b"foreign", key=b"first", headers=foreign)
    dead.wire.flush()
    connection = Client(kafka)
    letters = DeadLetterReader(dead.name, connection=connection)

    def refused(place):
        lines = plan(letters, Choice(), Target(topic=place), 0, Known.of(connection))
        return {line.letter.value: line.refused for line in lines}

    newer = dict.fromkeys((b"first", b"second", b"foreign"), "newer record")
    assert refused(target) == newer | {b"other": "", b"free": ""}
    assert refused("") == dict.fromkeys((b"first", b"second", b"other", b"free"), "no such topic") | {
        b"foreign": "newer record"
    }
    assert redrive("--to", target) == (2, 0, {"newer record": 3})
    assert redrive() == (0, 0, {"no such topic": 4, "newer record": 1})


@pytest.mark.feature("C3", "C30")
@pytest.mark.parametrize("ahead_s", cases([3_600], [-3_600]))
def test_deadlines_go_by_the_brokers_clock(kafka, dead, create_topic, unique, tmp_path, monkeypatch, ahead_s):
    """The job runs on a machine whose clock is wrong by an hour; one letter's deadline has passed, one's has not."""
    origin, now_ms = create_topic(unique("orders")), time.time_ns() // 1_000_000
    for offset, expires_at_ms in enumerate([now_ms - 1_800_000, now_ms + 1_800_000]):
        dead.wire.letter(dead.name, Bookmark(origin, 0, offset), Reason.MAX_DELIVERIES, expires_at_ms=expires_at_ms)
    dead.wire.flush()
    right, right_ns = time.time, time.time_ns
    words = ["redrive", str(tmp_path), "--pattern", dead.pattern, "--bootstrap", kafka, "--entity", dead.name, "--json"]
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda: right() + ahead_s)
        clock.setattr(time, "time_ns", lambda: right_ns() + ahead_s * 1_000_000_000)
        answer = CliRunner().invoke(commands, words)
    assert "Warning" not in answer.output
    printed = json.loads(answer.stdout)
    assert (printed["sent"], printed["deadline_passed"]) == (2, 1)
