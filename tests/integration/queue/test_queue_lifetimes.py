"""Lifetimes on a queue: a real broker, a real worker, and any producer that can set a header."""

import struct
from datetime import UTC, datetime

import pytest

from support.kafka.created_topic import stamp_by_producers
from support.kafka.log import Headers, texts, until
from support.processes.deployment import Deploy, Deployment, broker_now_ms

ENABLED = {"expiration": "enabled"}
QUEUES = {
    "own": ENABLED,
    "idle": ENABLED,
    "default": {"expiration": "2s"},
    "ceiling": {"expiration": "2s", "expiration_model": "ceiling"},
    "off": {},
    "invalid": ENABLED,
    "scheduled": ENABLED,
    "leased": {"expiration": "enabled", "lease_period": "30s"},
    "two-topics": {"expiration": "10m", "topics": ["short{}", "long{}"], "topic_expirations": {"short{}": "2s"}},
    "many": ENABLED,
    "created": {"expiration": "2s", "topics": ["stamped{}"]},
    "once": {"expiration": "10m", "topics": ["stated{}", "unstated{}"]},
    "again": {"expiration": "10m", "topics": ["stated{}"]},
}
LAPSE = {"topics": {"stated": {"expiration": "2s"}}}


def ttl(ms: int) -> Headers:
    return [("lapse-ttl-ms", str(ms).encode())]


def rfc3339(ms: int) -> bytes:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").encode()


@pytest.mark.feature("L1", "L2", "L10", "L11", "L14", "Q10", "D2")
def test_an_idle_queue_expires_a_message_on_time_without_consumers(served: Deployment) -> None:
    """The deadline is arrival plus lifetime to the millisecond; the letter follows it closely, never precedes it."""
    (written,) = served.write("idle", "dies", headers=ttl(2_000))
    (letter,) = served.letters("idle", 1)
    facts = texts(letter)
    assert facts["lapse-expires-at-ms"] == str(written.timestamp_ms + 2_000)
    assert facts["lapse-reasons"] == "time_limit"
    assert int(facts["lapse-expired-at-ms"]) >= written.timestamp_ms + 2_000
    late_ms = letter.timestamp()[1] - written.timestamp_ms - 2_000
    assert 0 <= late_ms < 2_000  # 100 ms on a quiet machine; this one is shared
    assert served.depth("idle")["depth"] == 0


@pytest.mark.feature("L2", "L3", "L4", "L6")
def test_every_way_to_state_a_lifetime_gives_the_deadline_that_it_means(served: Deployment) -> None:
    """Relative, absolute, MQe's typed field in both widths, and CloudEvents; 0 = never; nothing = never."""
    now_ms = broker_now_ms()
    far_ms = now_ms + 3_600_000
    absolute: list[Headers] = [
        [("lapse-expires-at-ms", str(far_ms).encode())],
        [("lapse-expire-time", struct.pack(">q", far_ms))],
        [("ce_expirytime", rfc3339(far_ms))],
        [("ce_expirytime", rfc3339(far_ms)), ("lapse-expires-at-ms", str(far_ms).encode())],
    ]
    relative: list[Headers] = [ttl(60_000), [("lapse-expire-time", struct.pack(">i", 60_000))]]
    never: list[Headers] = [ttl(0), [("lapse-expire-time", struct.pack(">i", 0))], []]
    expected: dict[str, int | None] = {}
    for headers in absolute:
        expected[served.bookmark("own", served.write("own", "x", headers=headers)[0])] = far_ms
    for headers in relative:
        (written,) = served.write("own", "x", headers=headers)
        expected[served.bookmark("own", written)] = written.timestamp_ms + 60_000
    for headers in never:
        expected[served.bookmark("own", served.write("own", "x", headers=headers)[0])] = None
    with served.queue("own") as queue:
        until(lambda: queue.depth()["depth"] == len(expected), "all messages in the queue")
        assert {message.bookmark: message.expires_at_ms for message in queue.peek()} == expected


