"""The authorizer: who gets in, what they may do there, and that both machines go by it (X4)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.entitlement import Entitlement, Right
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import QueueSettings
from lapse.core.shard.retirement import ShardMessage, ShardMessageKind
from lapse.core.used_signature import VALID_MS
from lapse.protocol import signature
from lapse.protocol.command import CommandError
from lapse.runtime.authorization.command_authorizer import CommandAuthorizer, Denied, Guard
from lapse.runtime.kafka.output import Output
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.shard import shard_message
from lapse.runtime.sow.machine import SowMachine
from lapse.runtime.sow.output import SowOutput
from support.kafka.packed import rows_of
from support.suite.event_loop import finished
from unit.core.sow.make import shard_of
from unit.runtime.queue import machine_alone
from unit.runtime.queue.machine_alone import Letters

pytestmark = pytest.mark.feature("X4")

T = 1_700_000_000_000
KEYS = {name: (f"the secret key of {name}".encode(),) for name in ("alice", "bob", "ops", "guest")}
WORKERS = (b"the secret key of workers",)
READ, PUBLISH, ADMIN = (frozenset({right}) for right in (Right.READ, Right.PUBLISH, Right.ADMIN))
ENTITLEMENTS = {
    "alice": Entitlement(READ | PUBLISH, "/desk = 'A'"),
    "bob": Entitlement(READ | PUBLISH, "/desk = 'B'"),
    "ops": Entitlement(READ | ADMIN),
}


class Payloads(machine_alone.Payloads):
    async def timestamp_ms(self, topic: str, partition: int, offset: int) -> int:
        return self.records[offset].timestamp


@dataclass
class Record:
    offset: int = 0
    timestamp: int = T
    key: bytes | None = None
    value: bytes | None = b"{}"
    headers: Sequence[tuple[str, bytes]] = field(default_factory=list)


def guard(kind: str = "queue", **entitlements: Entitlement) -> Guard:
    return Guard("orders", kind, KEYS, entitlements or ENTITLEMENTS, WORKERS, lambda: T)


def signed(user: str, name: str, at_ms: int = T, signed_at_ms: int | None = None, key: bytes = b"", **fields) -> Record:
    value = json.dumps({"command": name, "id": f"{name}-{at_ms}", **fields}).encode()
    when = at_ms if signed_at_ms is None else signed_at_ms
    headers = signature.headers(key or KEYS[user][0], user, "lapse.orders.commands", 0, when, value)
    return Record(timestamp=at_ms, value=value, headers=headers)


def why_not(authorizer: CommandAuthorizer, record: Record) -> Denied:
    with pytest.raises(Denied) as caught:
        authorizer.read(record)
    return caught.value


def test_a_signed_command_of_somebody_entitled_gets_in_under_his_name():
    admitted = CommandAuthorizer(guard(), 0).read(signed("alice", "subscribe", subscription="s"))
    assert (admitted.command.id, admitted.command.subscription) == (f"alice/subscribe-{T}", "alice/s")
    assert admitted.row_filter == "/desk = 'A'"
    assert CommandAuthorizer(guard(), 0).read(signed("ops", "purge")).row_filter is None


@pytest.mark.parametrize(
    ("record", "cause", "message", "answered"),
    [
        (Record(value=b'{"command": "depth", "id": "1"}'), "unsigned", "bears no user", "/1"),
        (
            Record(value=b'{"command": "depth", "id": "1"}', headers=[("lapse-user", b"alice")]),
            "unsigned",
            "alice bears no signature",
            "alice/1",
        ),
        (
            Record(value=b'{"command": "depth", "id": "1"}', headers=[("lapse-user", b"eve/../x")]),
            "unknown_user",
            "no user 'eve/../x'",
            "/1",
        ),
        (signed("alice", "depth", key=b"x" * 32), "signature", "the signature is not alice's", f"alice/depth-{T}"),
        (signed("alice", "depth", T, T - VALID_MS - 1), "stale", "signed 120 s before", f"alice/depth-{T}"),
        (signed("alice", "depth", T, T + VALID_MS + 1), "stale", "signed -121 s before", f"alice/depth-{T}"),
        (
            signed("alice", "pause"),
            "entitlement",
            "queue orders: pause takes the entitlement admin; alice has publish, read",
            f"alice/pause-{T}",
        ),
        (signed("guest", "depth"), "entitlement", "guest has nothing there", f"/depth-{T}"),
        (signed("guest", "frobnicate"), "entitlement", "guest has nothing there", f"/frobnicate-{T}"),
    ],
)
@pytest.mark.feature("X7")
def test_everybody_else_is_refused_with_the_reason(record, cause, message, answered):
    authorizer = CommandAuthorizer(guard(), 0)
    denied = why_not(authorizer, record)
    assert message in str(denied)
    assert "orders" in str(denied)
    assert (denied.cause, denied.id) == (cause, answered)
    assert authorizer.denied == {cause: 1}


def test_what_is_no_command_is_refused_to_its_sender_and_a_stranger_learns_nothing_of_it():
    authorizer = CommandAuthorizer(guard(), 0)
    record = signed("alice", "depth", top_n=-1)
    with pytest.raises(CommandError, match="top_n") as caught:
        authorizer.read(record)
    assert caught.value.id == f"alice/depth-{T}"
    record.headers = ()
    assert "bears no user" in str(why_not(authorizer, record))


@pytest.mark.feature("C1")
def test_a_copied_command_counts_once_also_behind_a_take_over():
    authorizer = CommandAuthorizer(guard(), 0)
    record = signed("ops", "purge")
    authorizer.read(record)
    copy = Record(1, T + VALID_MS, None, record.value, record.headers)
    assert why_not(authorizer, copy).cause == "repeated"
    successor = CommandAuthorizer(guard(), 0)
    successor.remember([Record(), record])
    assert why_not(successor, copy).cause == "repeated"
    elsewhere = CommandAuthorizer(guard(), 1)
    assert why_not(elsewhere, copy).cause == "signature", "nor does it on another shard"
    successor.read(signed("ops", "purge", T + 1))


@pytest.mark.feature("X5")
def test_no_key_is_shown():
    assert "secret key" not in repr(guard())


@pytest.mark.feature("C4")
def test_words_between_shards_are_sealed():
    authorizer, other = CommandAuthorizer(guard(), 0), CommandAuthorizer(guard(), 1)
    said = ShardMessage(kind=ShardMessageKind.DECIDED, id=1, sender=1, to=0, force=True)
    (output,) = shard_message.written("orders", [said], other)
    record = Record(0, T, output.key, output.value, output.headers)
    assert shard_message.read("orders", Record(0, T, output.key, output.value), authorizer) is None
    by_alice = signature.headers(KEYS["alice"][0], "", "lapse.orders.commands", 0, T, output.value)
    assert shard_message.read("orders", Record(0, T, output.key, output.value, by_alice), authorizer) is None
    assert shard_message.read("orders", record, authorizer) == said
    assert shard_message.read("orders", record, authorizer) is None, "once"
    assert authorizer.denied == {"shard_message": 3}
    assert shard_message.read("orders", Record(0, T, output.key, output.value)) == said, "without users"


# The machines


def queue(payloads: Payloads | None = None, journal: dict | None = None, keeper: Guard | None = None) -> QueueMachine:
    settings = QueueSettings(name="orders", lease_ms=10_000, dead_letter_topic="dlq.orders")
    kept = {key: value for key, value in (journal or {}).items() if value is not None}
    output = QueueOutput("orders", 0, 1 if journal is None else 2, "dlq.orders", 1)
    one = QueueMachine(
        settings, restore(kept.items()), 1 if journal is None else 2, payloads or Payloads(), output, "orders"
    )
    one.guarded(CommandAuthorizer(keeper or guard(), 0))
    one.take_over(T)
    return one


def desks(one: QueueMachine, letters: str) -> None:
    one.arrive("orders", 0, [Record(at, value=b'{"desk": "%s"}' % desk.encode()) for at, desk in enumerate(letters)])


def answers_by_topic(effects) -> dict[str, list[tuple[str, dict]]]:
    """By topic: kind of each record with its headers, or an answer's body."""
    found: dict[str, list[tuple[str, dict]]] = {}
    for some in [*effects.before, *effects.after]:
        rows = [(some.key, some.value, some.headers)] if isinstance(some, Output) else rows_of(some.records)
        for _, value, headers in rows if "deliveries" in some.topic else ():
            fields = {name: text.decode() for name, text in headers}
            kind = fields.pop("lapse-kind")
            found.setdefault(some.topic, []).append((kind, json.loads(value) if kind == "answer" else fields))
    return found


