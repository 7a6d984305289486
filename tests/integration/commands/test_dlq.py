"""`lapse dlq`: letters listed, shown, and sent back through a real queue until the loop limit."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping

import pytest
from confluent_kafka import Message

from lapse.protocol import topic
from lapse.topic_creation import NewTopic
from lapse_client import Connection, DeadLetter, DeadLetterReader
from lapse_client.kafka.span import span
from lapse_client.letters.letter_queues import LetterQueues
from lapse_client.letters.redrive import Choice, Known, Target, plan, send
from lapse_client.letters.redriven import TOPIC, Redriven
from lapse_client.letters.unfinished_redrive import UnfinishedRedrive
from lapse_client.reading import definitions
from lapse_client.reading.count_text import count_text
from support.kafka.created_topic import create
from support.kafka.log import until, write
from support.processes.deployment import Deployment, broker_now_ms
from support.suite import command

QUEUES = {
    "orders": {"expiration": "300ms"},
    "neighbour": {"topics": ["orders{}"]},
    "elsewhere": {},
    "old": {"expiration": "300ms"},
    "once": {"expiration": "300ms"},
    "given_up": {"expiration": "30m"},
    "given_back": {"expiration": "300ms"},
    "dlq.given_back": {},
    "desk": {"topics": ["dlq.given_back{}"]},
    "going": {"expiration": "300ms"},
    "come_again": {"expiration": "300ms", "partitions": 1},
    "second_desk": {"topics": ["dlq.come_again{}"]},
    "begun": {"expiration": "300ms"},
    "strict_desk": {"topics": ["dlq.come_again{}"], "leasing": "strict"},
    "apart": {"expiration": "300ms", "dead_letter": "letters{}"},
    "dropped": {"expiration": "300ms", "dead_letter": False},
    "beside": {"topics": ["apart{}"], "expiration": "300ms", "dead_letter": "letters{}"},
}

pytestmark = pytest.mark.feature("D5")


def dlq(deployment: Deployment, *arguments: str, code: int = 0) -> str:
    done = command.run("dlq", *arguments, environment=deployment.environment())
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.feature("C29", "C30", "X6")
def test_letters_are_sent_back_counted_and_in_the_end_refused(served: Deployment) -> None:
    """Dry first; then three times around, to the queue that lost them alone; then the loop limit."""
    name, audit = served.name("orders"), served.directory / "audit.jsonl"
    served.write("orders", '{"n": 1}', '{"n": 2}', key=b"k")
    served.letters("orders", 2)
    (row,) = rows(dlq(served, "ls", name, "--json"))
    assert (row["entity"], row["reasons"], row["letters"]) == (name, ["time_limit"], 2)
    assert 0 < row["first_at_ms"] <= row["last_at_ms"]
    assert "first died (UTC)" in dlq(served, "ls", name)
    span = ("--since", str(row["first_at_ms"]), "--until", str(row["last_at_ms"] + 1))
    assert len(rows(dlq(served, "show", name, *span, "--json"))) == 2, "the times are those by which letters are chosen"
    assert f"dlq.{name}" in dlq(served, "ls")
    shown = rows(dlq(served, "show", name, "--filter", "/n = 2", "--json"))
    assert [one["value"] for one in shown] == ['{"n": 2}']

    dry = dlq(served, "redrive", name, "--filter", "/n = 1")
    assert "Nothing was sent" in dry
    (planned,) = rows(dlq(served, "redrive", name, "--filter", "/n = 1", "--json"))
    assert (planned["letters"], planned["deadline_passed"], planned["to"]) == (1, 1, name)
    for times in range(1, 4):
        letters = served.tail(f"dlq.{name}")
        arguments = ("--filter", f"/n = 1 AND HEADER('lapse-redriven-count') = '{times - 1}'")
        sent = dlq(served, "redrive", name, *arguments, "--yes", "--audit", str(audit), "--rate", "50")
        assert "1 letter sent" in sent
        letters.wait(2 + times)
        letters.close()
    (refused,) = rows(
        dlq(served, "redrive", name, "--filter", "HEADER('lapse-redriven-count') = '3'", "--yes", "--json")
    )
    assert refused["refused"] == "loop limit"
    audited = rows(audit.read_text("utf-8"))
    assert [one["redriven_count"] for one in audited] == [1, 2, 3]
    assert all(one["error"] == "" and one["topic"] == name for one in audited)
    until(lambda: served.depth("neighbour")["depth"] == 2, "the neighbour's own, and no redriven ones")


@pytest.mark.feature("C58")
def test_a_letter_is_sent_once_however_often_the_command_runs(served: Deployment) -> None:
    """It is remembered, beyond the window for repeats. The limit counts the redrives of all a message's letters."""
    name = served.name("once")
    served.write("once", "1", "2", "3", key=b"k")
    served.letters("once", 3)
    assert "3 letters sent" in dlq(served, "redrive", name, "--yes")
    served.letters("once", 6)
    first = ("--filter", "HEADER('lapse-redriven-count') = '0'")
    assert "0 letters sent" in dlq(served, "redrive", name, "--yes", *first)
    (planned,) = rows(dlq(served, "redrive", name, "--json", *first))
    assert (planned["refused"], planned["letters"]) == ("sent before", 3)
    # The second letters are of the same messages; asked for again, each is another redrive of its message.
    assert "3 letters sent" in dlq(served, "redrive", name, "--yes")
    served.letters("once", 9)
    assert "3 letters sent" in dlq(served, "redrive", name, "--yes", "--again", *first)
    (planned,) = rows(dlq(served, "redrive", name, "--json", "--again", *first))
    assert (planned["refused"], planned["letters"]) == ("loop limit", 3)
    served.letters("once", 12)  # what is sent again on purpose is no repeat to the queue
    printed = command.run("explain", f"{name}:0:0", "--json", environment=served.environment()).stdout
    assert [one["what"] for one in rows(printed)].count("redriven") == 3


