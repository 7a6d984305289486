"""A queue shard's machine, without a broker: commands that wait for payloads keep their place in time (C1, C2, C40)."""

import asyncio
import json
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from lapse.core.generation import offset_of
from lapse.core.lifetime import Expiration
from lapse.core.queue import command as queue_command
from lapse.core.queue.journal.restored import Restored, restore
from lapse.core.queue.settings import Leasing, QueueSettings
from lapse.protocol import answer, event
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.letters.refusal import Refusal
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.shard import effort
from lapse.runtime.timers.clock import BY_THE_BROKER
from lapse.runtime.tp import TP
from support.kafka.packed import outputs_of
from support.suite.event_loop import finished


@dataclass
class Record:
    offset: int = 0
    timestamp: int = 1_000
    key: bytes | None = None
    value: bytes | None = b"{}"
    headers: list = field(default_factory=list)
    timestamp_type: int = BY_THE_BROKER


class Payloads:
    """The log behind the messages, of which some records are lost."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.log = self
        self.has_leader = True
        self.asked = 0

    async def offset_at(self, tps, instant_ms) -> dict[TP, int]:
        self.asked += 1
        if not self.has_leader:
            raise TimeoutError
        later = [one.offset for one in self.records.values() if one.timestamp >= instant_ms]
        return dict.fromkeys(tps, min(later, default=len(self.records)))

    def keep(self, topic, partition, records) -> None:
        self.records.update({record.offset: record for record in records})

    async def get(self, topic, partition, offsets, used=True) -> list[Record | None]:
        return [self.records.get(offset) for offset in offsets]

    async def one(self, topic, partition, offset) -> Record | None:
        return self.records.get(offset)

    async def ends(self, tps, instant_ms=None) -> dict[TP, int]:
        return dict.fromkeys(tps, len(self.records) if instant_ms is None else 0)

    async def begins(self, tps) -> dict[TP, int]:
        return dict.fromkeys(tps, 0)

    async def read(self, topic, partition, first, last) -> list[Record]:
        return [self.records[offset] for offset in range(first, last + 1) if offset in self.records]


def machine(count: int, leasing: Leasing = Leasing.STRICT) -> QueueMachine:
    settings = QueueSettings(name="orders", leasing=leasing, lease_ms=100, dead_letter_topic="dlq.orders")
    one = QueueMachine(settings, restore([]), 1, Payloads(), QueueOutput("orders", 0, 1, "dlq.orders", 1), "orders")
    one.take_over(1_000)
    one.arrive("orders", 0, [Record(offset, value=b'{"f": %d}' % (offset % 2)) for offset in range(count)])
    return one


def command(one: QueueMachine, at_ms: int, name: str, **fields) -> None:
    body = {"id": f"{name}-{at_ms}", "command": name, "subscription": "inky", **fields}
    one.command(Record(timestamp=at_ms, value=json.dumps(body).encode()))


class Letters:
    """A broker that takes letters, but for those that are too large."""

    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self.most_bytes = most_bytes
        self.taken: list[Output] = []

    async def __call__(self, letters) -> dict[int, Refusal]:
        letters = outputs_of(letters)
        refused = {
            at: Refusal("too large") for at, one in enumerate(letters) if len(one.value or b"") > self.most_bytes
        }
        self.taken += [one for at, one in enumerate(letters) if at not in refused]
        return refused


def finish(one: QueueMachine, letters: Letters | None = None):
    return finished(one.finish(letters or Letters()))


@pytest.mark.feature("C1", "C2", "Q8")
def test_a_settlement_by_filter_counts_as_of_its_own_instant_whatever_comes_behind_it_in_the_same_step() -> None:
    one = machine(3)
    command(one, 1_000, "subscribe", max_backlog=5)
    one.deliver(1_000)
    finish(one)
    command(one, 1_099, "acknowledge", filter="/f = 1")
    command(one, 1_500, "heartbeat")
    one.advance(1_600)
    assert one.deliver(1_600), "what waits comes before what is delivered"
    finish(one)
    assert one.shard.depth()["depth"] == 2
    one.advance(1_600)
    one.deliver(1_600)
    effects = finish(one)
    assert sum(len(some.records) for some in effects.after if isinstance(some, Packed)) == 2


@pytest.mark.feature("C40", "Q14")
def test_a_record_that_is_lost_leaves_when_a_filter_would_have_read_it() -> None:
    one = machine(4)
    del one._payloads.records[1]
    command(one, 1_000, "subscribe", max_backlog=5, filter="/f = 1")
    while one.deliver(1_000):
        finish(one)
    finish(one)
    counts = {state: count for state, count in one.shard.depth().items() if count}
    assert counts == {"available": 2, "leased": 1, "depth": 3}


def told(effects) -> list[tuple[str, list[str]]]:
    events = [event.decode(one.value) for one in effects.before if isinstance(one, Output)]
    return [(one.event, [str(some) for some in one.messages]) for one in events]


@pytest.mark.feature("Q8", "X7")
def test_an_answer_names_only_so_many_ranges_and_says_how_many_it_leaves_out() -> None:
    one = machine(0)
    one.arrive("orders", 0, [Record(offset, value=b'{"f": %d}' % (offset % 2)) for offset in range(21_000)])
    command(one, 1_000, "subscribe", max_backlog=30_000)
    while one.shard.depth()["available"]:
        one.deliver(1_000)
        finish(one)
    command(one, 1_001, "acknowledge", filter="/f = 1", answer="all")
    effects = finish(one)
    while one.unfinished is not None:  # so many take several steps
        assert not effects.after
        one.continue_command()
        effects = finish(one)
    (answer,) = effects.after
    told = json.loads(answer.value)
    assert (len(told["settlements"]), told["counts"]["left_out"], told["counts"]["settled"]) == (10_000, 500, 10_500)


@pytest.mark.feature("C27", "D3", "Q15")
def test_a_refused_letter_keeps_its_message_dying_while_the_others_leave_until_the_broker_takes_it() -> None:
    one, letters = machine(0), Letters(100)
    values = [b"{}", b"x" * 200, b"{}", b"y" * 300, b"{}"]
    one.arrive("orders", 0, [Record(offset, value=value) for offset, value in enumerate(values)])
    command(one, 1_000, "subscribe", max_backlog=5)
    one.deliver(1_000)
    journal = dict(finish(one).journal)
    command(one, 1_001, "expire", bookmarks=["orders:0:0-4"])
    effects = finish(one, letters)
    journal |= effects.journal
    assert [letter.value for letter in letters.taken] == [b"{}"] * 3
    assert [kind for kind, _ in told(effects)] == ["dying", "dead_lettered"]
    assert told(effects)[0][1] == ["orders:0:1", "orders:0:3"]
    assert told(effects)[1][1] == ["orders:0:0", "orders:0:2", "orders:0:4"]
    figures = one.gauges()
    assert (figures["depth"], figures["dying"], one.figures.dead_letters) == (0, 2, 3)
    assert [shown.state_name for shown in one.shard.peek(0, 10)] == ["dying", "dying"]
    assert list(restore(journal.items()).state.pending) == [(0, 1), (0, 3)]

    (letter,) = outputs_of([finished(one.letters.source.pending_letter((0, 1)))])
    assert letter.value == values[1]
    headers = dict(letter.headers)
    assert (headers["lapse-reasons"], headers["lapse-expired-at-ms"]) == (b"forced_expire", b"1001")
    assert headers["__dlq.errors.delivery.count"] == b"1"
    one.retry._safe += [(0, 1)]
    effects = finish(one)
    assert told(effects) == [("dead_lettered", ["orders:0:1"])]
    assert one.gauges()["dying"] == 1
    assert finished(one.letters.source.pending_letter((0, 1))) is None
    journal |= effects.journal
    kept = {key: value for key, value in journal.items() if value is not None}
    assert list(restore(kept.items()).state.pending) == [(0, 3)]


@pytest.mark.feature("C27", "C48", "D1")
def test_a_refused_letter_is_given_up_once_the_queue_writes_none_any_more() -> None:
    """A barrier behind it, and the queue's end, would wait for ever."""
    one = machine(1, Leasing.SUBLET)
    command(one, 1_001, "expire", bookmarks=["orders:0:0"])
    journal = finish(one, Letters(1)).journal
    settings = QueueSettings(name="orders")
    again = QueueMachine(
        settings, restore(one for one in journal if one[1]), 2, Payloads(), QueueOutput("orders", 0, 2, "", 1), "orders"
    )
    again.take_over(2_000)

    async def woken() -> None:
        news = asyncio.Event()
        again.retry.start(Letters(), news.set)
        await asyncio.wait_for(news.wait(), 30)
        again.retry.stop()

    assert again.gauges()["dying"] == 1
    asyncio.run(woken())
    effects = finish(again)
    assert (told(effects), again.gauges()["dying"]) == ([("expired", ["orders:0:0"])], 0)


