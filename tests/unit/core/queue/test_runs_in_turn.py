"""Runs of messages chosen together are those that come one by one, in the same order (Q25, C71)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
from benchmarks.instruments.plain_record import PlainRecord

from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.delivery.dispatch import Dispatch
from lapse.core.queue.groups import found_ahead, turn_front
from lapse.core.queue.groups.runs_in_turn import RunsInTurn
from lapse.core.queue.groups.search_ahead import SearchAhead
from lapse.core.queue.groups.turn_front import TurnFront
from lapse.core.queue.rates.rate import Rate
from lapse.core.queue.segments.segment import SIZE
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from support.suite.at_length import AT_LENGTH, QUICK, alike, cases
from unit.core.queue.compared.small_shard import small

NOW_MS = 1_800_000_000_000
SOME = alike(pytest.param(64, 1), pytest.param(5, 2), pytest.param(5, 3), pytest.param(SIZE, 0))
"""Each size of segments, one group and many, and each limit of a group."""
VARIANTS = [(SIZE, 1), (SIZE, 2), (SIZE, 3), (64, 0), (64, 2), (64, 3), (5, 0), (5, 1)]


@pytest.mark.feature("Q25", "C71")
@pytest.mark.parametrize(("size", "seed"), cases(SOME, VARIANTS))
def test_runs_are_in_the_order_of_single_messages(size: int, seed: int) -> None:
    with small(size, ring=256, at_once=4_096) if size < SIZE else nullcontext():
        together = _handed_out(seed)
        with mock.patch.object(Dispatch, "_goes_in_runs", False):
            singly = _handed_out(seed)
    assert together == singly
    assert sum(map(len, together)) > 200


@pytest.mark.feature("Q25", "C71")
@pytest.mark.parametrize(
    ("size", "groups", "backlogs"),
    alike(pytest.param(8, (40, 300), (1, 3)), pytest.param(64, (300, 2_000), (1, 4, 20))),
)
def test_of_many_groups_those_whose_turn_is_next_are_enough(
    size: int, groups: Sequence[int], backlogs: Sequence[int]
) -> None:
    """The order is the same as if each delivery looked at all groups."""
    first, build, calls = RunsInTurn._first_groups, TurnFront.build, Counter[str]()

    def first_groups(self: RunsInTurn, *args: Any) -> Any:
        calls["first"] += 1
        return first(self, *args)

    def build_front(self: TurnFront, *args: Any) -> None:
        calls["build"] += 1
        build(self, *args)

    for seed in range(10 if AT_LENGTH else 1 if QUICK else 4):
        with small(64, ring=256, at_once=4_096):
            of_all = _handed_out(seed, groups, backlogs, (0, 2, 70), 120)
            with (
                mock.patch.object(turn_front, "_SIZE", size),
                mock.patch.object(RunsInTurn, "_first_groups", first_groups),
                mock.patch.object(TurnFront, "build", build_front),
            ):
                of_few = _handed_out(seed, groups, backlogs, (0, 2, 70), 120)
        assert of_few == of_all
    assert 4 * calls["build"] < 3 * calls["first"], "the others found their groups in the front"


def _handed_out(
    seed: int,
    counts: Sequence[int] = (1, 3, 40, 2_000),
    backlogs: Sequence[int] = (300, 4_000),
    arrivals: Sequence[int] = (0, 100, 1_500),
    steps: int = 20,
) -> list[list[int]]:
    """Return the offsets that each step hands out, of messages over several segments, some of which leave early."""
    chance = random.Random(seed)
    groups, limit = chance.choice(counts), chance.choice((1, 2, 30, 5_000))
    settings = QueueSettings(
        name="turn",
        expiration=Expiration(True),
        traits=TraitReader(group=lambda view: view.headers["group"].decode() or None),
        group_limit=limit,
        group_weights={"1": 3, "2": 7} if chance.random() < 0.5 else {},
        group_rate=Rate(chance.choice((20, 400)), 50) if limit > 1 and chance.random() < 0.5 else None,
    )
    shard = QueueShard(settings, QueueState())
    shard.subscribing.subscribe("s", "c", chance.choice(backlogs), 1_000_000, "", NOW_MS, Step())
    found: list[list[int]] = []
    now_ms, offset, held = NOW_MS, 0, []
    for _ in range(steps):
        some = []
        for _ in range(chance.choice(arrivals) if offset < 5_000 else 0):
            group = b"%d" % min(chance.randrange(groups), chance.randrange(groups))
            headers = [("group", b"" if chance.random() < 0.05 and settings.group_rate is None else group)]
            if chance.random() < 0.05:
                headers.append(("lapse-expires-at-ms", b"%d" % (now_ms + chance.randrange(200))))
            some.append(PlainRecord(offset, now_ms, b"k", b"{}", headers))
            offset += 1
        shard.arrive("turn", 0, some, Step(), now_ms)
        for at in chance.sample(range(offset), min(offset, 3)):  # settled without a lease, from the midst of the rest
            shard.settle(SettleAction.EXPIRE, "s", [Claim("turn", 0, at, min(at + 20, offset - 1))], now_ms, Step())
        step = Step()
        while shard.deliver(now_ms, step):
            pass
        handed = [one for delivery in step.deliveries for one in delivery.messages.offsets.tolist()]
        found.append(handed)
        held += handed
        chance.shuffle(held)
        for action in (SettleAction.ACKNOWLEDGE, SettleAction.CANCEL):
            third = -(-len(held) // 3)
            done, held = held[:third], held[third:]
            shard.settle(action, "s", [Claim("turn", 0, one, one) for one in done], now_ms, Step())
        now_ms += 7
        if chance.random() < 0.3:  # else the expired ones are still there
            shard.advance(now_ms, Step())
    return found


@pytest.mark.feature("Q25", "C60")
def test_thousands_that_left_from_the_midst_of_a_group_are_passed_over_at_once() -> None:
    """A subscription with room for one message would else look for the next one so often, while all entities wait."""
    settings = QueueSettings(name="turn", traits=TraitReader(group=lambda _: "g"), group_limit=10)
    shard, last = QueueShard(settings, QueueState()), 2_000
    shard.subscribing.subscribe("s", "c", 1, 1_000_000, "", NOW_MS, Step())
    shard.arrive("turn", 0, [PlainRecord(at, NOW_MS, b"k", b"{}", []) for at in range(last + 1)], Step(), NOW_MS)
    shard.deliver(NOW_MS, Step())
    shard.settle(SettleAction.EXPIRE, "s", [Claim("turn", 0, 1, last - 1)], NOW_MS, Step())
    shard.settle(SettleAction.ACKNOWLEDGE, "s", [Claim("turn", 0, 0, 0)], NOW_MS, Step())
    step, find = Step(), SearchAhead._find_in
    with mock.patch.object(SearchAhead, "_find_in", autospec=True, side_effect=find) as look:
        shard.deliver(NOW_MS, step)
    assert [delivery.messages.offsets.tolist() for delivery in step.deliveries] == [[last]]
    assert look.call_count <= 3


def _drained(shard: QueueShard, count: int, backlog: int) -> tuple[list[int], list[int]]:
    """Deliver and acknowledge everything. Return the offsets in order, and how often each turn looked at a segment."""
    shard.subscribing.subscribe("s", "c", backlog, 1_000_000, "", NOW_MS, Step())
    offsets: list[int] = []
    looks: list[int] = []
    look = QueueState.look
    while len(offsets) < count:
        step = Step()
        with mock.patch.object(QueueState, "look", autospec=True, side_effect=look) as looked:
            shard.deliver(NOW_MS, step)
        looks.append(looked.call_count)
        handed = [one for delivery in step.deliveries for one in delivery.messages.offsets.tolist()]
        shard.settle(SettleAction.ACKNOWLEDGE, "s", [Claim("turn", 0, one, one) for one in handed], NOW_MS, Step())
        offsets += handed
        assert handed or len(looks) < count, "it goes on"
    return offsets, looks


def _grouped(groups: Sequence[int]) -> QueueShard:
    traits = TraitReader(group=lambda view: view.headers["group"].decode())
    shard = QueueShard(QueueSettings(name="turn", traits=traits, group_limit=1_000), QueueState())
    some = [PlainRecord(at, NOW_MS, b"k", b"{}", [("group", b"%d" % group)]) for at, group in enumerate(groups)]
    shard.arrive("turn", 0, some, Step(), NOW_MS)
    return shard


@pytest.mark.feature("Q25")
def test_a_segment_is_not_searched_again_at_every_delivery() -> None:
    """Groups in no order have messages in many segments. Looking at all of these each time took most of the CPU."""
    chance = random.Random(3)
    groups = [chance.randrange(50) for _ in range(6_000)]
    with small(64, ring=256, at_once=4_096):
        offsets, looks = _drained(_grouped(groups), len(groups), 200)
    assert sorted(offsets) == list(range(len(groups)))
    assert sum(looks) <= 4 * len(groups) // 64


@pytest.mark.slow
@pytest.mark.feature("Q25", "C60")
def test_a_turn_looks_at_few_segments_if_each_group_has_its_own() -> None:
    groups = [at // 64 for at in range(64 * 100)]
    with small(64, ring=512, at_once=4_096):
        offsets, looks = _drained(_grouped(groups), len(groups), 4_096)
        with mock.patch.object(Dispatch, "_goes_in_runs", False):
            singly, _ = _drained(_grouped(groups), len(groups), 4_096)
    assert offsets == singly
    assert max(looks) <= 64


def _next_ones(shard: QueueShard, instants: Sequence[int]) -> list[list[int]]:
    """Deliver at some instants, ms from `NOW_MS` on, and acknowledge. Return the offsets of each delivery."""
    found = []
    for at in instants:
        step = Step()
        shard.deliver(NOW_MS + at, step)
        handed = [one for delivery in step.deliveries for one in delivery.messages.offsets.tolist()]
        claims = [Claim("turn", 0, one, one) for one in handed]
        shard.settle(SettleAction.ACKNOWLEDGE, "s", claims, NOW_MS + at, Step())
        found.append(handed)
    return found


@pytest.mark.feature("Q25", "L11")
def test_what_was_found_ahead_is_not_delivered_once_its_deadline_has_passed() -> None:
    """The clock may go back, too: then the message is deliverable again."""
    settings = QueueSettings(name="turn", expiration=Expiration(True), traits=TraitReader(group=lambda _: "g"))
    shard = QueueShard(settings, QueueState())
    shard.subscribing.subscribe("s", "c", 1, 1_000_000, "", NOW_MS, Step())
    expiring = ("lapse-expires-at-ms", b"%d" % (NOW_MS + 50))
    some = [PlainRecord(at, NOW_MS, b"k", b"{}", [expiring] if at == 3 else []) for at in range(9)]
    shard.arrive("turn", 0, some, Step(), NOW_MS)
    assert _next_ones(shard, (0, 10, 50, 50, 49, 51)) == [[0], [1], [2], [4], [3], [5]]


@pytest.mark.feature("Q25")
def test_what_was_found_ahead_is_forgotten_when_it_is_too_much() -> None:
    settings = QueueSettings(name="turn", traits=TraitReader(group=lambda _: "g"))
    shard, find = QueueShard(settings, QueueState()), SearchAhead._find_in
    shard.subscribing.subscribe("s", "c", 1, 1_000_000, "", NOW_MS, Step())
    shard.arrive("turn", 0, [PlainRecord(at, NOW_MS, b"k", b"{}", []) for at in range(99)], Step(), NOW_MS)
    for most, looks in ((17, 1), (16, 8)):
        with (
            mock.patch.object(found_ahead, "_MOST", most),
            mock.patch.object(SearchAhead, "_find_in", autospec=True, side_effect=find) as look,
        ):
            handed = _next_ones(shard, range(8))
        assert len(handed) == 8
        assert look.call_count == looks
    assert _next_ones(shard, (8, 8)) == [[16], [17]]