@pytest.mark.feature("C58")
def test_a_dry_run_warns_of_a_spark_job_that_has_not_ended(served: Deployment) -> None:
    """The command with --yes is refused then."""
    name, connection = served.name("begun"), served.connection
    served.write("begun", "1")
    served.letters("begun", 1)
    note = UnfinishedRedrive(letters=topic.dead_letters(name), audit="a", directory="/data/redriven", begun_at_ms=1_000)
    Redriven(connection).make_topic()
    write(served.servers, TOPIC, [note.value], key=note.key)
    refusal = f"lapse spark redrive with the directory /data/redriven began to send letters of dlq.{name}"
    assert refusal in dlq(served, "redrive", name, "--yes", code=1)
    tried = dlq(served, "redrive", name)
    assert f"Warning: With --yes this is refused: {refusal}" in tried
    assert "With --yes, 0 letters are sent" in tried
    done = command.run("dlq", "redrive", name, "--json", environment=served.environment())
    assert [row["letters"] for row in rows(done.stdout)] == [1]
    assert refusal in done.stderr
    given_up = dlq(served, "redrive", name, "--end-unfinished")
    assert "Warning" not in given_up
    assert "With --yes, 1 letter is sent" in given_up
    assert "1 letter sent" in dlq(served, "redrive", name, "--end-unfinished", "--yes")


@pytest.mark.feature("C84", "D2")
def test_the_letter_of_a_null_value_is_sent_as_null(served: Deployment) -> None:
    """It says that nothing was lost, and dies a second time as what it was."""
    name, only = served.name("once"), ("--filter", "HEADER('kind') = 'null'")
    (written,) = served.write("once", None, key=b"null", headers=[("kind", b"null")])

    def letters(count: int) -> list[dict[str, object]]:
        until(lambda: len(rows(dlq(served, "show", name, "--json", *only))) == count, f"{count} letters")
        return rows(dlq(served, "show", name, "--json", *only))

    (letter,) = letters(1)
    assert (letter["key"], letter["value"]) == ("null", None)
    assert ["lapse-null-value", "true"] in letter["headers"]
    assert "1 letter sent" in dlq(served, "redrive", name, *only, "--yes")
    assert [one["value"] for one in letters(2)] == [None, None], "it died once more"
    (record,) = [one for one in served.tail(name).drain() if one.offset() > written.offset]
    assert (record.key(), record.value()) == (b"null", None)
    assert "lapse-null-value" not in dict(record.headers() or [])