@pytest.mark.feature("Q15", "L11", "C21")
def test_the_gauges_of_an_instant_are_what_depth_answers() -> None:
    """A message whose deadline has passed is told no more, though it leaves later; what is held up is told."""
    settings = QueueSettings(name="orders", leasing=Leasing.STRICT, lease_ms=100, expiration=Expiration(True, 50))
    one = QueueMachine(settings, restore([]), 1, Payloads(), QueueOutput("orders", 0, 1, "", 1), "orders")
    one.take_over(1_000)
    one.arrive("orders", 0, [Record(offset) for offset in range(3)])
    one.arrive("orders", 0, [Record(3, timestamp=1_020)])
    command(one, 1_021, "pause")
    finish(one)
    assert (one.gauges(1_021)["available"], one.gauges(1_060)["available"], one.gauges()["available"]) == (4, 1, 4)
    assert (one.gauges(1_021)["paused"], one.gauges(1_021)["holders"], one.gauges(1_021)["most_leased"]) == (1, 0, 0)
    command(one, 1_022, "resume")
    command(one, 1_023, "subscribe", max_backlog=3)
    one.deliver(1_023)
    finish(one)
    assert (one.gauges(1_024)["paused"], one.gauges(1_024)["holders"], one.gauges(1_024)["most_leased"]) == (0, 1, 3)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("name", ["purge", "sow", "expire"])