def answer(effects, user: str = "alice") -> dict:
    (body,) = [body for kind, body in answers_by_topic(effects)[f"lapse.orders.deliveries.{user}"] if kind == "answer"]
    return body


def finish(one):
    return finished(one.finish(Letters()))


def deliver(one: QueueMachine, at_ms: int = T):
    """Deliver all that can be, and return the last step that had something to say."""
    journal, said = {}, None
    while one.deliver(at_ms) or said is None:
        said = finish(one)
        journal |= dict(said.journal)
    last = finish(one)
    last.before, last.after = said.before + last.before, said.after + last.after
    last.journal = [*journal.items(), *last.journal]
    return last


def test_each_user_gets_what_matches_his_filter_on_his_own_topic_and_may_choose_any_name():
    one = queue()
    desks(one, "ABAB")
    for user in ("alice", "bob"):
        one.command(signed(user, "subscribe", subscription="s", max_backlog=9))
    found = answers_by_topic(deliver(one))
    assert set(found) == {"lapse.orders.deliveries.alice", "lapse.orders.deliveries.bob"}
    for user, bookmarks in (("alice", ["orders:0:0", "orders:0:2"]), ("bob", ["orders:0:1", "orders:0:3"])):
        rows = found[f"lapse.orders.deliveries.{user}"]
        assert [body["id"] for kind, body in rows if kind == "answer"] == [f"subscribe-{T}"]
        delivered = [body for kind, body in rows if kind == "delivery"]
        assert [body["lapse-bookmark"] for body in delivered] == bookmarks
        assert {body["lapse-subscription"] for body in delivered} == {"s"}