@pytest.mark.feature("C30")
def test_elsewhere_with_a_new_lifetime(served: Deployment) -> None:
    name = served.name("orders")
    served.write("orders", "no JSON", key=b"k")
    until(lambda: "no JSON" in dlq(served, "show", name, "--since", "1m", "--json"), "the letter")
    (letter,) = rows(dlq(served, "show", name, "--filter", "/n IS NULL", "--json"))
    assert letter["message"]
    assert letter["message"][:40] in dlq(served, "show", name), "the fault's text is in the table, too"
    arguments = ("--filter", "/n IS NULL", "--to", served.name("elsewhere"), "--lifetime", "new:90s", "--yes")
    assert "1 letter sent" in dlq(served, "redrive", name, *arguments)
    (record,) = served.tail(served.name("elsewhere")).wait(1)
    headers = dict(record.headers() or [])
    assert (record.key(), record.value()) == (b"k", b"no JSON")
    assert set(headers) == {"lapse-ttl-ms", "lapse-message-id", "lapse-redriven-count"}
    assert headers["lapse-ttl-ms"] == b"90000"
    assert "1 letter sent" in dlq(served, "redrive", name, *arguments[:-2], "new:0s", "--again", "--yes")
    again = served.tail(served.name("elsewhere")).wait(2)[1]
    assert dict(again.headers() or [])["lapse-ttl-ms"] == b"0", "it never expires"


@pytest.mark.feature("C54", "C29", "X7", "C84")
def test_a_letter_that_cannot_go_back_keeps_no_other_one_back(served: Deployment) -> None:
    """Letters of a share group: three without an origin, one without payload, one too large, and others."""
    name = served.name("elsewhere")
    letters, there = f"dlq.{name}", served.depth("elsewhere")["depth"]
    group = ("__dlq.errors.group", b"share-1")

    def die(value: bytes | None, origin: str = name, partition: int = 0) -> None:
        place = [("__dlq.errors.topic", origin), ("__dlq.errors.partition", str(partition))]
        headers = [*((title, text.encode()) for title, text in place), ("__dlq.errors.offset", b"7"), group]
        write(served.servers, letters, [value], headers=headers, **{"message.max.bytes": 2_000_000})

    die(b"first")
    die(b"no partition", partition=99)
    die(b"no topic", origin="nowhere")
    die(b"a command", origin=f"lapse.{name}.commands")
    die(None)  # headers only, as share groups write them by default
    die(b"x" * 1_060_000)
    die(b"second")
    die(b"y" * 1_010_000)  # more than the client's own default allows
    assert dlq(served, "show", name).count("\n│ 20") == 8, "each has a time, by which it is chosen"
    planned = {row["refused"]: row["letters"] for row in rows(dlq(served, "redrive", name, "--json"))}
    refused = {"no such partition": 1, "no such topic": 1, "not a topic for letters": 1, "no payload": 1}
    assert planned == {"": 4, **refused}, "the dry run says so"
    assert "MSG_SIZE_TOO_LARGE" in dlq(served, "redrive", name, "--yes", code=1)
    until(lambda: served.depth("elsewhere")["depth"] == there + 3, "the others, and no queue passes them over")
    assert "MSG_SIZE_TOO_LARGE" in dlq(served, "redrive", name, "--yes", code=1)
    assert served.depth("elsewhere")["depth"] == there + 3, "each was sent once"