@pytest.mark.feature("L3", "L11", "C7")
def test_a_past_instant_expires_on_arrival(served: Deployment) -> None:
    """Absolute 0 is 1970, not never; the message is never in the queue."""
    headers: list[Headers] = [
        [("lapse-expires-at-ms", b"0")],
        [("lapse-expire-time", struct.pack(">q", 0))],
        [("ce_expirytime", b"1999-12-31T23:59:59Z")],
    ]
    before = served.tail(f"dlq.{served.name('many')}")
    before.drain()
    had = len(before.records)
    for one in headers:
        served.write("many", "late", headers=one)
    letters = before.wait(had + 3)[had:]
    assert [texts(letter)["lapse-expires-at-ms"] for letter in letters] == ["0", "0", "946684799000"]
    assert {texts(letter)["__dlq.errors.delivery.count"] for letter in letters} == {"0"}


@pytest.mark.feature("L6", "L7")
def test_override_lets_the_message_win_and_ceiling_lowers_it(served: Deployment) -> None:
    """Default 2 s. Override: an hour stays an hour, 0 is never. Ceiling: both become 2 s, a shorter one stays."""
    for queue in ("default", "ceiling"):
        served.write(queue, "hour", headers=ttl(3_600_000))
        served.write(queue, "never", headers=ttl(0))
        served.write(queue, "none")
        served.write(queue, "short", headers=ttl(1_000))
    assert {letter.value() for letter in served.letters("default", 2)} == {b"none", b"short"}
    assert {letter.value() for letter in served.letters("ceiling", 4)} == {b"hour", b"never", b"none", b"short"}
    with served.queue("default") as queue:
        left = queue.peek()
    assert [message.expires_at_ms is None for message in left] == [False, True]


@pytest.mark.feature("L8", "Q2")
def test_the_shorter_of_topic_and_queue_holds(served: Deployment) -> None:
    """The queue says 10 minutes, one of its topics 2 s: only that topic's message expires, the other keeps 10 min."""
    (dies,) = served.write("short", "dies")
    (stays,) = served.write("long", "stays")
    (letter,) = served.letters("two-topics", 1)
    assert letter.value() == b"dies"
    assert texts(letter)["lapse-expires-at-ms"] == str(dies.timestamp_ms + 2_000)
    with served.queue("two-topics") as queue:
        (left,) = queue.peek()
    assert left.bookmark == served.bookmark("long", stays)
    assert left.expires_at_ms == stays.timestamp_ms + 600_000


@pytest.mark.feature("L8")
def test_the_lifetime_of_a_topic_counts_in_every_queue_that_reads_it(served: Deployment) -> None:
    """`[topic.stated]` says 2 s, the queues 10 minutes: the topic's messages expire in both, others in neither."""
    (dies,) = served.write("stated", "dies")
    (stays,) = served.write("unstated", "stays")
    for stem in ("once", "again"):
        (letter,) = served.letters(stem, 1)
        assert letter.value() == b"dies"
        assert texts(letter)["lapse-expires-at-ms"] == str(dies.timestamp_ms + 2_000)
    with served.queue("once") as queue:
        (left,) = queue.peek()
    assert left.expires_at_ms == stays.timestamp_ms + 600_000


@pytest.mark.feature("L1", "C6")
def test_on_a_topic_with_the_producers_timestamps_those_count(served: Deployment) -> None:
    """With `CreateTime` a record stamped a minute ago is expired on arrival, one stamped ahead lives longer."""
    stamp_by_producers(served.servers, served.name("stamped"))
    now_ms = broker_now_ms()
    served.write("stamped", "ahead", timestamp_ms=now_ms + 60_000)
    served.write("stamped", "behind", timestamp_ms=now_ms - 60_000)
    (letter,) = served.letters("created", 1)
    assert letter.value() == b"behind"
    assert texts(letter)["lapse-expires-at-ms"] == str(now_ms - 58_000)
    with served.queue("created") as queue:
        (left,) = queue.peek()
    assert left.expires_at_ms == now_ms + 62_000
    assert f"{served.name('created')}: {left.bookmark} is stamped " in served.workers[0].text


