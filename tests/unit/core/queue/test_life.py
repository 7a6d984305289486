"""The table of a message's life is what the shard runs on: what has no row is refused, what has one happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lapse.core.expression import compile_filter
from lapse.core.generation import position_of
from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Slots
from lapse.core.queue.delivery.retry import RetryRule
from lapse.core.queue.life import transitions
from lapse.core.queue.life.message_state import MEANINGS, State
from lapse.core.queue.life.movement import DEFERRALS, MOVES
from lapse.core.queue.life.table import ROWS, Guard, ImpossibleTransition, Route, Row, Trigger, route
from lapse.core.queue.removal.truncation import UNREAD
from lapse.core.queue.rewind.rewinding import RewindRequest
from lapse.core.queue.settings import Fairness, QueueSettings, Semantics
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from lapse.core.queue.transfer.transfers import HandOver
from lapse.core.reason import Reason
from lapse.core.shard.retirement import Cause
from support.suite.life_table import page
from unit.core.queue.test_diagram import ABOUT_OTHERS

PAGE = Path(__file__).parents[4] / "docs" / "message-life.md"


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
    with pytest.raises(ImpossibleTransition, match=f"{kind.name} takes no message that is {found.name}: place 1"):
        state.apply(change)
    assert State(int(state.segments[0].state[1])) is found


def test_one_message_in_another_state_refuses_the_whole_run() -> None:
    state = with_messages()
    state.apply(Change(ChangeKind.LEASED, [(2, 1)], holder=0))
    with pytest.raises(ImpossibleTransition, match="place 2"):
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
    with pytest.raises(ImpossibleTransition, match="UNSCHEDULED cannot take a message from UNREAD to GONE"):
        state.apply(Change(ChangeKind.UNSCHEDULED, **at))
    state.apply(Change(ChangeKind.SCHEDULED, **at))
    with pytest.raises(ImpossibleTransition, match="SCHEDULED cannot take a message from SCHEDULED to UNCONFIRMED"):
        state.apply(Change(ChangeKind.SCHEDULED, **at, facts={"transfer": "t"}))
    state.apply(Change(ChangeKind.SCHEDULED, **at, facts={"held": True}))
    state.apply(Change(ChangeKind.UNSCHEDULED, **at))
    assert not len(state.scheduled)


def test_every_change_about_messages_has_rows() -> None:
    carried = {change for row in ROWS for change in row.changes}
    assert carried | {ChangeKind.EXPIRED} == set(ChangeKind) - ABOUT_OTHERS


def test_nothing_leaves_from_where_it_has_left() -> None:
    """One way out: only a dead letter that is refused can follow."""
    left = {row.trigger.value for row in ROWS if row.state in (State.GONE, State.EXPIRED)}
    assert left == {"refuse its letter"}
    assert not any(MEANINGS[row.state].place and not MEANINGS[row.state].there for row in ROWS if row.reason)
    assert all(to is State.GONE for change, _, to in DEFERRALS if change is ChangeKind.UNSCHEDULED)


def test_the_meaning_of_a_state_is_what_its_rows_say() -> None:
    for trigger, meaning in ((Trigger.DEADLINE, "expires"), (Trigger.END, "ends"), (Trigger.LOSE_CONSUMER, "fills")):
        taken = {state for state in State if route(trigger).takes[state]}
        assert taken == {state for state in State if getattr(MEANINGS[state], meaning)}, trigger


# The shard runs on it


@contextmanager
def visits() -> Iterator[set[Row]]:
    """Collects the rows that are looked up, each time for a state, wherever a part of the shard does it."""
    visited: set[Row] = set()
    row_of, by_row = Route.row, transitions._by_row

    def note(row: Row, state: State) -> None:
        of_state = [one for one in ROWS if (one.trigger, one.state) == (row.trigger, state) and one[3:] == row[3:]]
        assert of_state, (row, state)
        visited.update(of_state)

    def looked_up(along: Route, state: State) -> Row:
        row = row_of(along, state)
        note(row, state)
        return row

    def parted(trigger: Trigger, guard: Guard | None, slots: Slots) -> list[tuple[Row, Slots]]:
        parts = by_row(trigger, guard, slots)
        for row, some in parts:
            for segment, of_segment in some:
                for state in np.unique(segment.state[of_segment]).tolist():
                    note(row, State(state))
        return parts

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Route, "row", looked_up)
        patched.setattr(transitions, "_by_row", parted)
        yield visited


ENQUEUE_MS, DEADLINE_MS = 50_000, 60_000
LATER, DEADLINE = ("lapse-enqueue-at-ms", b"%d" % ENQUEUE_MS), ("lapse-expires-at-ms", b"%d" % DEADLINE_MS)
FROM_TRANSFER, CLAIM = ("lapse-transfer", b"q/x"), Claim("t", 0, 1, 1)


RETRIED = (Trigger.END, Trigger.LOSE_CONSUMER)
"""What makes a message wait only by the queue's rule of retries (Q24)."""