@pytest.mark.feature("D1")
def test_letters_on_a_topic_of_the_queues_own_choice_are_found_by_its_name(served: Deployment) -> None:
    """Two queues share the topic: each name finds the letters of that queue."""
    name, other = served.name("apart"), served.name("beside")
    create(served.connection.admin(), NewTopic(f"dlq.{name}", 1))  # as an earlier configuration has left it
    served.write("apart", "1", "2", key=b"k")

    def shown(*arguments: str) -> list[dict[str, object]]:
        return rows(dlq(served, *arguments, "--json", "--config", str(served.config)))

    until(lambda: [len(shown("show", queue)) for queue in (name, other)] == [2, 2], "both letters of both")
    assert [row["entity"] for row in shown("ls", other)] == [other]
    listed = {row["topic"] for row in shown("ls")}
    assert {served.name("letters"), f"dlq.{name}"} <= listed
    assert not [found for found in listed if not found.startswith(("dlq.", "letters-"))]
    (planned,) = shown("redrive", name)
    assert (planned["entity"], planned["letters"]) == (name, 2)


def test_mistakes_are_named(served: Deployment) -> None:
    name = served.name("orders")
    assert "expected default, original, or new:30s" in dlq(served, "redrive", name, "--lifetime", "old", code=2)
    assert "expected a duration" in dlq(served, "redrive", name, "--lifetime", "new:30", code=2)
    assert "column" in dlq(served, "redrive", name, "--filter", "/n = ", code=1)
    span = ("--since", "2026-01-02", "--until", "2026-01-01")
    assert "--until 1767225600000 is not after --since 1767312000000" in dlq(served, "show", name, *span, code=2)
    assert "there is no dead-letter topic" in dlq(served, "ls", "nobody-at-all", code=1)
    dropped = served.name("dropped")
    printed = dlq(served, "show", dropped, code=1)
    assert f"there is no dead-letter topic 'dlq.{dropped}' on this cluster: `dead_letter` of this entity is" in printed
    assert "did you mean" not in printed, "letters of another queue are not these"
    assert "there is no topic 'nowhere'" in dlq(served, "redrive", name, "--to", "nowhere", code=1)
    own = f"lapse.{name}.commands"
    assert f"{own} is a topic that lapse or Kafka writes" in dlq(served, "redrive", name, "--to", own, code=1)
    assert f"dlq.{name} is where these letters are" in dlq(served, "redrive", name, "--to", f"dlq.{name}", code=1)
    with_file = ("redrive", name, "--config", str(served.config))
    for other in (f"dlq.{served.name('old')}", served.name("letters")):
        assert f"{other} is a dead-letter topic; send" in dlq(served, *with_file, "--to", other, code=1)


def test_old_letters_are_deleted_dry_first_and_nothing_but_letters(served: Deployment) -> None:
    name = served.name("old")
    served.write("old", "first", "second")
    first = served.letters("old", 2)
    between_ms = first[-1].timestamp()[1] + 1
    until(lambda: broker_now_ms() > between_ms, "another millisecond")
    served.write("old", "third")
    served.letters("old", 3)
    dry = dlq(served, "purge", name, "--until", str(between_ms))
    assert "Nothing was deleted. With --yes, 2 letters are deleted." in dry
    assert [row["letters"] for row in rows(dlq(served, "ls", name, "--json"))] == [3]
    (row,) = rows(dlq(served, "purge", name, "--until", str(between_ms), "--yes", "--json"))
    assert (row["topic"], row["partition"], row["from"], row["to"]) == (f"dlq.{name}", 0, 0, 1)
    assert [one["value"] for one in rows(dlq(served, "show", name, "--json"))] == ["third"]
    assert "no letters" in dlq(served, "purge", name, "--until", str(between_ms))
    other = f"lapse.events.{name}"
    assert "is no dead letter" in dlq(served, "purge", other, "--until", "0s", "--yes", code=1)