@pytest.mark.feature("L12", "X7", "C7", "C8", "D2")
def test_an_unreadable_lifetime_goes_to_the_letters_with_its_fault_and_all_else_flows(served: Deployment) -> None:
    """Each fault is told in words; the messages around it are delivered in order."""
    bad: dict[bytes, Headers] = {
        b"word": [("lapse-ttl-ms", b"soon")],
        b"sign": [("lapse-ttl-ms", b"-1")],
        b"plus": [("lapse-ttl-ms", b"+5")],
        b"space": [("lapse-ttl-ms", b" 5")],
        b"empty": [("lapse-ttl-ms", b"")],
        b"null": [("lapse-ttl-ms", None)],
        b"long": [("lapse-ttl-ms", b"9" * 20)],
        b"overflow": [("lapse-ttl-ms", b"9223372036854775807")],
        b"arabic": [("lapse-ttl-ms", "٣".encode())],
        b"width": [("lapse-expire-time", b"\x00\x01\x02")],
        b"negative": [("lapse-expire-time", struct.pack(">i", -1))],
        b"date": [("ce_expirytime", b"tomorrow")],
        b"nullce": [("ce_expirytime", None)],
        b"two": [("lapse-ttl-ms", b"5000"), ("lapse-expires-at-ms", b"99999999999999")],
        b"twice": [("lapse-ttl-ms", b"5000"), ("lapse-ttl-ms", b"6000")],
        b"schedule": [("lapse-enqueue-at-ms", b"later")],
        b"binary": [("lapse-ttl-ms", b"\xff\xfe\x00")],
    }
    served.write("invalid", "first")
    for value, headers in bad.items():
        served.write("invalid", value, headers=headers)
    served.write("invalid", "last")
    letters = served.letters("invalid", len(bad))
    assert [letter.value() for letter in letters] == list(bad)
    for letter in letters:
        facts = dict(letter.headers() or [])
        assert facts["lapse-reasons"] == b"invalid_lifetime"
        assert len(facts["__dlq.errors.message"] or b"") > 10, letter.value()
        named = next(iter(bad[letter.value() or b""]))[0]
        original = "lapse-original-" + named.removeprefix("lapse-")
        assert original in facts, facts
        assert named not in facts
    with served.subscriber("invalid", 10) as subscriber:
        assert [subscriber.receive(10).value for _ in range(2)] == [b"first", b"last"]


@pytest.mark.feature("L5", "C11", "Q15", "Q8")
def test_a_scheduled_message_is_invisible_until_its_instant_and_its_lifetime_counts_from_there(
    served: Deployment,
) -> None:
    """Not in the depth, reported as scheduled; then delivered, with a deadline of instant plus lifetime."""
    at_ms = broker_now_ms() + 2_500
    (written,) = served.write(
        "scheduled", "later", headers=[("lapse-enqueue-at-ms", str(at_ms).encode()), *ttl(60_000)]
    )
    served.write("scheduled", "past", headers=[("lapse-enqueue-at-ms", b"1000")])
    with served.queue("scheduled") as queue:
        until(lambda: queue.depth()["scheduled"] == 1, "the scheduled message")
        assert queue.depth()["depth"] == 1
        (shown,) = [message for message in queue.peek() if message.state == "scheduled"]
        assert shown.bookmark == served.bookmark("scheduled", written)
        assert shown.until_ms == at_ms
        (refused,) = queue.acknowledge([shown.bookmark])
        assert refused.result == "scheduled"
    with served.subscriber("scheduled", 5) as subscriber:
        past, later = subscriber.receive(10), subscriber.receive(10)
        assert past is not None
        assert later is not None
        assert (past.value, later.value) == (b"past", b"later")
        assert later.expires_at_ms == at_ms + 60_000
        assert broker_now_ms() >= at_ms
        past.acknowledge()
        later.acknowledge()