@pytest.mark.feature("Q8")
def test_a_settlement_touches_what_its_user_holds_or_may_see_and_knows_nothing_else():
    one = queue()
    desks(one, "ABAB")
    one.command(signed("alice", "subscribe", subscription="s", max_backlog=1))
    deliver(one)
    one.command(signed("bob", "acknowledge", T + 1, subscription="s", bookmarks=["orders:0:0-3"]))
    settled = answer(finish(one), "bob")["settlements"]
    assert settled == [
        {"bookmarks": "orders:0:0", "result": "unknown"},
        {"bookmarks": "orders:0:1", "result": "settled"},
        {"bookmarks": "orders:0:2", "result": "unknown"},
        {"bookmarks": "orders:0:3", "result": "settled"},
    ]
    assert one.shard.depth()["leased"] == 1
    assert not one._waiting
    one.command(signed("alice", "acknowledge", T + 2, subscription="s", bookmarks=["orders:0:0"]))
    assert not one._waiting, "what a user holds needs no look at its payload"
    assert answer(finish(one))["settlements"] == [{"bookmarks": "orders:0:0", "result": "settled"}]
    assert one.shard.depth()["depth"] == 1


@pytest.mark.feature("Q8")
@pytest.mark.parametrize("asked", ["TRUE", "/desk = 'B'", "/desk IN ('A', 'B')"])
def test_a_settlement_by_filter_goes_no_further_than_the_entitlement(asked):
    one = queue()
    desks(one, "ABAB")
    one.command(signed("alice", "expire", filter=asked))
    counts = answer(finish(one))["counts"]
    assert counts["settled"] == (0 if asked == "/desk = 'B'" else 2)
    left = [shown.offset for shown in one.shard.peek(0, 9)]
    assert left == ([0, 1, 2, 3] if asked == "/desk = 'B'" else [1, 3])


ranges = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)
settlements = st.tuples(
    st.sampled_from(["acknowledge", "cancel", "expire"]),
    st.lists(ranges, min_size=1, max_size=3) | st.sampled_from(["TRUE", "/desk = 'B'", "NOT /desk = 'A'"]),
    st.booleans(),
)