def test_a_command_that_takes_too_much_work_is_refused_with_the_reason_and_changes_nothing(name, monkeypatch) -> None:
    one = machine(200)
    monkeypatch.setattr(effort, "MOST_S", -1.0)
    command(one, 1_000, name, filter="/f >= 0")
    (answer,) = (json.loads(some.value) for some in finish(one).after)
    assert answer["status"] == "error"
    assert answer["error"].startswith(f"{name}: stopped after 0.0 s of work on ")
    assert "Simplify the filter" in answer["error"]
    monkeypatch.undo()
    assert one.shard.depth()["depth"] == 200
    command(one, 1_001, "sow", filter="/f >= 0")
    (answer,) = (json.loads(some.value) for some in finish(one).after)
    assert len(answer["messages"]) == 200


@pytest.mark.feature("X7", "Q14")
def test_a_filter_that_takes_too_much_work_over_all_steps_ends_its_subscription_and_no_other(monkeypatch) -> None:
    one = machine(0)
    costly, cheap = "/f >= 0 AND LENGTH(/g) = 1", "/f >= 0"
    command(one, 1_000, "subscribe", filter=costly, max_backlog=100)
    command(one, 1_000, "subscribe", subscription="other", filter=cheap, max_backlog=100)
    finish(one)
    now_s = [0.0]
    monkeypatch.setattr(effort.time, "thread_time", lambda: now_s[0])
    judge, columns = one.shard.matching._filters[costly]

    def takes_long(view) -> bool:
        now_s[0] += 0.6
        return judge(view)

    one.shard.matching._filters[costly] = (takes_long, columns)
    known = []
    for at in range(3):
        one.arrive("orders", 0, [Record(at, value=b'{"f": 1, "g": "ab"}', timestamp=1_001 + at)])
        one.deliver(1_001 + at)
        finish(one)
        known.append([subscription.id for subscription in one.shard.subscriptions()])
    monkeypatch.undo()
    assert known == [["inky", "other"], ["other"], ["other"]]
    command(one, 1_010, "subscribe", filter=costly)
    (answer,) = (json.loads(some.value) for some in finish(one).after)
    assert (answer["status"], answer["code"]) == ("error", "too_costly")
    assert "Simplify the filter" in answer["error"]
    command(one, 1_011, "subscribe", filter="/f = 1")
    (answer,) = (json.loads(some.value) for some in finish(one).after)
    assert answer["status"] == "ok"