@pytest.mark.feature("C3", "C30")
@pytest.mark.parametrize("ahead_s", [3_600, -3_600])
def test_how_long_ago_and_deadlines_go_by_the_brokers_clock(
    served: Deployment, ahead_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command runs on a machine whose clock is wrong by an hour."""
    name = served.name("given_up")
    before = len(rows(dlq(served, "show", name, "--json")))
    served.write("given_up", "1")
    with served.subscriber("given_up") as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        delivery.expire()
    count = len(served.letters("given_up", before + 1))
    right, right_ns = time.time, time.time_ns

    def wrong(*arguments: str) -> str:
        with monkeypatch.context() as clock:
            clock.setattr(time, "time", lambda: right() + ahead_s)
            clock.setattr(time, "time_ns", lambda: right_ns() + ahead_s * 1_000_000_000)
            printed = dlq(served, *arguments)
        assert "Warning" not in printed
        return printed

    assert len(rows(wrong("show", name, "--since", "20m", "--json"))) == count
    assert not rows(wrong("show", name, "--until", "20m", "--json"))
    (planned,) = rows(wrong("redrive", name, "--json"))
    assert (planned["letters"], planned["deadline_passed"]) == (count, 0)
    (late,) = rows(wrong("redrive", name, "--json", "--since", "20m"))
    assert late["letters"] == count
    assert "no letters" in wrong("purge", name, "--until", "20m")
    assert f"With --yes, {count_text(count, 'letter')} {'is' if count == 1 else 'are'} deleted." in wrong(
        "purge", name, "--until", "0s"
    )


@pytest.mark.feature("D5", "Q23")
def test_a_redrive_reads_each_topic_with_definitions_once(served: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(connection: Connection, topics: Mapping[str, int]) -> Iterator[Message]:
        read.extend(topics)
        return span(connection, topics)

    monkeypatch.setattr(definitions, "span", counted)
    defined = topic.definitions(served.name("app"))
    create(served.connection.admin(), *(NewTopic(one, 1, 1) for one in (defined, f"{defined}.commands")))
    for to in ((), ("--to", served.name("orders"))):
        read.clear()
        dlq(served, "redrive", served.name("given_up"), *to)
        assert defined in read
        assert len(read) == len(set(read))


@pytest.mark.feature("C75", "C54")
def test_a_redriven_letter_counts_as_settled_in_queues_over_its_topic(served: Deployment) -> None:
    """In the one that is called like the topic, and in one of lapse.toml; also what an earlier run had sent."""
    name, stems = served.name("given_back"), ("dlq.given_back", "desk")
    served.write("given_back", '{"n": 1}', '{"n": 2}', '{"n": 3}', key=b"k")
    until(lambda: [served.depth(stem)["depth"] for stem in stems] == [3, 3], "both have the letters")
    arguments = (name, "--yes", "--config", str(served.config))
    only = ("--filter", "/n < 3 AND HEADER('lapse-redriven-count') = '0'")
    assert "2 letters sent" in dlq(served, "redrive", *arguments, *only)
    until(lambda: served.depth("given_back")["depth"] == 0, "they have died again")
    # Left are the third, and the new letters of the two that were sent back.
    until(lambda: [served.depth(stem)["depth"] for stem in stems] == [3, 3], "what was sent has left both")
    with served.queue("desk") as queue:
        assert sorted(message.bookmark.rpartition(":")[2] for message in queue.peek()) == ["2", "3", "4"]
    # A run that was killed before it could tell them: the next one does, though it sends nothing.
    sending, beside = Known.of(served.connection), Known.of(served.connection)
    letters = DeadLetterReader(name, connection=served.connection)
    third = Choice(filter="/n = 3 AND HEADER('lapse-redriven-count') = '0'")
    lines = list(plan(letters, third, Target(), 0, sending))
    assert (
        send(
            lines, served.connection, letters=letters.topic, redriven=sending.redriven, queues=Nobody(served.connection)
        )
        == 1
    )
    # Another run had looked before, and sends only now. A look may also be too early for a commit just before it.
    late = plan(letters, third, Target(), 0, beside)
    assert (
        send(late, served.connection, letters=letters.topic, redriven=beside.redriven, queues=Nobody(served.connection))
        == 0
    )
    assert "0 letters sent" in dlq(
        served, "redrive", *arguments, "--filter", "/n = 3 AND HEADER('lapse-redriven-count') = '0'"
    )
    until(lambda: [served.depth(stem)["depth"] for stem in stems] == [3, 3], "the third has left, and has a new letter")
    with served.queue("desk") as queue:
        assert sorted(message.bookmark.rpartition(":")[2] for message in queue.peek()) == ["3", "4", "5"]
    # A copy, as a crash leaves it, of a letter that was sent.
    (first, *_) = served.tail(f"dlq.{name}").wait(6)
    write(served.servers, f"dlq.{name}", [first.value()], key=first.key(), headers=first.headers() or [])
    until(lambda: [served.depth(stem)["depth"] for stem in stems] == [4, 4], "both have the copy")
    assert "0 letters sent" in dlq(served, "redrive", *arguments, *only)
    until(lambda: [served.depth(stem)["depth"] for stem in stems] == [3, 3], "the copy has left both")


@pytest.mark.feature("C4", "C29")
def test_a_slow_redrive_stops_sending_to_a_queue_that_is_deleted_meanwhile(served: Deployment) -> None:
    """Nobody would take the records: they name the queue that lost them."""
    name = served.name("going")
    served.write("going", '{"n": 1}', '{"n": 2}')
    served.letters("going", 2)
    known = Known.of(served.connection)
    letters = DeadLetterReader(name, connection=served.connection)

    def refused() -> list[str]:
        return [line.refused for line in plan(letters, Choice(), Target(), 0, known)]

    assert refused() == ["", ""]
    with served.queue("going") as queue:
        queue.delete(force=True)
    until(lambda: refused() == ["no such entity"] * 2, "the letters of a deleted queue are refused")


@pytest.mark.feature("C75", "C61", "C14")
def test_a_redriven_letter_leaves_a_strict_queue_and_one_that_was_rewound(served: Deployment) -> None:
    """A rewind gives letters new names, and under strict leasing nobody but a holder can acknowledge them."""
    name, stems = served.name("come_again"), ("second_desk", "strict_desk")
    served.write("come_again", *(f'{{"n": {number}}}' for number in range(5)), key=b"k")

    def there(stem: str) -> list[str]:
        with served.queue(stem) as queue:
            return sorted(message.bookmark.rpartition(":")[2] for message in queue.peek())

    until(lambda: all(len(there(stem)) == 5 for stem in stems), "both have the letters")
    with served.subscriber("strict_desk") as subscriber:
        delivery = subscriber.receive(10)
        assert delivery is not None
        delivery.acknowledge()
    with served.queue("second_desk") as queue:
        queue.acknowledge([f"{served.name('dlq.come_again')}:0:{offset}" for offset in (0, 1, 4)])
    for stem in stems:
        with served.queue(stem) as queue:
            queue.rewind("beginning")
    assert there("second_desk") == ["0~1", "1~1", "2", "3", "4~1"]
    assert there("strict_desk") == ["0~1", "1", "2", "3", "4"]
    arguments = ("--yes", "--to", served.name("elsewhere"), "--config", str(served.config))
    assert "3 letters sent" in dlq(served, "redrive", name, *arguments, "--filter", "/n IN (0, 1, 2)")
    assert [there(stem) for stem in stems] == [["3", "4~1"], ["3", "4"]]
    # What a rewind brings back of letters that were sent before stays: somebody asked for it.
    for stem in stems:
        with served.queue(stem) as queue:
            assert queue.rewind("beginning", filter="/n = 0")["rewound"] == 1
    assert "0 letters sent" in dlq(served, "redrive", name, *arguments, "--filter", "/n = 0")
    assert [there(stem) for stem in stems] == [["0~2", "3", "4~1"], ["0~2", "3", "4"]]


class Nobody(LetterQueues):
    """Is killed before it can tell the queues."""

    def settle(self, letters: Iterable[DeadLetter], *, sent_now: bool = False) -> int:
        return 0