@pytest.mark.feature("L11", "Q10", "C4")
def test_a_lease_protects_an_expired_message_until_it_ends(served: Deployment) -> None:
    """Settled in time under the lease: handled, no letter. Cancelled after the deadline: gone at once."""
    served.write("leased", "done", "returned", headers=ttl(2_000))
    with served.subscriber("leased", 2) as subscriber:
        done, returned = subscriber.receive(10), subscriber.receive(10)
        assert done is not None
        assert returned is not None
        until(lambda: broker_now_ms() > (returned.expires_at_ms or 0) + 300, "the deadline")
        assert served.depth("leased")["leased"] == 2
        subscriber.settle("acknowledge", [done], wait=True)
        (result,) = subscriber.settle("cancel", [returned], wait=True)
        assert result.settled
        (letter,) = served.letters("leased", 1)
        assert letter.value() == b"returned"
        assert texts(letter)["lapse-cancel-count"] == "1"
        assert texts(letter)["__dlq.errors.delivery.count"] == "1"
    assert served.depth("leased")["depth"] == 0


@pytest.mark.feature("L6", "L9", "L11", "C3", "C53")
def test_switched_off_keeps_messages_and_switched_on_acts_at_once(deploy: Deploy) -> None:
    """Disabled: an expired message is delivered like any other. Enabled by a restart: it leaves at once, by itself.

    That was decided once lifetimes were acted on, and the letter says when.
    """
    here = deploy({"off": {}}).apply()
    worker = here.worker().wait_for_shards(1)
    here.write("off", "a", "b", headers=ttl(500))
    with here.subscriber("off") as subscriber:
        first = subscriber.receive(10)
        assert first is not None
        until(lambda: broker_now_ms() > (first.expires_at_ms or 0) + 300, "the deadline")
        first.acknowledge()
        second = subscriber.receive(10)
        assert second is not None
        assert second.value == b"b"
        second.cancel()
    assert here.depth("off")["depth"] == 1
    assert worker.stop() == 0
    here.configure({"off": ENABLED})
    switched_ms = broker_now_ms()
    worker.start()
    (letter,) = here.letters("off", 1, 30)
    assert letter.value() == b"b"
    assert texts(letter)["lapse-reasons"] == "time_limit"
    assert int(texts(letter)["lapse-expires-at-ms"]) < switched_ms <= int(texts(letter)["lapse-expired-at-ms"])
    # Switched off again, what has a deadline stays.
    assert worker.stop() == 0
    here.configure({"off": {}})
    worker.start().wait_for_shards(1)
    here.write("off", "kept", headers=ttl(1))
    until(lambda: here.depth("off")["depth"] == 1, "the message in the queue")


@pytest.mark.feature("L11", "L9", "Q16")
def test_what_expires_while_nothing_runs_leaves_at_start_up_before_any_delivery(deploy: Deploy) -> None:
    """Both what the journal knew and what only the log held, without anyone asking; the live one is delivered."""
    here = deploy({"known": ENABLED, "unknown": ENABLED}).apply()
    worker = here.worker().wait_for_shards(2)
    journal = here.tail(f"{here.app_id}-{here.name('known')}-changelog")
    journal.drain()
    before = len(journal.records)
    here.write("known", "known", headers=ttl(2_000))
    journal.wait(before + 1)  # nothing is left to read, nobody has asked: only a timer can act
    worker.kill()
    here.write("unknown", "unknown", headers=ttl(1_000))
    (live,) = here.write("unknown", "live", headers=ttl(3_600_000))
    until(lambda: broker_now_ms() > live.timestamp_ms + 2_000, "the deadlines")
    worker.start()
    assert [letter.value() for letter in here.letters("known", 1, 40)] == [b"known"]
    assert [letter.value() for letter in here.letters("unknown", 1)] == [b"unknown"]
    with here.subscriber("unknown", 10) as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        assert delivery.value == b"live"
        assert delivery.expires_at_ms == live.timestamp_ms + 3_600_000