@pytest.mark.feature("X7")
def test_the_next_portion_is_chosen_by_how_long_the_last_one_took() -> None:
    portion = effort.Portion(1_000)
    for _ in range(10):
        portion.note_time(0.000_1)
    assert portion.size == 1_000
    portion.note_time(0.5)
    assert portion.size == 10
    portion.note_time(10.0)
    assert portion.size == 1


def crowded(count: int, **headers) -> QueueMachine:
    settings = QueueSettings(
        name="orders",
        leasing=Leasing.STRICT,
        lease_ms=100,
        dead_letter_topic="dlq.orders",
        expiration=Expiration(enabled=True),
    )
    one = QueueMachine(settings, restore([]), 1, Payloads(), QueueOutput("orders", 0, 1, "dlq.orders", 1), "orders")
    one.take_over(1_000)
    stated = [(name, b"%d" % value) for name, value in headers.items()]
    one.arrive("orders", 0, [Record(offset, headers=stated) for offset in range(count)])
    return one


@pytest.mark.feature("C60", "D3")
def test_a_crowd_leaves_in_parts_whatever_commands_come_and_each_message_once() -> None:
    one, letters = crowded(20_000, **{"lapse-ttl-ms": 1_000}), Letters()
    for record in range(20_000, 20_010):
        one.arrive("orders", 0, [Record(record)])
    steps = []
    while one.shard.next_due_ms() <= 2_000:
        before = len(letters.taken)
        for _ in range(5):
            command(one, 2_000, "subscribe", max_backlog=1)
            command(one, 2_000, "heartbeat")
        one.advance(2_000)
        one.deliver(2_000)
        effects = finish(one, letters)
        if not steps:  # what is not due goes out in the first of them, whatever else is still to leave
            (sent,) = [some for some in effects.after if isinstance(some, Packed)]
            assert len(sent.records) == 1
        steps.append(len(letters.taken) - before)
        one.note_step_time(steps[-1] / 5_000)
        assert steps[-1] <= 3 * 512
    assert sum(steps) == 20_000
    assert steps[:2] == [1_024, 512], "steps that take too long make the parts smaller"
    offsets = [dict(letter.headers)["__dlq.errors.offset"] for letter in letters.taken]
    assert len(set(offsets)) == 20_000
    assert one.shard.depth()["depth"] == 10


@pytest.mark.feature("C60")
def test_the_parts_of_a_crowd_are_not_small_where_a_small_part_takes_as_long() -> None:
    """512 messages a step were 3,400/s where each step waited 150 ms for a broker."""
    one, letters = crowded(40_000, **{"lapse-ttl-ms": 1_000}), Letters()
    steps: list[int] = []
    while one.shard.next_due_ms() <= 2_000:
        before = len(letters.taken)
        one.advance(2_000)
        finish(one, letters)
        steps.append(len(letters.taken) - before)
        one.note_step_time(0.15 + steps[-1] / 200_000)
    assert sum(steps) == 40_000
    assert max(steps) == 4_096
    assert steps.index(4_096) <= 12, "it is known after some steps how long Kafka takes"


