"""Dead letters byte by byte, and events for everything that happens to a message."""

import struct

import pytest

from lapse.protocol.bookmark import Bookmark
from lapse.protocol.dead_letter import lapse_id
from lapse_client import DeadLetterReader, SowClient
from support.kafka.log import until
from support.processes.deployment import Deployment

QUEUES = {
    "bytes": {"expiration": "enabled"},
    "dropped": {"expiration": "1s", "dead_letter": False},
    "elsewhere": {"expiration": "1s", "dead_letter": "graveyard{}"},
    "some": {"expiration": "1s", "dead_letter_reasons": ["forced_expire", "invalid_lifetime"]},
    "purge-letters": {"dead_letter_reasons": ["purged"]},
    "told": {"expiration": "enabled", "lease_period": "60s"},
    "spread": {"expiration": "1s", "partitions": 3},
    "redriven": {"expiration": "1s"},
    "dead": {"expiration": "enabled"},
    "mourner": {"topics": ["dlq.dead{}"], "expiration": "enabled", "forward_to": "archive{}"},
    "archive": {"expiration": "enabled", "max_cancels": 1},
    "brief": {"topics": ["dlq.dead{}"], "expiration": "400ms"},
    "late": {"expiration": "300ms"},
    "dlq.late": {"max_cancels": 1},
}
LAPSE = {"sow": {"kept": {"topic": "dlq.dead{}", "expiration": "1h"}}}

KIP_1191 = {
    "__dlq.errors.topic",
    "__dlq.errors.partition",
    "__dlq.errors.offset",
    "__dlq.errors.group",
    "__dlq.errors.delivery.count",
    "__dlq.errors.message",
}
OURS = {
    "lapse-reasons",
    "lapse-cancel-count",
    "lapse-expires-at-ms",
    "lapse-expired-at-ms",
    "lapse-redriven-count",
    "lapse-id",
    "lapse-epoch",
}


