"""The table of a message's life is what the shard runs on: what has no row is refused, what has one happens."""

from __future__ import annotations

import numpy as np
import pytest

from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.life import ROWS, Impossible
from lapse.core.queue.message_state import MEANINGS, State
from lapse.core.queue.movement import DEFERRALS, MOVES
from lapse.core.queue.state import QueueState


def with_messages(count: int = 4) -> QueueState:
    state = QueueState()
    number = state.sources.number("t", 0)
    state.apply(Change(ChangeKind.ARRIVED, [(0, count)], source=number))
    return state


@pytest.mark.parametrize("kind", sorted(MOVES))
@pytest.mark.parametrize("found", [state for state in State if state <= State.TRANSFERRING])
def test_a_change_takes_messages_from_the_states_of_its_rows_only(kind: ChangeKind, found: State) -> None:
    state = with_messages()
    state.segments[0].state[1] = found  # among others that are available
    change = Change(kind, [(1, 1)], holder=0)
    if MOVES[kind].takes[found]:
        state.apply(change)
        assert State(int(state.segments[0].state[1])) is MOVES[kind].to
        return
    with pytest.raises(Impossible, match=f"{kind.name} takes no message that is {found.name}: place 1"):
        state.apply(change)
    assert State(int(state.segments[0].state[1])) is found


def test_one_message_in_another_state_refuses_the_whole_run() -> None:
    state = with_messages()
    state.apply(Change(ChangeKind.LEASED, [(2, 1)], holder=0))
    with pytest.raises(Impossible, match="place 2"):
        state.apply(Change(ChangeKind.LEASED, [(0, 4)], holder=0))
    assert state.segments[0].state[:4].tolist() == [1, 1, 2, 1]


def test_what_is_read_back_of_a_segment_that_soon_was_gone_is_left_out() -> None:
    """Its beginning is in the journal no more: nothing is known of these places, and nothing becomes of them."""
    state = with_messages()
    state.recovering = True
    state.segments[0].state[:2] = State.GONE
    state.apply(Change(ChangeKind.LEASED, [(0, 4)], holder=0))
    state.apply(Change(ChangeKind.SETTLED, [(0, 3)]))
    assert state.segments[0].state[:4].tolist() == [State.GONE, State.GONE, State.GONE, State.LEASED]


def test_a_message_without_a_place_goes_by_the_rows_as_well() -> None:
    state = with_messages()
    at = {"source": 0, "offset": 9, "until_ms": 5, "deadlines_ms": np.array([7])}
    with pytest.raises(Impossible, match="UNSCHEDULED cannot take a message from UNREAD to GONE"):
        state.apply(Change(ChangeKind.UNSCHEDULED, **at))
    state.apply(Change(ChangeKind.SCHEDULED, **at))
    with pytest.raises(Impossible, match="SCHEDULED cannot take a message from SCHEDULED to UNCONFIRMED"):
        state.apply(Change(ChangeKind.SCHEDULED, **at, facts={"transfer": "t"}))
    state.apply(Change(ChangeKind.SCHEDULED, **at, facts={"ready": True}))
    state.apply(Change(ChangeKind.UNSCHEDULED, **at))
    assert not len(state.scheduled)


def test_every_change_about_messages_has_rows() -> None:
    carried = {change for row in ROWS for change in row.changes}
    others = {
        ChangeKind.SUBSCRIBED,
        ChangeKind.UNSUBSCRIBED,
        ChangeKind.PAUSED,
        ChangeKind.RESUMED,
        ChangeKind.IDENTIFIED,
        ChangeKind.FORGOTTEN,
        ChangeKind.REPLACED,
        ChangeKind.RETIRING,
        ChangeKind.USED,
        ChangeKind.TRANSFER,
    }
    assert carried | {ChangeKind.EXPIRED} == set(ChangeKind) - others


def test_nothing_leaves_from_where_it_has_left() -> None:
    """One way out: only a dead letter that is refused can follow."""
    left = {row.trigger.value for row in ROWS if row.state in (State.GONE, State.EXPIRED)}
    assert left == {"refuse its letter"}
    assert not any(MEANINGS[row.state].place and not MEANINGS[row.state].there for row in ROWS if row.reason)
    assert all(to is State.GONE for change, _, to in DEFERRALS if change is ChangeKind.UNSCHEDULED)