BEFORE_ALL = {
    "purge": {},
    "transfer": {"transfer": "t"},
    "acknowledge": {"filter": "/f = 1"},
    "expire": {"bookmarks": ["none"]},
    "cancel": {},
    "renew": {"filter": "TRUE"},
    "nonsense": {},
    "delete": {"force": True},
}


@pytest.mark.feature("C60", "X7")
@pytest.mark.parametrize("name", BEFORE_ALL)
def test_a_crowd_leaves_in_parts_whatever_is_asked_meanwhile(name: str) -> None:
    """A command that needs all of it to be gone waits for that; others go ahead, those with a mistake among them."""
    one, letters, told = crowded(6_000, **{"lapse-ttl-ms": 1_000}), Letters(), []
    one.arrive("orders", 0, [Record(6_000, value=b'{"f": 1}'), Record(6_001)])
    one._reach(2_000)
    command(one, 2_000, name, **BEFORE_ALL[name])
    steps: list[int] = []
    while sum(steps) < 6_000 or one.unfinished is not None:
        assert len(steps) < 20
        before = len(letters.taken)
        one.continue_command()
        one.advance(2_000)
        effects = finish(one, letters)
        told += [json.loads(some.value) for some in effects.after if isinstance(some, Output)]
        steps.append(len(letters.taken) - before)
        one.note_step_time(steps[-1] / 5_000)
        assert steps[-1] <= 3 * 512
    assert sum(steps) == 6_000, "each has its letter, with its own reason"
    if name == "delete":
        return  # it is answered once all shards have agreed
    (answered,) = told
    if name == "purge":
        assert answered["counts"]["removed"] == 2
    elif name == "transfer":
        assert one.shard.depth()["transferring"] == 2
    elif name == "acknowledge":
        assert answered["counts"] == {"settled": 0, "skipped": 1}, "what is late counts as gone"


@pytest.mark.feature("C60", "X7")
def test_others_have_their_turn_after_each_lot_that_a_filter_is_tried_on() -> None:
    """However cheap the filter is: of 300,000 messages each lot was so quick that nobody had a turn for a second."""
    one = machine(30_000)
    command(one, 1_000, "acknowledge", filter="/f = 2")
    turns = sum(1 for _ in one.finish(Letters()).__await__())
    assert turns >= 30


@pytest.mark.feature("C60", "C11")
def test_a_crowd_of_scheduled_messages_gets_its_places_in_small_parts() -> None:
    one = crowded(6_000, **{"lapse-enqueue-at-ms": 2_000})
    assert one.shard.depth()["scheduled"] == 6_000
    placed = [0]
    while one.shard.is_due(2_000):
        one.advance(2_000)
        finish(one)
        one.note_step_time(0.001)  # so quick that the next part may be as large as any
        placed.append(one.shard.depth()["available"])
    parts = [after - before for before, after in pairwise(placed)]
    assert sum(parts) == 6_000
    assert max(parts) <= 1_024, "each takes about as long as four that expire"


@pytest.mark.feature("C60", "C37")
def test_a_purge_of_very_many_messages_goes_part_by_part_and_counts_all(monkeypatch) -> None:
    monkeypatch.setattr(queue_command, "PURGED_AT_ONCE", 4_096)
    one = crowded(20_000)
    command(one, 1_000, "subscribe", max_backlog=3)
    one.deliver(1_000)
    finish(one)
    command(one, 1_001, "purge")
    left = [20_000, one.shard.depth()["depth"]]
    while one.unfinished is not None:
        assert not one.room(), "what arrives meanwhile is not purged"
        finish(one)
        one.continue_command()
        left.append(one.shard.depth()["depth"])
    (told,) = [some for some in finish(one).after if isinstance(some, Output)]
    counts = answer.decode(told.value).counts
    assert (counts["removed"], counts["available"], counts["skipped_leased"], left[-1]) == (19_997, 19_997, 3, 3)
    assert max(before - after for before, after in pairwise(left)) <= 2 * 4_096