class Record:
    key, value, timestamp = None, b"{}", 1_000

    def __init__(self, offset: int, *headers: tuple[str, bytes]) -> None:
        self.offset, self.headers = offset, headers


class Life:
    """One message, that of offset 1, in a shard of its own; another may take the only place below the target depth."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.offset = position_of(1, 1) if row.trigger is Trigger.REWIND else 1
        crowded = Guard.NO_ROOM is row.when or {State.HELD, State.REMEMBERED} & {row.state, row.to}
        once = Guard.AT_MOST_ONCE is row.when or row.state is State.SENT
        self.shard = QueueShard(
            QueueSettings(
                name="q",
                expiration=Expiration(enabled=True),
                lease_ms=300,
                dead_letter_topic="d",
                semantics=Semantics.AT_MOST_ONCE if once else Semantics.AT_LEAST_ONCE,
                fairness=Fairness.ROUND_ROBIN,
                target_depth=1 if crowded else None,
                max_deliveries=int(row.when is Guard.DELIVERIES),
                max_cancels=int(row.when is Guard.CANCELS),
                retry=RetryRule(delay_ms=500 if row.trigger in RETRIED and row.when is Guard.DELAY else 0),
                traits=TraitReader(barrier=compile_filter("TRUE") if row.trigger is Trigger.RELEASE else None),
            )
        )
        self.now_ms, self.step = 1_000, Step()
        self.other = 0 if State.REMEMBERED in (row.state, row.to) else 2
        self.shard.arrive("t", 0, [Record(0, ("lapse-message-id", b"one"))], Step())
        if not crowded or self.other:
            self.shard.purge(self.now_ms, Step())
        getattr(self, f"reach_{row.state.name.lower()}")()
        if row.when is Guard.NO_ROOM and row.state is not State.TRANSFERRING_EARLY:
            self.crowd()
        assert self.state is row.state or row.trigger is Trigger.EXCEED

    @property
    def place(self) -> int | None:
        standing = self.shard.state.sources[0].find_run(self.offset)
        return None if standing is None else standing.place + self.offset - standing.offset

    @property
    def state(self) -> State:
        state = self.shard.state
        source = state.sources[0]
        if (0, 1) in state.pending:
            return State.PENDING
        if (scheduled := state.scheduled.get(0, self.offset)) is not None:
            return scheduled.state
        if (place := self.place) is not None:
            return State(int(state.segments[0].state[place]))
        if (0, 1) in state.remembered:
            return State.REMEMBERED
        if self.row.trigger is Trigger.REWIND:
            return State.UNREAD  # of its generation, nothing was
        return State.GONE if source.next_offset > 1 or len(state.sources) > 1 else State.UNREAD

    def arrive(self, *headers: tuple[str, bytes]) -> None:
        self.shard.arrive("t", 0, [Record(1, *headers)], self.step, self.now_ms)

    def settle(self, action: SettleAction, delay_ms: int = 0) -> None:
        self.shard.settle(action, "s", [CLAIM], self.now_ms, self.step, delay_ms)

    def make_room(self) -> None:
        self.shard.settle(SettleAction.ACKNOWLEDGE, "s", [Claim("t", 0, self.other, self.other)], self.now_ms, Step())

    def crowd(self) -> None:
        self.shard.arrive("t", 0, [Record(self.other)], Step(), self.now_ms)

    def deliver(self) -> None:
        self.shard.subscribing.subscribe("s", "", 5, 1_000_000, "", self.now_ms, Step())
        self.shard.deliver(self.now_ms, self.step)

    def advance(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.shard.advance(now_ms, self.step)

    # How it comes to each state

    def reach_unread(self) -> None:
        pass

    def reach_remembered(self) -> None:
        self.shard.note_end("t", 0, 9)
        self.settle(SettleAction.ACKNOWLEDGE)

    def reach_available(self) -> None:
        self.arrive(DEADLINE)

    def reach_leased(self) -> None:
        self.arrive(DEADLINE)
        self.deliver()

    reach_sent = reach_leased

    def reach_delayed(self) -> None:
        self.reach_leased()
        self.settle(SettleAction.CANCEL, 500)
        if self.row.when is Guard.CANCELS:
            self.advance(1_500)
            self.deliver()
            self.settle(SettleAction.CANCEL, 500)

    def reach_scheduled(self) -> None:
        self.arrive(LATER, DEADLINE)

    def reach_held(self) -> None:
        self.arrive(LATER, DEADLINE)
        self.crowd()
        self.advance(ENQUEUE_MS)
        self.step = Step()

    def reach_unconfirmed(self) -> None:
        self.arrive(FROM_TRANSFER, DEADLINE, *([LATER] if self.row.when is Guard.LATER else []))

    def reach_transferring(self) -> None:
        self.reach_delayed() if self.row.when is Guard.DELAY else self.reach_available()
        self.shard.transfer_source.hold("x", "", [CLAIM], 9, self.now_ms, self.step)

    def reach_transferring_early(self) -> None:
        self.reach_scheduled()
        self.shard.transfer_source.hold("x", "", [CLAIM], 9, self.now_ms, self.step)
        if self.row.when is Guard.NO_ROOM:
            self.crowd()
        if self.row.when in (Guard.ROOM, Guard.NO_ROOM):
            self.now_ms = ENQUEUE_MS

    def reach_gone(self) -> None:
        self.reach_available()
        self.settle(SettleAction.EXPIRE)

    def reach_expired(self) -> None:
        self.reach_available()
        self.advance(DEADLINE_MS)

    def reach_pending(self) -> None:
        self.reach_gone()
        self.refuse_letter()

    # What happens to it

    def happen(self) -> None:
        self.step.events.clear()
        getattr(self, self.row.trigger.name.lower())()

    def arrive_(self) -> None:
        said = {
            Guard.LATER: [LATER],
            Guard.FROM_TRANSFER: [FROM_TRANSFER],
            Guard.UNREADABLE: [("lapse-ttl-ms", b"soon")],
            Guard.LATE: [("lapse-expires-at-ms", b"900")],
            Guard.REPEATED: [("lapse-message-id", b"one")],
        }
        if self.row.state is State.REMEMBERED:
            self.make_room()
        self.arrive(*said.get(self.row.when, []))

    def spoil(self) -> None:
        if self.row.state in (State.UNREAD, State.REMEMBERED):
            self.shard.set_aside("t", 0, Record(1), "why", self.step)
        else:
            self.shard.remove_undecodable("t", 0, 1, "why", self.now_ms, self.step)

    def come_due(self) -> None:
        if self.row.state is State.HELD:
            self.make_room()
        self.advance(ENQUEUE_MS)

    def deadline(self) -> None:
        if self.row.state is State.HELD:
            self.make_room()
        self.advance(DEADLINE_MS)

    def release(self) -> None:
        self.deliver()
        if self.row.when is Guard.RECORDLESS:
            self.shard.remove_truncated("t", 0, [1], self.now_ms, self.step, handed_out=True)
        elif self.row.when is Guard.REFUSED:
            self.shard.remove_undecodable("t", 0, 1, "why", self.now_ms, self.step, handed_out=True)

    def end(self) -> None:
        self.advance(1_400 if self.row.when is Guard.DELAY else 1_500)

    def lose_consumer(self) -> None:
        if self.row.when is Guard.DELAY:  # nobody heard of it for too long
            self.shard.unsubscribe("s", self.now_ms, self.step, lost_at_ms=self.now_ms)
        else:
            self.shard.unsubscribe("s", self.now_ms, self.step)

    def undeliver(self) -> None:
        self.shard.handed_out.take_back([self.place])

    def exceed(self) -> None:
        if self.row.state is State.AVAILABLE:
            self.deliver()
            self.settle(SettleAction.CANCEL)
            if self.row.when is Guard.CANCELS:
                self.deliver()
                self.settle(SettleAction.CANCEL)

    def acknowledge(self) -> None:
        self.shard.note_end("t", 0, 9)
        self.settle(SettleAction.ACKNOWLEDGE)

    def cancel(self) -> None:
        self.settle(SettleAction.CANCEL, 500 if self.row.when is Guard.DELAY else 0)

    def expire(self) -> None:
        self.settle(SettleAction.EXPIRE)

    def renew(self) -> None:
        self.shard.renew("s", [CLAIM], self.now_ms, self.step)

    def purge(self) -> None:
        self.shard.purge(self.now_ms, self.step, leased=self.row.when is Guard.LEASED_TOO)

    def truncate(self) -> None:
        self.shard.truncate_below("t", 0, 2, self.now_ms, self.step)

    def replace_topic(self) -> None:
        self.shard.replace_topic("t", 5, self.now_ms, self.step)

    def retire(self) -> None:
        cause = Cause.IDLE if self.row.when is Guard.IDLE else Cause.DELETE
        self.shard.agreement._retirable.remove_some(SimpleNamespace(cause=cause), self.now_ms, self.step)

    def begin_transfer(self) -> None:
        self.shard.transfer_source.hold("x", "", [CLAIM], 9, self.now_ms, self.step)

    def confirm_transfer(self) -> None:
        self.shard.transfer_source.confirm("x", [HandOver("t", 0, 1, 1, "u", 0, 0)], self.now_ms, self.step)

    def abandon_transfer(self) -> None:
        self.shard.transfer_source.give_back("x", self.now_ms, self.step)

    def accept(self) -> None:
        self.shard.transfer_target.accept("x", [CLAIM], self.now_ms, self.step)

    def discard(self) -> None:
        self.shard.transfer_target.discard("x", self.now_ms, self.step)

    def rewind(self) -> None:
        source, rewinding = self.shard.state.sources[0], self.shard.rewinding
        source.next_offset = max(source.next_offset, 2)
        rewind = rewinding.begin(RewindRequest("r", self.now_ms, 0, {0: 1}), self.step)
        record = Record(1, *([LATER] if self.row.when is Guard.LATER else []))
        rewinding.bring_back_part(rewind, [(0, [record])], {0: source.next_offset}, None, self.step)

    def refuse_letter(self) -> None:
        self.shard.keep_refused_letters([((self.step.removals[-1], 0), "too large")], self.step)

    def write_letter(self) -> None:
        self.shard.letter_written((0, 1), self.step)


def _named(row: Row) -> str:
    return f"{row.trigger.value}, {row.state.name.lower()}" + (f", {row.when.value}" if row.when else "")


@pytest.mark.parametrize("row", [row for row in ROWS if row is not UNREAD], ids=_named)
def test_each_row_is_looked_up_and_happens(row: Row) -> None:
    """The runtime reports what was never read: see `unit/runtime/queue/test_unread_events.py`."""
    with visits() as visited:
        life = Life(row)
        visited.clear()
        if row.trigger is Trigger.EXCEED and row.state is State.DELAYED:
            with visits() as visited:
                life = Life(row)
        elif row.trigger is Trigger.ARRIVE:
            life.step.events.clear()
            life.arrive_()
        else:
            life.happen()
    assert row in visited
    reasons = [reason for removal in life.step.removals for reason in removal.reasons]
    left_late = row.to is State.GONE and MEANINGS[row.state].place and Reason.TIME_LIMIT in reasons
    unread = row.state is State.REMEMBERED and row.trigger in (Trigger.TRUNCATE, Trigger.REPLACE_TOPIC)
    assert life.state is (State.EXPIRED if left_late else State.UNREAD if unread else row.to)
    assert not row.emits or row.emits in [event.kind for event in life.step.events]
    assert row.reason is None or row.reason in reasons


@pytest.mark.feature("L11", "C40", "C79", "C80")
def test_a_trigger_spares_states_without_a_row() -> None:
    """A trigger of many messages at once changes none whose state has no row for it: leased, in a transfer, sent."""
    spared = 0
    for trigger in (Trigger.DEADLINE, Trigger.PURGE, Trigger.TRUNCATE, Trigger.END, Trigger.RETIRE, Trigger.DISCARD):
        for state in State:
            meaning = MEANINGS[state]
            if not (meaning.there or meaning.deferred) or route(trigger).takes[state]:
                continue
            life = Life(Row(trigger, state, None, (), state))
            if trigger is Trigger.DEADLINE:
                life.shard._advance._timers.expire(DEADLINE_MS, life.step)
            elif trigger is Trigger.END:
                life.shard._advance._timers.end_leases(DEADLINE_MS, life.step)
            else:
                life.happen()
            assert life.state is state, (trigger, state)
            spared += 1
    assert spared > 15


def test_the_page_is_what_the_table_prints() -> None:
    assert PAGE.read_text() == page(), "python tests/life.py > docs/message-life.md"


def test_no_two_rows_hold_at_once() -> None:
    assert len({row[:3] for row in ROWS}) == len(ROWS)