@pytest.mark.feature("Q8")
@given(st.text("AB", min_size=1, max_size=9), st.integers(0, 9), st.lists(settlements, max_size=5))
def test_whatever_a_user_settles_others_messages_stay_as_they_are(letters, held, asked):
    """Bob holds some messages; Alice settles by ranges and filters, with a subscription of the same name as Bob's."""
    one = queue()
    desks(one, letters)
    for user in ("bob", "alice"):
        one.command(signed(user, "subscribe", subscription="s", max_backlog=held if user == "bob" else 2))
    deliver(one)

    def of_bob() -> list:
        return [shown for shown in one.shard.peek(0, 99) if letters[shown.offset] == "B"]

    before = of_bob()
    for number, (name, what, named) in enumerate(asked):
        fields = {"filter": what} if isinstance(what, str) else {"bookmarks": [f"orders:0:{a}-{b}" for a, b in what]}
        one.command(signed("alice", name, T + number, **fields, **({"subscription": "s"} if named else {})))
        answered = answer(finish(one))
        assert answered["status"] == "ok"
        for settled in answered["settlements"]:
            first, _, last = settled["bookmarks"].split(":")[2].partition("-")
            if settled["result"] != "unknown":
                offsets = range(int(first), int(last or first) + 1)
                assert {letters[offset] for offset in offsets} == {"A"}
    assert of_bob() == before


@pytest.mark.feature("Q15", "C82")
def test_peek_and_depth_show_and_count_what_the_user_may_see():
    one = queue()
    desks(one, "ABABA")
    one.arrive("orders", 0, [Record(5, value=b'{"desk": "B"}', headers=[("lapse-enqueue-at-ms", b"%d" % (T + 9_000))])])
    one.command(signed("bob", "subscribe", subscription="s"))
    deliver(one)
    one.command(signed("alice", "sow", T + 1))
    shown = answer(finish(one))
    assert [message["bookmark"] for message in shown["messages"]] == ["orders:0:0", "orders:0:2", "orders:0:4"]
    assert (shown["counts"]["depth"], shown["counts"]["leased"]) == (3, 0)
    one.command(signed("bob", "depth", T + 2))
    counts = answer(finish(one), "bob")["counts"]
    seen = {"available": 1, "leased": 1, "delayed": 0, "transferring": 0, "depth": 2}
    assert counts == {**seen, "scheduled": 1, "held": 0, "unconfirmed": 0}
    one.command(signed("ops", "depth", T + 3))
    assert answer(finish(one), "ops")["counts"]["depth"] == 5
    one.command(signed("ops", "depth", T + 4, filter="/desk = 'A'"))
    assert answer(finish(one), "ops")["counts"]["depth"] == 3
    one.command(signed("alice", "depth", T + 5, top_n=0))
    assert not one._waiting, "to know where to publish nothing is read"
    assert answer(finish(one))["publish_target"] == "orders"


@pytest.mark.feature("X7")
def test_a_faulty_filter_is_shown_as_its_user_wrote_it():
    one = queue()
    for name in ("subscribe", "sow", "acknowledge"):
        one.command(signed("alice", name, subscription="s", filter="TRUE) OR (TRUE"))
        error = answer(finish(one))["error"]
        assert f"{name}: filter: expression, line 1, column 5" in error
        assert "desk" not in error


def test_a_denied_command_changes_nothing_and_is_answered_where_its_sender_reads():
    one = queue()
    desks(one, "AB")
    for record in (signed("alice", "purge"), signed("bob", "pause"), signed("bob", "delete", force=True)):
        one.command(record)
    one.command(signed("bob", "resume", answer="none"))
    one.command(Record(value=b'{"command": "purge", "id": "x"}'))
    effects = finish(one)
    assert not one.shard.state.paused
    assert one.shard.depth()["depth"] == 2
    found = answers_by_topic(effects)
    assert [body["command"] for _, body in found["lapse.orders.deliveries.bob"]] == ["pause", "delete"]
    assert [body["id"] for _, body in found["lapse.orders.deliveries"]] == ["x"]
    assert one.figures.denied == {"entitlement": 4, "unsigned": 1}
    assert one.figures.refused_commands == 5


@pytest.mark.feature("Q5", "C20")
def test_subscriptions_stay_over_a_take_over_unless_their_entitlement_changed():
    payloads, one = Payloads(), None
    one = queue(payloads)
    desks(one, "ABA")
    for user in ("alice", "bob", "ops"):
        one.command(signed(user, "subscribe", subscription="s", heartbeat_timeout_ms=10**6))
    journal = dict(deliver(one).journal)
    assert one.shard.depth()["leased"] == 3
    entitlements = {**ENTITLEMENTS, "alice": Entitlement(READ, "/desk = 'C'")}
    del entitlements["ops"]
    after = queue(payloads, journal, guard(**entitlements))
    assert set(after.shard.state.subscriptions) == {"bob/s"}
    assert after.shard.depth()["leased"] == 1, "leases return at once"
    unchanged = queue(payloads, journal)
    assert set(unchanged.shard.state.subscriptions) == {"alice/s", "bob/s", "ops/s"}


