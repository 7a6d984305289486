"""One message: what is done for it with numbers is what columns do for many."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.generation import FIRST_REWOUND
from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.trait import Flag, Traits
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.delivery import candidates
from lapse.core.queue.life.message_state import STATES, State
from lapse.core.queue.life.movement import MOVES
from lapse.core.queue.life.mover import Mover
from lapse.core.queue.segments.segment import NOBODY, SIZE, Run, Segment
from lapse.core.queue.settings import Leasing
from lapse.core.queue.settlement import settlement
from lapse.core.queue.settlement.settlement import SettleAction
from lapse.core.queue.state import QueueState
from lapse.core.queue.subscriptions.subscription import Subscription

COUNT = 4
INSTANTS = st.sampled_from([0, 500, 1_000, 1_500, NEVER])
CHANGES = st.lists(
    st.tuples(st.sampled_from(sorted(MOVES)), st.integers(0, COUNT - 1), st.integers(0, 1), INSTANTS), max_size=12
)
COLUMNS = ("state", "deliveries", "cancels", "holder", "until_ms", "since_ms")
TOLD = ("used", "occupied", "available", "min_deadline_ms", "min_until_ms")


def begun(deadlines_ms: list[int], groups: list[int], barriers: list[int] | None = None) -> QueueState:
    """A shard with some messages and two subscriptions."""
    state = QueueState()
    state.sources.number("orders", 0)
    for number in range(2):
        state.apply(Change(ChangeKind.SUBSCRIBED, facts=Subscription(f"s{number}", number, "", 9, 9, 1_000).facts()))
    traits = Traits(
        flags=np.array(barriers, np.uint8) if barriers else None, groups=np.array(groups, np.int64) if groups else None
    )
    state.apply(Change(ChangeKind.ARRIVED, [(0, COUNT)], deadlines_ms=np.array(deadlines_ms), traits=traits))
    return state


def seen(state: QueueState) -> dict[str, Any]:
    """All that a movement may change."""
    segment = state.segments[0]
    columns = {name: getattr(segment, name) for name in COLUMNS}
    return {
        **{name: None if column is None else column[:COUNT].tolist() for name, column in columns.items()},
        **{name: getattr(segment, name) for name in TOLD},
        "outstanding": [(one.outstanding, one.settled) for one in state.subscriptions.values()],
        "next": (state.index.deadlines.next_ms(), state.index.untils.next_ms()),
        "bound": state.index.bound_groups(),
        "came back": state.index.came_back,
        "barriers": state.index.barriers,
        "dirty": state.dirty,
        "first": state.first_available_segment(),
    }


@pytest.mark.feature("L11")
@given(st.lists(INSTANTS.filter(bool), min_size=COUNT, max_size=COUNT), st.booleans(), st.booleans(), CHANGES)
def test_a_message_that_moves_alone_moves_as_many_do(
    deadlines_ms: list[int], in_groups: bool, has_barriers: bool, changes: list[Any]
) -> None:
    groups, barriers = [7, 8, 7, 8] if in_groups else [], [Flag.BARRIER, 0, 0, Flag.BARRIER] if has_barriers else []
    alone, together = (begun(deadlines_ms, groups, barriers) for _ in range(2))
    together._mover._move_one = lambda *_: False  # type: ignore[method-assign]
    for number, place, holder, until_ms in changes:
        kind = ChangeKind(number)
        if STATES[alone.segments[0].state[place]] in MOVES[kind].leaves:
            change = Change(kind, [(place, 1)], offset=3, holder=holder, until_ms=until_ms)
            alone.apply(change)
            together.apply(change)
            assert seen(alone) == seen(together)


@pytest.mark.feature("L11")
def test_a_state_that_a_change_does_not_take_is_left_to_the_general_way() -> None:
    state = begun([NEVER] * COUNT, [])
    change = Change(ChangeKind.RENEWED, [(0, 1)], until_ms=5)
    assert not Mover(state)._move_one(change, MOVES[ChangeKind.RENEWED], state.segments[0], 0)


@pytest.mark.feature("Q8", "C13", "C16")
@given(
    st.sampled_from(SettleAction),
    st.sampled_from(Leasing),
    st.lists(
        st.tuples(
            st.sampled_from([state for state in State if state >= State.AVAILABLE]),
            st.integers(-1, 1),
            st.integers(0, 2),
            INSTANTS.filter(bool),
        ),
        min_size=2,
        max_size=8,
    ),
    st.integers(-2, 1),
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from([-1, 1_000]),
)
def test_a_message_that_is_judged_alone_is_judged_as_among_many(
    action: SettleAction, leasing: Leasing, messages: list[Any], holder: int, token: int | None, now_ms: int
) -> None:
    segment = Segment(0)
    segment.used = count = len(messages)
    holders, _ = segment.leases()
    columns: list[Any] = [segment.state, holders, segment.delivery_counts(), segment.deadlines()]
    for column, values in zip(columns, zip(*messages, strict=True), strict=True):
        column[:count] = values
    codes = settlement.judge(action, segment, slice(0, count), holder, token, leasing, now_ms)
    each = [settlement.judge_one(action, segment, slot, holder, token, leasing, now_ms) for slot in range(count)]
    assert codes.tolist() == each


@pytest.mark.feature("C49")
@given(st.lists(st.integers(-1, 2), min_size=1, max_size=8), st.sets(st.sampled_from([0, 1])))
def test_last_holders_of_few_are_those_among_many(holders: list[int], came_back: set[int]) -> None:
    state = QueueState()
    for index in (0, 1):
        segment = state.segments[index] = Segment(index)
        segment.used = segment.available = len(holders)
        segment.state[: len(holders)] = State.AVAILABLE
        segment.leases()[0][: len(holders)] = holders if index in came_back else NOBODY
    state.index.came_back |= came_back
    places = [*range(len(holders)), *range(SIZE, SIZE + len(holders))]
    few = candidates.last_holders(state, places)
    many = candidates.last_holders(state, np.array(places * 2))
    assert [few, few] == [None, None] if many is None else few == many[: len(places)]


@pytest.mark.feature("D4", "Q22")
@pytest.mark.parametrize("first", [0, 126, FIRST_REWOUND - 2, FIRST_REWOUND + 5, (1 << 63) - COUNT])
@pytest.mark.parametrize("with_cancels", [True, False])
def test_a_message_that_is_read_alone_is_read_as_among_many(first: int, with_cancels: bool) -> None:
    state = begun([1_000, NEVER, 500, 1_500], [])
    segment = state.segments[0]
    segment.runs[:] = [Run(0, 0, first, COUNT)]
    segment.delivery_counts()[:COUNT] = [0, 1, 300, (1 << 32) - 1]
    if with_cancels:
        segment.cancel_counts()[:COUNT] = [0, 2, 0, 1]
    ((_, together),) = state.sources.by_source(segment, np.arange(COUNT))
    each = [state.sources.find_single(segment, slot)[1] for slot in range(COUNT)]
    segment.delivery_counts()[:COUNT] += 1  # what comes later does not change what was read
    for one, at in zip(each, range(COUNT), strict=True):
        among = together.cut(at, at + 1)
        for name in ("offsets", "deadlines_ms", "deliveries", "cancels"):
            read, expected = getattr(one, name), getattr(among, name)
            assert (read is None) is (expected is None)
            if read is not None:
                assert read.tolist() == expected.tolist()
                assert read.dtype == expected.dtype