@pytest.mark.feature("X7", "C37", "C60", "Q8")
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("purge", {"top_n": 0}),
        ("purge", {"dry_run": True}),
        ("purge", {"keys": ["k"]}),
        ("purge", {"filter": "TRUE", "skip": 1}),
        ("acknowledge", {"filter": "TRUE", "top_n": 1}),
        ("expire", {"bookmarks": ["orders:0:0-7999"], "order_by": "/f"}),
        ("delete", {"force": True, "dry_run": True}),
    ],
)
def test_a_command_that_would_do_more_than_its_fields_say_does_nothing(monkeypatch, name, fields) -> None:
    """Neither at once nor in parts: fields that limit a command are not ignored."""
    monkeypatch.setattr(queue_command, "PURGED_AT_ONCE", 1_000)
    one = crowded(8_000)
    command(one, 1_000, name, **fields)
    assert one.unfinished is None
    (told,) = [some for some in finish(one).after if isinstance(some, Output)]
    said = answer.decode(told.value)
    assert (said.status, said.code) == ("error", "invalid_argument")
    assert all(field in said.error for field in fields.keys() - {"filter", "bookmarks", "force"})
    assert one.shard.depth()["available"] == 8_000


@pytest.mark.feature("C60", "C13", "C2")
def test_a_lease_that_is_over_is_over_although_a_crowd_of_others_ends_first() -> None:
    one = crowded(3_000)
    command(one, 1_000, "subscribe", max_backlog=3_000)
    one.deliver(1_000)
    finish(one)
    assert one.shard.depth()["leased"] == 3_000
    bookmarks = [f"orders:0:{offset}" for offset in (2_999, 0)]
    command(one, 1_101, "acknowledge", bookmarks=bookmarks, answer="all")
    effects = finish(one)
    (said,) = [answer.decode(some.value) for some in effects.after if isinstance(some, Output)]
    assert {some.result for some in said.settlements} == {"not_leased"}
    assert one.shard.depth()["leased"] == 3_000 - 1_024 - 1, "the others are still to come"


@pytest.mark.feature("C1", "C37", "Q8")
@pytest.mark.parametrize(
    ("name", "fields", "acts"),
    [
        ("purge", {}, True),
        ("expire", {"filter": "/f = 1"}, True),
        ("expire", {"bookmarks": ["orders:0:5"]}, True),
        ("acknowledge", {"filter": "/f = 1", "answer": "none"}, True),
        ("delete", {}, True),
        ("subscriptions", {}, False),
        ("heartbeat", {}, False),
        ("subscribe", {"max_backlog": 1}, False),
    ],
)
def test_a_command_that_finds_nothing_is_journaled_all_the_same_unless_it_is_a_question(
    name: str, fields: dict, acts: bool
) -> None:
    """Read again after a crash, it took what had been published since it was answered."""
    one = machine(0)
    finish(one)
    command(one, 1_001, name, **fields)
    assert finish(one).has_acted == acts
    assert not finish(one).has_acted


@pytest.mark.feature("C1", "C60")
def test_the_last_part_of_a_purge_is_journaled_though_it_takes_nothing() -> None:
    one = machine(70_000)
    finish(one)
    command(one, 1_001, "purge")
    parts = [finish(one)]
    while one.unfinished is not None:
        one.continue_command()
        parts.append(finish(one))
    assert len(parts) > 1
    assert parts[-1].has_acted


def at_instants(*instants: int, stamped_by: int = BY_THE_BROKER, clock_ms: list[int] | None = None) -> QueueMachine:
    """A machine that has taken in messages of these instants, one by one."""
    one, clock_ms = machine(0, Leasing.SUBLET), [0] if clock_ms is None else clock_ms
    one._clock_ms = lambda: clock_ms[0]
    for offset, at_ms in enumerate(instants):
        value = b'{"f": %d, "at": %d}' % (offset % 2, at_ms)
        one.arrive("orders", 0, [Record(offset, at_ms, value=value, timestamp_type=stamped_by)])
    finish(one)
    return one