def sow(journal=None) -> SowMachine:
    shard = shard_of()
    if journal is not None:
        shard.restore(journal.items())
    one = SowMachine(shard, SowOutput("orders", 0, 1, "", 1), Payloads().one)
    one.guarded(CommandAuthorizer(guard("SOW topic"), 0))
    one.take_over(T)
    return one


def put(one: SowMachine, offset: int, key: bytes, desk: str, at_ms: int = T) -> None:
    one.arrive("orders", 0, [Record(offset, at_ms, key, b'{"desk": "%s"}' % desk.encode())])


@pytest.mark.feature("S5", "S6", "S7")
def test_a_sow_topic_shows_each_user_his_records_on_his_own_topic():
    one = sow()
    for offset, (key, desk) in enumerate(((b"1", "A"), (b"2", "B"), (b"3", "A"))):
        put(one, offset, key, desk)
    one.command(signed("alice", "sow"))
    one.command(signed("bob", "sow_and_subscribe", subscription="s"))
    while one.deliver(T):
        pass
    one.command(signed("alice", "sow_and_subscribe", T + 1, subscription="s"))
    while one.deliver(T + 1):
        pass
    found = answers_by_topic(finish(one))
    assert set(found) == {"lapse.orders.deliveries.alice", "lapse.orders.deliveries.bob"}
    of_alice, of_bob = found["lapse.orders.deliveries.alice"], found["lapse.orders.deliveries.bob"]
    assert {fields["lapse-bookmark"] for kind, fields in of_alice if kind == "sow"} == {"orders:0:0", "orders:0:2"}
    ids = [fields["lapse-command-id"] for kind, fields in of_alice if kind == "sow"]
    assert ids == [f"sow-{T}"] * 2 + [f"sow_and_subscribe-{T + 1}"] * 2
    assert [fields["lapse-subscription"] for kind, fields in of_bob if kind == "sow"] == ["s"]

    put(one, 3, b"1", "B", T + 2)
    found = answers_by_topic(finish(one))
    ((kind, fields),) = found["lapse.orders.deliveries.alice"]
    assert (kind, fields["lapse-operation"], fields["lapse-subscription"]) == ("oof", "no_longer_matches", "s")
    assert [kind for kind, _ in found["lapse.orders.deliveries.bob"]] == ["publish"]

    one.command(signed("alice", "depth", T + 3))
    while one.deliver(T + 3):
        pass
    one.command(signed("alice", "sow_delete", T + 4, filter="TRUE"))
    one.command(signed("alice", "delete", T + 5, force=True))
    bodies = [body for _, body in answers_by_topic(finish(one))["lapse.orders.deliveries.alice"] if "status" in body]
    assert bodies[0]["counts"] == {"records": 1, "scheduled": 0}
    assert bodies[1]["counts"]["removed"] == 1
    assert "SOW topic orders: delete takes the entitlement admin" in bodies[2]["error"]
    assert len(one.shard.state.entries) == 2


@pytest.mark.feature("S3")
def test_who_may_not_see_a_key_cannot_delete_it_before_it_comes():
    one = sow()
    one.command(signed("alice", "sow_delete", T + 10, keys=["1"]))
    put(one, 0, b"1", "B", T + 5)
    assert len(one.shard.state.entries) == 1
    one.command(signed("ops", "depth", T + 11))
    assert answer(finish(one), "ops")["counts"]["records"] == 1


def test_sow_subscriptions_end_with_their_entitlement():
    one = sow()
    for user in ("alice", "ops"):
        one.command(signed(user, "subscribe", subscription="s", heartbeat_timeout_ms=10**6))
    journal = {key: value for key, value in finish(one).journal if value is not None}
    assert {two.id for two in sow(journal).shard.subscriptions()} == {"alice/s", "ops/s"}
    shard = shard_of()
    shard.restore(journal.items())
    after = SowMachine(shard, SowOutput("orders", 0, 2, "", 1), Payloads().one)
    after.guarded(CommandAuthorizer(guard("SOW topic", alice=Entitlement(READ)), 0))
    after.take_over(T)
    assert after.shard.subscriptions() == []
    assert isinstance(finish(after).before[0], Output)
