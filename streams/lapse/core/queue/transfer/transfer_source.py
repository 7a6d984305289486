"""Transfer source: the side of a transfer that hands messages over (Q17).

First a message is *held*: it is not delivered here, and its lifetime goes on. Then it is *confirmed*: it has left, and
the destination may show the record that replaces it. Only the confirmation decides. So the two sides never both
deliver a message, however often a transfer is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions, Slots
from lapse.core.queue.inquiry.inquiry import Inquiry
from lapse.core.queue.life.table import Guard, Trigger, placed_states
from lapse.core.queue.life.transitions import Transitions
from lapse.core.queue.schedule.schedule import Schedule
from lapse.core.queue.schedule.scheduled import Scheduled
from lapse.core.queue.segments.segment import Segment, State
from lapse.core.queue.settlement import settlement
from lapse.core.queue.settlement.locator import Locator
from lapse.core.queue.settlement.settlement import Claim, Outcome, Result
from lapse.core.queue.step import Queued, Step
from lapse.core.queue.transfer.spare import Spare
from lapse.core.queue.transfer.transfers import HandOver, Transfer

_CONFIRMED: Final = placed_states(Trigger.CONFIRM_TRANSFER)
_TAKEN: Final = (*placed_states(Trigger.BEGIN_TRANSFER), *_CONFIRMED)
"""States in which a message is in the transfer afterwards: those that it takes, and those that it has taken before."""


class TransferSource:
    """Holds messages for transfers, confirms them, and gives them back to the queue."""

    def __init__(
        self, decisions: Decisions, transitions: Transitions, schedule: Schedule, locator: Locator, inquiry: Inquiry
    ) -> None:
        self._decisions = decisions
        self._transitions = transitions
        self._schedule = schedule
        self._locator = locator
        self._inquiry = inquiry
        self._state = decisions.state
        self.spare = Spare(decisions)

    def hold(
        self, transfer_id: str, target: str, claims: Iterable[Claim], most: int, now_ms: int, step: Step
    ) -> tuple[list[Outcome], bool]:
        """Hold messages for a transfer. They are not delivered, and their lifetime goes on.

        Args:
            transfer_id: id of the transfer.
            target: the destination, for people.
            claims: the messages; those that the transfer holds already are answered as settled again.
            most: the greatest number of messages held for the transfer at a time.
            now_ms: the command's instant, ms since the epoch.
            step: receives the decisions.

        Returns:
            The outcomes of the messages examined, and whether there are more.
        """
        outcomes: list[Outcome] = []
        room = self._room(transfer_id, most)
        more = False
        for claim in claims:
            self._state.segments.make_room()
            missing: list[Outcome] = []
            for segment, first, stop, offset, code in self._locator.locate(claim, missing):
                number = self._number(transfer_id)
                codes = settlement.judge_transfer(segment, first, stop, number, _TAKEN, self._now_ms(now_ms))
                fresh = np.flatnonzero((codes == code) & (segment.state[first:stop] != State.TRANSFERRING))
                if len(fresh) > max(room, 0):
                    more = True
                    stop = first + int(fresh[max(room, 0)])
                    codes, fresh = codes[: stop - first], fresh[: max(room, 0)]
                if len(codes):
                    outcomes += settlement.outcomes(claim.topic, claim.partition, offset, codes)
                if len(fresh):
                    room -= len(fresh)
                    some: Slots = [(segment, fresh + first)]
                    holder = self._get_or_begin(transfer_id, target, step).number
                    self._transitions.apply_trigger(
                        Trigger.BEGIN_TRANSFER, some, now_ms, step, detail=transfer_id, holder=holder
                    )
                if more:
                    break
            for one in missing:
                if one.result in (Result.SCHEDULED, Result.TRANSFERRING):
                    result = self._judge_scheduled(transfer_id, one, now_ms)
                    takes = result is Result.SETTLED and one.result is Result.SCHEDULED
                    if more or (takes and room <= 0):
                        more = True
                        continue
                    if takes:
                        room -= 1
                        self._hold_scheduled(transfer_id, target, one, now_ms, step)
                    outcomes.append(one._replace(result=result))
                elif not more:
                    outcomes.append(one)
            if more:
                break
        return outcomes, more

    def confirm(self, transfer_id: str, given: Iterable[HandOver], now_ms: int, step: Step) -> list[Outcome]:
        """Remove unexpired messages that a transfer holds and has put at its destination. Return the outcomes."""
        outcomes: list[Outcome] = []
        for one in given:
            self._state.segments.make_room()
            claim = Claim(one.topic, one.partition, one.first, one.first + one.count - 1)
            missing: list[Outcome] = []
            done: list[HandOver] = []
            for segment, first, stop, offset, code in self._locator.locate(claim, missing):
                number = self._number(transfer_id)
                codes = settlement.judge_transfer(segment, first, stop, number, _CONFIRMED, self._now_ms(now_ms))
                found = settlement.outcomes(claim.topic, claim.partition, offset, codes)
                outcomes += found
                done += [one.part(own.first, own.last) for own in found if own.result is Result.SETTLED]
                slots = np.flatnonzero(codes == code) + first
                if len(slots):
                    self._transitions.apply_trigger(
                        Trigger.CONFIRM_TRANSFER, [(segment, slots)], now_ms, step, detail=transfer_id
                    )
            for own in missing:
                if own.result is Result.TRANSFERRING:
                    own = self._confirm_scheduled(transfer_id, own, now_ms, step)
                    if own.result is Result.SETTLED:
                        done.append(one.part(own.first, own.last))
                outcomes.append(own)
            transfer = self._state.transfers.get(transfer_id)
            if done and transfer is not None:
                self._remember(transfer, [*transfer.confirmed, *done], step)
        return outcomes

    def finish(self, transfer_id: str, step: Step) -> None:
        """Forget the confirmed messages of a transfer, because the destination has them."""
        transfer = self._state.transfers.get(transfer_id)
        if transfer is None:
            return
        if any(len(slots) for _, slots in self._places(transfer_id)) or self._scheduled(transfer_id):
            self._remember(transfer, [], step)
        else:
            self._decisions.apply_change(Change(ChangeKind.TRANSFER, holder=transfer.number), step)

    def give_back(self, transfer_id: str, now_ms: int, step: Step) -> int:
        """Put the messages that a transfer holds back into the queue, and forget what it confirmed. Return how many."""
        transfer = self._state.transfers.get(transfer_id)
        if transfer is None:
            return 0
        returned = 0
        for segment, slots in self._places(transfer_id):
            returned += len(slots)
            until_ms = np.zeros(len(slots), np.int64) if segment.until_ms is None else segment.until_ms[slots].copy()
            until_ms[until_ms <= now_ms] = 0
            for delayed_ms in np.unique(until_ms).tolist():
                alike: Slots = [(segment, slots[until_ms == delayed_ms])]
                guard = Guard.DELAY if delayed_ms else None
                self._transitions.apply_trigger(
                    Trigger.ABANDON_TRANSFER, alike, now_ms, step, guard=guard, detail=transfer_id, until_ms=delayed_ms
                )
        for (source, offset), scheduled in self._scheduled(transfer_id):
            returned += 1
            if scheduled.deadline_ms > self._now_ms(now_ms):
                self._schedule.release(Trigger.ABANDON_TRANSFER, source, offset, now_ms, step)
            else:
                self._schedule.remove(Trigger.DEADLINE, source, offset, now_ms, step)
        self.finish(transfer_id, step)
        return returned

    def messages(self, transfer_id: str) -> Iterable[Queued]:
        """Yield the messages that a transfer holds."""
        for segment, slots in self._places(transfer_id):
            for slot in slots.tolist():
                yield self._inquiry.queued(segment, slot)
        for (source, offset), scheduled in self._scheduled(transfer_id):
            yield self._inquiry.queued_scheduled(source, offset, scheduled)

    # Helpers

    def _now_ms(self, now_ms: int) -> int:
        return self._decisions.deadlines_count_ms(now_ms)

    def _room(self, transfer_id: str, most: int) -> int:
        """Return how many more messages a transfer may hold."""
        with_place = sum(len(slots) for _, slots in self._places(transfer_id))
        return most - with_place - len(self._scheduled(transfer_id))

    def _number(self, transfer_id: str) -> int:
        """Return the number of a transfer, or an unused number if it is not in progress."""
        known = self._state.transfers.get(transfer_id)
        return -2 if known is None else known.number

    def _get_or_begin(self, transfer_id: str, target: str, step: Step) -> Transfer:
        if self._state.transfers.get(transfer_id) is None:
            self._write(Transfer(transfer_id, self._state.transfers.next_number, target), step)
        transfer = self._state.transfers.get(transfer_id)
        assert transfer is not None
        return transfer

    def _remember(self, transfer: Transfer, confirmed: list[HandOver], step: Step) -> None:
        self._write(Transfer(transfer.id, transfer.number, transfer.target, confirmed), step)

    def _write(self, transfer: Transfer, step: Step) -> None:
        self._decisions.apply_change(Change(ChangeKind.TRANSFER, holder=transfer.number, facts=transfer.facts()), step)

    def _places(self, transfer_id: str) -> list[tuple[Segment, NDArray[np.intp]]]:
        """Return the places that a transfer holds, in order."""
        number = self._number(transfer_id)
        found: list[tuple[Segment, NDArray[np.intp]]] = []
        for index in sorted(self._state.segments):
            outline = self._state.outline(index)
            if not (outline.may_be_held_by(number) and outline.count(State.TRANSFERRING)):
                continue
            segment = self._state.segments[index]
            if segment.holder is not None:
                mine = segment.holder[: segment.used] == number
                slots = np.flatnonzero(mine & (segment.state[: segment.used] == State.TRANSFERRING))
                if len(slots):
                    found.append((segment, slots))
        return found

    def _scheduled(self, transfer_id: str) -> list[tuple[tuple[int, int], Scheduled]]:
        """Return the messages without a place that a transfer holds, in the order of their instants (C11)."""
        scheduled, sources = self._state.scheduled, self._state.sources
        if not scheduled.in_transfer:
            return []
        mine = [(at, one) for at, one in scheduled.items() if one.in_transfer and one.transfer == transfer_id]

        def order(item: tuple[tuple[int, int], Scheduled]) -> tuple[int, str, int, int]:
            source = sources[item[0][0]]
            return item[1].then_ms, source.topic, source.partition, item[0][1]

        return sorted(mine, key=order)

    def _judge_scheduled(self, transfer_id: str, one: Outcome, now_ms: int) -> Result:
        """Return a transfer's result for a message without a place; SETTLED = it may hold it, or does already."""
        scheduled = self._state.scheduled[self._state.sources.number(one.topic, one.partition), one.first]
        if scheduled.transfer and not (scheduled.in_transfer and scheduled.transfer == transfer_id):
            return one.result
        return Result.TIME_LIMIT if scheduled.deadline_ms <= self._now_ms(now_ms) else Result.SETTLED

    def _hold_scheduled(self, transfer_id: str, target: str, one: Outcome, now_ms: int, step: Step) -> None:
        self._get_or_begin(transfer_id, target, step)
        self._schedule.transfer(
            self._state.sources.number(one.topic, one.partition), one.first, transfer_id, now_ms, step
        )

    def _confirm_scheduled(self, transfer_id: str, one: Outcome, now_ms: int, step: Step) -> Outcome:
        number = self._state.sources.number(one.topic, one.partition)
        scheduled = self._state.scheduled[number, one.first]
        if scheduled.transfer != transfer_id:
            return one
        if scheduled.deadline_ms <= self._now_ms(now_ms):
            return one._replace(result=Result.TIME_LIMIT)
        self._schedule.remove(Trigger.CONFIRM_TRANSFER, number, one.first, now_ms, step, detail=transfer_id)
        return one._replace(result=Result.SETTLED)