def answered(one: QueueMachine, at_ms: int, name: str, **fields) -> dict:
    command(one, at_ms, name, answer="all", **fields)
    effects = finish(one)
    while one.unfinished is not None:
        one.continue_command()
        effects = finish(one)
    return json.loads(outputs_of(effects.after)[-1].value)


def live(one: QueueMachine) -> list[int]:
    return [queued.offset for queued in one.shard.peek(0, 100)]


SWEEPS = [("purge", {}), ("purge", {"filter": "/at > 0"}), ("expire", {"filter": "/at > 0"})]


@pytest.mark.feature("C1", "C37", "Q8")
@pytest.mark.parametrize(("name", "fields"), SWEEPS)
def test_a_sweep_leaves_what_was_published_behind_its_instant_though_that_was_read_before_it(name, fields) -> None:
    one = at_instants(1_001, 1_005, 1_006, 1_009)
    counts = answered(one, 1_005, name, **fields)["counts"]
    assert counts["removed" if name == "purge" else "settled"] == 2
    assert live(one) == [2, 3]
    assert counts["skipped"] == 0, "what is younger is as if it were not there"
    answered(one, 1_010, name, **fields)
    assert live(one) == []
    assert one._payloads.asked == 1, "the second one is younger than all"


@pytest.mark.feature("C1", "C63")
@pytest.mark.parametrize("fields", [{}, {"filter": "/at > 0"}])
def test_a_rewind_brings_back_nothing_that_was_published_behind_its_instant(fields) -> None:
    """It counts as of its instant, though the worker read later messages before it, and they have left as well."""
    one = at_instants(1_001, 1_005, 1_006, 1_009)
    assert answered(one, 1_010, "acknowledge", bookmarks=["orders:0:0-3"])["settlements"][0]["result"] == "settled"
    assert answered(one, 1_005, "rewind", id="r", to="beginning", **fields)["counts"]["rewound"] == 2
    assert [offset_of(position) for position in live(one)] == [0, 1]
    assert answered(one, 1_020, "purge")["counts"]["removed"] == 2, "later commands have no horizon of the rewind"
    assert answered(one, 1_021, "rewind", id="later", to="beginning", **fields)["counts"]["rewound"] == 4


@pytest.mark.feature("X10", "Q22")
@pytest.mark.parametrize("part", [700, 1_000])
def test_the_parts_of_a_rewind_do_not_depend_on_how_much_the_log_returns_at_once(part) -> None:
    """A replay gets the size of a part from the journal. Kafka returns whole batches, a replay's log what is asked."""
    cut = {beyond: rewound_in_parts(part, beyond) for beyond in (0, 1, 50, 2_000)}
    assert all(parts == cut[0] for parts in cut.values())
    assert {count for count, _ in cut[0][:-1]} == {part}, "gaps between offsets do not end a part"


@pytest.mark.feature("X7", "Q22")
def test_of_long_messages_a_part_of_a_rewind_with_a_filter_holds_a_few() -> None:
    """The first part would hold a thousand; each takes the filter as long as its texts are."""
    one, value = machine(0), b'{"f": 1, "g": "%s"}' % (b"a" * 50_000)
    one.arrive("orders", 0, [Record(offset, value=value) for offset in range(30)])
    finish(one)
    assert answered(one, 1_010, "purge")["counts"]["removed"] == 30
    command(one, 1_020, "rewind", id="r", to="beginning", filter="/f = 1")
    parts = []
    while not parts or one.unfinished is not None:
        one.continue_command()
        finish(one)
        (rewind,) = one.shard.state.rewinds
        parts.append(rewind.counts["rewound"])
    assert parts[-1] == 30
    assert max(after - before for before, after in pairwise([0, *parts])) == 6


