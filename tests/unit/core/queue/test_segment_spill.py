"""State on disk: segments that are not needed lie in a spill store, and only those that are needed come back (Q16)."""

from types import SimpleNamespace

import pytest

from lapse.core.expression import compile_value
from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import NO_TRAITS, TraitReader
from lapse.core.queue.journal.packed_segment import encode
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.segments.segment import SIZE
from lapse.core.queue.segments.spill import Segments
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from unit.core.queue.compared.small_shard import small
from unit.core.queue.world import World

NOW_MS = 1_000_000
SEGMENTS = 12
DEEP = SEGMENTS * SIZE
MINUTE_MS = 60_000


class Numbers(dict):
    """A spill store that knows what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []

    def __getitem__(self, index: int) -> bytes:
        self.read.append(index)
        return super().__getitem__(index)


def settings(**more) -> QueueSettings:
    return QueueSettings(
        name="orders", expiration=Expiration(enabled=True), lease_ms=MINUTE_MS, max_lease_ms=MINUTE_MS, **more
    )


def deep(room: int = 20_000, ttl_ms=lambda offset: 0, **more) -> tuple[QueueShard, Numbers]:
    """A shard with 49,152 messages, of which a few segments fit into memory."""
    spill_store = Numbers()
    shard = QueueShard(settings(**more), QueueState(Segments(spill_store, room)))
    for first in range(0, DEEP, 8_000):
        shard.arrive("orders", 0, records(first, min(first + 8_000, DEEP), ttl_ms), Step())
    assert spill_store.read == []
    return shard, spill_store


def records(first: int, stop: int, ttl_ms) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            offset=offset,
            timestamp=NOW_MS,
            key=None,
            value=b'{"p": %d, "f": %d}' % (offset // SIZE, offset % 2),
            headers=[("lapse-ttl-ms", b"%d" % ttl)] if (ttl := ttl_ms(offset)) else [],
        )
        for offset in range(first, stop)
    ]


def offsets(step: Step) -> list[int]:
    return [int(offset) for one in step.deliveries for offset in one.messages.offsets]


@pytest.mark.feature("Q16")
def test_most_of_a_deep_queue_is_not_in_memory() -> None:
    shard, spill_store = deep()
    segments = shard.state.segments
    assert len(segments) == SEGMENTS
    assert segments.in_memory <= 4
    shard.deliver(NOW_MS, Step())
    assert sum(segments[index].weight for index in list(segments._loaded)) <= 20_000
    assert shard.depth()["available"] == DEEP
    assert shard.next_due_ms() > NOW_MS
    assert spill_store.read == []


@pytest.mark.feature("Q16", "Q3")
def test_what_is_delivered_is_read_and_nothing_else() -> None:
    shard, spill_store = deep(300_000, ttl_ms=lambda _: MINUTE_MS)
    shard.subscribing.subscribe("inky", "c", 1_000, MINUTE_MS, "", NOW_MS, Step())
    for round_number in range(6):
        step = Step()
        shard.deliver(NOW_MS, step)
        assert offsets(step) == list(range(round_number * 1_000, round_number * 1_000 + 1_000))
        claim = Claim("orders", 0, round_number * 1_000, round_number * 1_000 + 999)
        shard.settle(SettleAction.ACKNOWLEDGE, "inky", [claim], NOW_MS, Step())
    assert sorted(spill_store.read) == [0, 1]
    assert shard.state.segments.loads == 2
    assert 0 not in spill_store, "all its messages are gone"


@pytest.mark.feature("Q16", "L11")
def test_a_deadline_brings_its_own_segment_back() -> None:
    late = 7 * SIZE + 5
    shard, spill_store = deep(45_000, ttl_ms=lambda offset: 500 if offset == late else MINUTE_MS if offset == 3 else 0)
    assert shard.next_due_ms() == NOW_MS + 500
    assert spill_store.read == []
    step = Step()
    shard.advance(NOW_MS + 500, step)
    assert [one.messages.offsets.tolist() for one in step.removals] == [[late]]
    assert spill_store.read == [7]
    assert shard.next_due_ms() == NOW_MS + MINUTE_MS


@pytest.mark.feature("Q16", "Q8", "Q15")
def test_a_settlement_and_a_peek_read_what_they_name() -> None:
    shard, spill_store = deep()
    (outcome,) = shard.settle(
        SettleAction.ACKNOWLEDGE, "anyone", [Claim("orders", 0, 4 * SIZE, 4 * SIZE + 9)], NOW_MS, Step()
    )
    assert (outcome.first, outcome.last, outcome.result) == (4 * SIZE, 4 * SIZE + 9, "settled")
    assert spill_store.read == [4]
    assert [one.offset for one in shard.peek(9 * SIZE, 2)] == [9 * SIZE + 10, 9 * SIZE + 11]
    assert spill_store.read == [4, 9]
    assert [one.offset for one in shard.peek(2 * SIZE, 2)] == [2 * SIZE, 2 * SIZE + 1]
    assert spill_store.read == [4, 9, 2]
    assert shard.depth()["depth"] == DEEP - 10


@pytest.mark.feature("Q16", "C37")
@pytest.mark.parametrize("text", ["", "/f = 1"])
@pytest.mark.slow
def test_a_purge_reads_each_segment_once_and_keeps_few(text: str) -> None:
    shard, spill_store = deep()
    if text:
        shard.matching.begin_selection(text)
        while places := shard.selection.places_to_judge(text):
            named = [shard.bookmark_of(place) for place in places]
            found = {one.offset: one for one in records(named[0][2], named[-1][2] + 1, lambda _: 0)}
            shard.judge([(place, *mark[:2], found[mark[2]]) for place, mark in zip(places, named, strict=True)])
            assert shard.state.segments.in_memory <= 4
        assert len(spill_store.read) <= 2 * SEGMENTS
        spill_store.read.clear()
    removed = sum(shard.purge(NOW_MS, Step(), text=text)[0].values())
    assert removed == DEEP // (2 if text else 1)
    assert sorted(spill_store.read) == sorted(set(spill_store.read))
    shard.advance(NOW_MS, Step())
    assert shard.state.segments.in_memory <= 4
    assert not text or len(shard.state.segments) == SEGMENTS
    assert len(spill_store) <= len(shard.state.segments)


@pytest.mark.slow
@pytest.mark.feature("Q16", "Q14")
def test_segments_in_which_nothing_matches_are_left_out() -> None:
    shard, spill_store = deep()
    shard.subscribing.subscribe("inky", "c", 10, MINUTE_MS, "/p = 11", NOW_MS, Step())
    step = Step()
    while shard.deliver(NOW_MS, step) and shard.unjudged:
        named = [shard.bookmark_of(place) for place in shard.unjudged]
        found = records(named[0][2], named[-1][2] + 1, lambda _: 0)
        shard.judge([(place, *mark[:2], one) for place, mark, one in zip(shard.unjudged, named, found, strict=True)])
    assert offsets(step) == list(range(11 * SIZE, 11 * SIZE + 10))
    spill_store.read.clear()
    claim = Claim("orders", 0, 11 * SIZE, 11 * SIZE + 9)
    shard.settle(SettleAction.ACKNOWLEDGE, "inky", [claim], NOW_MS, Step())
    shard.deliver(NOW_MS, step := Step())
    assert offsets(step) == list(range(11 * SIZE + 10, 11 * SIZE + 20))
    assert set(spill_store.read) <= {11}


@pytest.mark.slow
@pytest.mark.feature("Q16", "Q11")
def test_priority_finds_the_best_segment_without_reading_the_others() -> None:
    shard, spill_store = deep(70_000, traits=TraitReader(compile_value("/p"), None, None))
    shard.subscribing.subscribe("inky", "c", 10, MINUTE_MS, "", NOW_MS, Step())
    shard.deliver(NOW_MS, step := Step())
    assert offsets(step) == list(range(11 * SIZE, 11 * SIZE + 10))
    assert set(spill_store.read) <= {10, 11}


@pytest.mark.slow
@pytest.mark.feature("Q16")
@pytest.mark.parametrize("traits", [NO_TRAITS, TraitReader(compile_value("/p"), None, None)])
def test_a_restored_queue_is_spilled_and_knows_the_same(traits: TraitReader) -> None:
    shard, _ = deep(150_000, traits=traits, ttl_ms=lambda offset: 90_000 + offset % 1_000)
    journal = QueueJournal(shard.state, 1)
    log = dict(journal.begin())
    step = Step()
    shard.subscribing.subscribe("inky", "c", 5_000, 10 * MINUTE_MS, "", NOW_MS, step)
    shard.deliver(NOW_MS, step)
    shard.settle(SettleAction.CANCEL, "inky", [Claim("orders", 0, 0, 99)], NOW_MS, step, delay_ms=700)
    log |= dict(journal.encode(step))
    again, everything = Numbers(), {key: value for key, value in log.items() if value is not None}
    restored = restore(everything.items(), Segments(again, 150_000))
    before = shard.depth()
    other = QueueShard(shard.settings, restored.state)
    assert restored.state.segments.in_memory <= 4
    assert restored.state.segments.loads == 0
    again.read.clear()
    other.take_over(NOW_MS, Step())
    assert other.depth() == before
    assert other.next_due_ms() == shard.next_due_ms()
    assert other.state.subscriptions["inky"].outstanding == shard.state.subscriptions["inky"].outstanding
    assert again.read == []
    first, second = Step(), Step()
    shard.advance(NOW_MS + MINUTE_MS, first)
    other.advance(NOW_MS + MINUTE_MS, second)
    assert len(first.events) == len(second.events) > 0
    assert set(again.read) <= ({0, 1} if traits is NO_TRAITS else {0, 10, 11})


@pytest.mark.feature("Q16")
def test_the_journal_gets_a_segment_from_the_spill_store_as_it_is() -> None:
    shard, spill_store = deep()
    journal = QueueJournal(shard.state, 1)
    log = dict(journal.begin())
    assert len([key for key in log if key.startswith(b"g")]) == SEGMENTS
    assert shard.state.segments.loads == 0
    assert sorted(spill_store.read) == sorted(spill_store)
    alone = restore(log.items())
    assert len(alone.state.segments) == SEGMENTS
    assert all(encode(alone.state.segments[index]) == spill_store[index] for index in spill_store)


@pytest.mark.feature("Q11", "Q16", "C23")
def test_a_queue_that_gets_a_priority_forgets_segments_that_left_before_the_first_message_has_one() -> None:
    """The segment had been put away while nothing had a priority, and was looked for when something had."""
    with small(size=3):
        world = World(settings(max_deliveries=0), room=0)
        world.subscribe("inky", 2)
        for _ in range(6):
            world.publish("orders", body={"p": 1})
        world.read("orders")
        world.deliver()
        world.commit()
        traits = TraitReader(compile_value("/p"), None, None)
        world.crash(settings(max_deliveries=1, traits=traits))
        world.settle("acknowledge", "inky", Claim("orders", 0, 0, 5))
        world.publish("orders", body={"p": 2})
        world.read("orders")
        (delivery,) = world.deliver()["inky"]
        assert delivery.bookmark[2] == 6