@pytest.mark.feature("D2", "D3", "C26")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"key", b"value"),
        (None, b"\x00\xff\xfe binary \x80"),
        (b"", b""),
        (b"\xc3\x28", None),
        (b"k" * 1000, b"v" * 200_000),
    ],
    ids=["text", "binary", "empty", "null", "large"],
)
def test_a_letter_has_the_originals_bytes_and_headers_and_says_what_happened(
    served: Deployment, key: bytes | None, value: bytes | None
) -> None:
    """Key, value and foreign headers untouched and in order, repeated ones too; lifetimes renamed; nothing piled up."""
    own = [("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None), ("bin", b"\xff\x00"), ("ünï", b"code")]
    tail = served.tail(f"dlq.{served.name('bytes')}", from_end=True)
    (written,) = served.write("bytes", value, key=key, headers=[*own[:3], ("lapse-ttl-ms", b"300"), *own[3:]])
    (letter,) = tail.wait(1)
    assert letter.key() == key
    assert letter.value() == value
    headers = letter.headers() or []
    names = [name for name, _ in headers]
    lost_without = {"lapse-null-value"} if value is None else set()  # without it the payload would count as lost (C84)
    assert [item for item in headers if item[0] in {"a", "empty", "null", "bin", "ünï"}] == own
    assert set(names) == {name for name, _ in own} | KIP_1191 | OURS | {"lapse-original-ttl-ms"} | lost_without
    assert len([name for name in names if name != "a"]) == len(set(names)) - 1
    facts = {name: item.decode() for name, item in headers if name in KIP_1191 | OURS and item is not None}
    topic = served.name("bytes")
    assert facts == {
        "__dlq.errors.topic": topic,
        "__dlq.errors.partition": "0",
        "__dlq.errors.offset": str(written.offset),
        "__dlq.errors.group": topic,
        "__dlq.errors.delivery.count": "0",
        "__dlq.errors.message": "its lifetime ended",
        "lapse-reasons": "time_limit",
        "lapse-cancel-count": "0",
        "lapse-expires-at-ms": str(written.timestamp_ms + 300),
        "lapse-expired-at-ms": facts["lapse-expired-at-ms"],
        "lapse-redriven-count": "0",
        "lapse-id": f"{topic}/{topic}:0:{written.offset}/0",
        "lapse-epoch": facts["lapse-epoch"],
    }
    assert int(facts["lapse-epoch"]) > 0
    assert int(facts["lapse-expired-at-ms"]) >= written.timestamp_ms + 300


@pytest.mark.feature("D2", "D3", "D5", "C29")
def test_a_second_death_keeps_the_first_lifetime_and_overwrites_the_rest(served: Deployment) -> None:
    """A letter sent back and dead again: `lapse-original-…` of the first death stays, each header stands once.

    What was redriven for another queue is skipped, without a trace.
    """
    name = served.name("redriven")
    headers = [
        ("lapse-original-ttl-ms", b"77"),
        ("lapse-ttl-ms", b"200"),
        ("lapse-redriven-count", b"4"),
        ("lapse-id", b"old"),
        ("lapse-reasons", b"max_cancels"),
        ("__dlq.errors.topic", b"old"),
        ("__dlq.errors.message", b"old"),
    ]
    served.write("redriven", "not ours", headers=[("lapse-redrive-queue", b"another")])
    (written,) = served.write("redriven", "ours", headers=[*headers, ("lapse-redrive-queue", name.encode())])
    (letter,) = served.letters("redriven", 1)
    assert letter.value() == b"ours"
    names = [header for header, _ in letter.headers() or []]
    assert len(names) == len(set(names))
    facts = dict(letter.headers() or [])
    assert facts["lapse-original-ttl-ms"] == b"77"
    assert facts["lapse-reasons"] == b"time_limit"
    assert facts["__dlq.errors.topic"] == name.encode()
    assert facts["lapse-redriven-count"] == b"4"
    assert facts["lapse-id"] == lapse_id(name, Bookmark(name, 0, written.offset), 4).encode()
    assert "lapse-redrive-queue" not in facts


@pytest.mark.feature("D2", "L4", "L5", "L3")
def test_every_lifetime_header_is_renamed_so_that_nothing_expires_again(served: Deployment) -> None:
    tail = served.tail(f"dlq.{served.name('bytes')}", from_end=True)
    typed = struct.pack(">i", 200)
    served.write("bytes", "typed", headers=[("lapse-expire-time", typed), ("lapse-enqueue-at-ms", b"1")])
    served.write("bytes", "event", headers=[("ce_expirytime", b"2001-01-01T00:00:00Z"), ("ce_id", b"1")])
    letters = {letter.value(): dict(letter.headers() or []) for letter in tail.wait(2)}
    assert letters[b"typed"]["lapse-original-expire-time"] == typed
    assert letters[b"typed"]["lapse-original-enqueue-at-ms"] == b"1"
    assert letters[b"event"]["lapse-original-ce_expirytime"] == b"2001-01-01T00:00:00Z"
    assert letters[b"event"]["ce_id"] == b"1"
    for facts in letters.values():
        assert not {"lapse-expire-time", "lapse-enqueue-at-ms", "ce_expirytime", "lapse-ttl-ms"} & set(facts)


@pytest.mark.feature("D1", "D4")
def test_without_letters_the_event_remains(served: Deployment) -> None:
    (written,) = served.write("dropped", "x")
    (event,) = served.awaited("dropped", "expired")
    assert event.reasons == ("time_limit",)
    assert str(event.messages[0]) == served.bookmark("dropped", written)
    assert event.expires_at_ms == written.timestamp_ms + 1_000
    assert event.dead_letter_topic == ""


@pytest.mark.feature("D1")
def test_letters_go_to_the_topic_that_the_queue_names(served: Deployment) -> None:
    served.write("elsewhere", "x")
    assert [letter.value() for letter in served.tail(served.name("graveyard")).wait(1)] == [b"x"]
    (event,) = served.awaited("elsewhere", "dead_lettered")
    assert event.dead_letter_topic == served.name("graveyard")


@pytest.mark.feature("D1", "C22", "C25")
def test_only_the_listed_reasons_cause_a_letter(served: Deployment) -> None:
    """`time_limit` is not listed: dropped, with an event. `forced_expire` is."""
    served.write("some", "dies", headers=[("lapse-ttl-ms", b"1000")])
    (second,) = served.write("some", "forced")
    with served.queue("some") as queue:
        until(
            lambda: queue.expire([served.bookmark("some", second)], fault="of no use, not even later é")[0].settled,
            "the message",
        )
    (letter,) = served.letters("some", 1)
    assert letter.value() == b"forced"
    assert dict(letter.headers() or [])["__dlq.errors.message"] == "of no use, not even later é".encode()
    served.awaited("some", "expired")
    (event,) = served.awaited("some", "dead_lettered")
    assert event.detail == "of no use, not even later é"
    served.write("purge-letters", "x")
    with served.queue("purge-letters") as queue:
        until(lambda: queue.purge()["removed"] == 1, "the purge")
    assert [letter.value() for letter in served.letters("purge-letters", 1)] == [b"x"]


@pytest.mark.feature("C27", "D2")
def test_a_letter_stands_in_its_origins_partition(served: Deployment) -> None:
    for partition in range(3):
        served.write("spread", *(f"{partition}-{number}" for number in range(20)), partition=partition)
    letters = served.letters("spread", 60)
    for partition in range(3):
        mine = [letter.value() for letter in letters if letter.partition() == partition]
        assert mine == [f"{partition}-{number}".encode() for number in range(20)]


@pytest.mark.feature("D4", "Q8", "C13")
def test_every_step_of_a_messages_life_is_reported_with_its_counts(served: Deployment) -> None:
    """Subscribed, cancelled, lease returned, renewed, expired by request, acknowledged, paused: one event each."""
    written = served.write("told", "a", "b", "c")
    subscriber = served.subscriber("told", 3).start()
    a, b, c = (subscriber.receive(10) for _ in range(3))
    assert a is not None
    assert b is not None
    assert c is not None
    subscriber.settle("renew", [a], wait=True)
    subscriber.settle("cancel", [b], delay_ms=60_000, wait=True)
    subscriber.settle("acknowledge", [a], wait=True)
    subscriber.settle("expire", [c], wait=True)
    with served.queue("told") as queue:
        queue.pause()
        queue.resume()
        (result,) = queue.expire([served.bookmark("told", written[1])])
        assert result.settled
    served.write("told", "d")
    assert subscriber.receive(10) is not None
    subscriber.close()
    served.letters("told", 2)
    events = served.events("told")
    kinds = [event.event for event in events]
    for kind in ("subscribed", "renewed", "cancelled", "acknowledged", "paused", "resumed", "lease_returned"):
        assert kinds.count(kind) == 1, (kind, kinds)
    assert kinds.count("dead_lettered") == 2
    assert kinds.count("unsubscribed") == 1
    by_kind = {event.event: event for event in events}
    assert str(by_kind["acknowledged"].messages[0]) == served.bookmark("told", written[0])
    assert by_kind["acknowledged"].subscription == subscriber.name
    assert by_kind["acknowledged"].delivery_count == 1
    assert by_kind["cancelled"].cancel_count == 1
    forced = [event for event in events if event.event == "dead_lettered"]
    assert {event.reasons for event in forced} == {("forced_expire",)}
    assert {event.dead_letter_topic for event in forced} == {f"dlq.{served.name('told')}"}
    assert all(event.entity == served.name("told") and event.partition == 0 and event.epoch == 1 for event in events)
    instants = [event.at_ms for event in events]
    assert instants == sorted(instants)


@pytest.mark.feature("C54", "D2")
def test_letters_as_messages_have_the_default_lifetime_alone_and_their_letters_no_header_that_nobody_wrote(
    served: Deployment,
) -> None:
    """Where lifetimes are acted on, a letter's own deadline is history; a default counts from the letter's arrival."""
    served.write("dead", "x", key=b"x", headers=[("lapse-ttl-ms", b"200"), ("lapse-message-id", b"same")])
    served.write("dead", "y", key=b"y", headers=[("lapse-ttl-ms", b"200"), ("lapse-message-id", b"other")])
    first = served.letters("dead", 2)
    # What other programs write says the same in their own headers, and copies the producer's beside them.
    foreign = [("__streams.errors.topic", b"t"), ("lapse-ttl-ms", b"1"), ("lapse-message-id", b"same")]
    served.write("dlq.dead", "z", key=b"z", headers=foreign)
    with served.subscriber("archive", 1) as subscriber:
        for value in (b"x", b"y", b"z"):
            delivery = subscriber.receive(15)
            assert delivery is not None
            assert (delivery.value, delivery.expires_at_ms) == (value, None)
            delivery.cancel()
            again = subscriber.receive(15)
            assert again is not None
            again.cancel()
    for letter in served.letters("archive", 3):
        facts = dict(letter.headers() or [])
        assert len(facts) == len(letter.headers() or [])
        assert facts["lapse-reasons"] == b"max_cancels"
        if letter.value() != b"z":
            assert {name for name in facts if name.startswith("lapse-original-")} == {
                "lapse-original-ttl-ms",
                "lapse-original-message-id",
            }
            assert facts["lapse-original-ttl-ms"] == b"200"
            deadlines = {one.value(): dict(one.headers() or [])["lapse-expires-at-ms"] for one in first}
            assert facts["lapse-first-expires-at-ms"] == deadlines[letter.value()]
    for letter in served.letters("brief", 3):
        facts = dict(letter.headers() or [])
        if letter.value() == b"x":
            assert int(facts["lapse-expires-at-ms"]) == first[0].timestamp()[1] + 400
            assert {name for name in facts if name.startswith("lapse-original-")} == {"lapse-original-ttl-ms"}
            assert facts["lapse-original-ttl-ms"] == b"200"
    with SowClient(served.name("kept"), connection=served.connection) as client:
        until(lambda: {one.key for one in client.query()} == {b"x", b"y", b"z"}, "the letters as records")
        own_default = [one.expires_at_ms == one.timestamp_ms + 3_600_000 for one in client.query()]
        assert own_default == [True] * 3


@pytest.mark.feature("C54", "D1")
def test_a_dead_letter_topic_is_a_queue_in_one_line(served: Deployment) -> None:
    """A queue of the topic's name hands its letters out; its own letters go to a topic of their own."""
    served.write("late", "a", "b")
    served.letters("late", 2)
    with served.subscriber("dlq.late", 1) as subscriber:
        first = subscriber.receive(15)
        assert first is not None
        assert dict(first.headers)["lapse-reasons"] == b"time_limit"
        first.acknowledge()
        for _ in range(2):
            second = subscriber.receive(15)
            assert second is not None
            assert second.value == b"b"
            second.cancel()
    (letter,) = served.letters("dlq.late", 1)
    assert (letter.value(), dict(letter.headers() or [])["lapse-reasons"]) == (b"b", b"max_cancels")
    for name, count in (("late", 2), ("dlq.late", 2), ("dlq.dlq.late", 1)):
        assert len(list(DeadLetterReader(served.name(name), connection=served.connection))) == count, name