@pytest.mark.feature("X7", "Q22")
@pytest.mark.parametrize("text", ["", "/f = 1"])
def test_only_a_rewind_with_a_filter_can_be_too_costly(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Priorities and groups of long messages take more than is allowed for each, and everybody wants all of them."""
    monkeypatch.setattr(effort, "MOST_S", -1e9)
    one = machine(0)
    one.arrive("orders", 0, [Record(offset, value=b'{"f": 1}') for offset in range(2_500)])
    finish(one)
    assert answered(one, 1_010, "purge")["counts"]["removed"] == 2_500
    told = answered(one, 1_020, "rewind", id="r", to="beginning", **({"filter": text} if text else {}))
    assert told["code"] == ("too_costly" if text else "")
    (rewind,) = one.shard.state.rewinds
    assert (rewind.counts["rewound"] == 2_500) == (not text)


def rewound_in_parts(part: int, beyond: int) -> list[tuple[int, int]]:
    """The count of records and the cursor of each part, from a log that returns some records beyond those asked for."""
    one, read = machine(0), Payloads.read
    one.arrive("orders", 0, [Record(offset) for offset in (*range(2, 1_190), *range(1_195, 2_200))])
    finish(one)
    assert answered(one, 1_010, "purge")["counts"]["removed"] == 2_193
    one._payloads.read = lambda topic, partition, first, last: read(
        one._payloads, topic, partition, first, last + beyond
    )
    command(one, 1_020, "rewind", id="r", to="beginning")
    parts, before = [], 0
    while True:
        one.rewinder.give(part)
        finish(one)
        (rewind,) = one.shard.state.rewinds
        parts.append((rewind.counts["rewound"] - before, rewind.spans[0].cursor))
        before = rewind.counts["rewound"]
        if one.unfinished is None:
            return parts
        one.continue_command()


@pytest.mark.feature("C1", "C37", "C83")
def test_a_sweep_leaves_younger_messages_that_are_scheduled() -> None:
    one, later = machine(0), [("lapse-enqueue-at-ms", b"9000")]
    for offset, at_ms in enumerate((1_001, 1_005, 1_006)):
        one.arrive("orders", 0, [Record(offset, at_ms, headers=later)])
    assert answered(one, 1_005, "purge")["counts"]["scheduled"] == 2
    assert [queued.offset for queued in one.shard.peek(0, 100)] == [2]


@pytest.mark.feature("C1", "C37")
def test_a_sweep_that_a_new_owner_reads_again_leaves_what_the_one_before_had_taken_in_behind_it() -> None:
    one = at_instants(1_001, 1_005, 1_006)
    again = QueueMachine(one.shard.settings, Restored(one.shard.state), 2, one._payloads, one._output, "orders")
    again.take_over(2_000)
    answered(again, 1_005, "purge")
    assert live(again) == [2]
    answered(again, 2_001, "purge")
    assert live(again) == []


@pytest.mark.feature("C1", "C6", "C37")
def test_a_producers_clock_that_is_ahead_keeps_no_message_from_a_purge_that_came_after_it() -> None:
    clock_ms = [1_000]
    one = at_instants(1_000, 9_000_000, 1_001, stamped_by=0, clock_ms=clock_ms)
    clock_ms[0] = 1_200
    one.arrive("orders", 0, [Record(3, 9_000_001, timestamp_type=0)])
    answered(one, 1_105, "purge")
    assert live(one) == [3], "the first ones were read before the purge, whatever they say"


@pytest.mark.feature("C1", "C52")
def test_a_sweep_is_refused_while_nobody_can_say_what_is_younger() -> None:
    one = at_instants(1_001, 1_006)
    one._payloads.has_leader = False
    assert answered(one, 1_005, "purge")["code"] == "shard_unavailable"
    assert answered(one, 1_005, "rewind", id="r", to="beginning")["code"] == "shard_unavailable"
    assert one.rewinder.step_ends() == {"part": -1}, "a replay refuses it, too"
    assert live(one) == [0, 1]
    one._payloads.has_leader = True
    assert answered(one, 1_005, "purge")["counts"]["removed"] == 1, "the shard goes on"
    one.rewinder.give(-1)
    assert answered(one, 1_006, "rewind", id="r", to="beginning")["code"] == "shard_unavailable"
    one.rewinder.give(0)
    assert answered(one, 1_006, "rewind", id="r", to="beginning")["counts"]["rewound"] == 1
