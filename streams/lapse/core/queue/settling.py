"""Settling: acknowledgments, cancels, expiries and renewals, bookmark by bookmark (Q8, C13 to C18)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue import settlement
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions, Slots, places_of
from lapse.core.queue.matching import YES
from lapse.core.queue.message_state import LIVE, State
from lapse.core.queue.removal import Removals
from lapse.core.queue.schedule import Schedule
from lapse.core.queue.segment import AVAILABLE, DELAYED, SENT, SIZE, Segment, Where, slots_of, where_of
from lapse.core.queue.settlement import Claim, Outcome, Result
from lapse.core.queue.source import Standing
from lapse.core.queue.step import Messages, ShardEvent, Step
from lapse.core.queue.trait import Flag
from lapse.core.reason import Reason

_MOST_TOKEN: Final = 1 << 32
_MOST_REMEMBERED: Final = 10_000
"""So many messages beyond the target depth one range may acknowledge: each is a record in the journal."""


class Settling:
    """Carries out what subscriptions ask for."""

    def __init__(self, decisions: Decisions, removals: Removals, schedule: Schedule) -> None:
        self._decisions = decisions
        self._removals = removals
        self._schedule = schedule
        self._state = decisions.state
        self._settings = decisions.settings

    def settle(
        self,
        action: settlement.SettleAction,
        subscription: str,
        claims: Iterable[Claim],
        now_ms: int,
        step: Step,
        delay_ms: int = 0,
        row_filter: str = "",
    ) -> list[Outcome]:
        """See `QueueShard.settle`."""
        outcomes: list[Outcome] = []
        if self._settings.traits.barrier is not None:  # whatever is left of a range stays one
            claims = [claim if claim.alone else claim._replace(found=True) for claim in claims]
        # With a row_filter each is judged by itself: what of it is held, and what may be seen.
        one_by_one = (
            settlement.each_once(claims, outcomes)
            if row_filter
            else self._one_by_one(action, subscription, claims, outcomes, now_ms, step)
        )
        for claim in one_by_one:
            if self._is_of_another_topic(claim):
                outcomes.append(Outcome(*claim[:4], Result.STALE))
                continue
            withdraws = action is settlement.SettleAction.CANCEL and self._may_see(claim, row_filter)
            if withdraws and self._withdraw(claim, outcomes, now_ms, step):
                continue
            if action is settlement.SettleAction.ACKNOWLEDGE and self._state.scheduled.ready:
                for part in self._without_held(subscription, claim, outcomes, now_ms, step, row_filter):
                    self._settle_part(action, subscription, part, outcomes, now_ms, step, delay_ms, row_filter)
                continue
            self._settle_part(action, subscription, claim, outcomes, now_ms, step, delay_ms, row_filter)
        return outcomes

    def _settle_part(
        self,
        action: settlement.SettleAction,
        subscription: str,
        claim: Claim,
        outcomes: list[Outcome],
        now_ms: int,
        step: Step,
        delay_ms: int,
        row_filter: str,
    ) -> None:
        """Settle what a claim names, active or not."""
        # With a row_filter, what is not active yet is not judged, and so is not theirs to settle.
        if row_filter or action is not settlement.SettleAction.ACKNOWLEDGE or self._settings.target_depth is None:
            self._settle_active(action, subscription, claim, outcomes, now_ms, step, delay_ms, row_filter)
            return
        active, inactive, beyond = self._parted(claim)
        if active is not None:
            self._settle_active(action, subscription, active, outcomes, now_ms, step, delay_ms)
        if inactive is not None:
            self._remember(subscription, inactive, outcomes, now_ms, step)
        if beyond is not None:
            outcomes.append(Outcome(*beyond[:4], Result.UNKNOWN))

    def _without_held(
        self, subscription: str, claim: Claim, outcomes: list[Outcome], now_ms: int, step: Step, row_filter: str
    ) -> Iterator[Claim]:
        """Acknowledge what is held beyond the target depth (C51, Q13), and yield what else a claim names, in order."""
        number = self._state.sources.find(claim.topic, claim.partition)
        if number is None:
            yield claim
            return
        at = claim.first
        for offset in list(self._state.scheduled.between(number, claim.first, claim.last)):
            scheduled = self._state.scheduled[number, offset]
            if not scheduled.ready or not self._may_see(claim._replace(first=offset), row_filter):
                continue
            if offset > at:
                yield claim._replace(first=at, last=offset - 1)
            messages = self._decisions.one(number, offset, scheduled.deadline_ms)
            self._decisions.do(Change(ChangeKind.UNSCHEDULED, source=number, offset=offset), step)
            step.events.append(ShardEvent("acknowledged", now_ms, messages, subscription))
            outcomes.append(Outcome(claim.topic, claim.partition, offset, offset, Result.SETTLED))
            at = offset + 1
        if at <= claim.last:
            yield claim._replace(first=at)

    def _one_by_one(
        self,
        action: settlement.SettleAction,
        subscription: str,
        claims: Iterable[Claim],
        outcomes: list[Outcome],
        now_ms: int,
        step: Step,
    ) -> Iterator[Claim]:
        """Acknowledge together the claims that can be, and yield all others.

        Those that follow one another and name ascending messages that stand in one piece can be: none depends on what
        becomes of another, and what takes many calls for one takes as many for all.
        """
        waiting, looked = deque(claims), 0
        while waiting:
            claim = waiting.popleft()
            together = [claim]
            if action is settlement.SettleAction.ACKNOWLEDGE and waiting and claim.last < waiting[0].first:
                standing = self._standing(claim)
                while standing and waiting and _follows(waiting[0], together[-1], standing):
                    together.append(waiting.popleft())
            if len(together) == 1:
                yield claim
            else:
                self._acknowledge(subscription, together, outcomes, now_ms, step)
            if any(one.result is Result.STALE for one in outcomes[looked:]):
                yield from settlement.each_once(waiting, outcomes)
                return
            looked = len(outcomes)

    def _standing(self, claim: Claim) -> Standing | None:
        """Where the first message of a claim stands."""
        number = self._state.sources.find(claim.topic, claim.partition)
        if number is None or self._is_of_another_topic(claim):
            return None
        return self._state.sources[number].standing(claim.first)

    def _acknowledge(
        self, subscription: str, claims: Sequence[Claim], outcomes: list[Outcome], now_ms: int, step: Step
    ) -> None:
        """Acknowledge what several claims name, all of it in one piece."""
        standing = self._standing(claims[0])
        assert standing is not None
        segment = self._state.segments[standing.place // SIZE]
        shift = standing.place - segment.base - standing.offset
        where = where_of([(claim.first + shift, claim.last + shift + 1) for claim in claims])
        tokens = [settlement.NO_TOKEN if claim.delivery_count is None else claim.delivery_count for claim in claims]
        counts = [claim.last - claim.first + 1 for claim in claims]
        action = settlement.SettleAction.ACKNOWLEDGE
        codes = self._judge(action, segment, where, subscription, np.repeat(np.array(tokens, np.int64), counts), now_ms)
        self._spare_barriers(codes, segment, where, np.repeat([not claim.alone for claim in claims], counts))
        outcomes.extend(settlement.outcomes_of(claims, codes))
        slots = slots_of(where)[codes == settlement.SETTLED]
        if len(slots):
            self._carry_out(action, segment, slots, subscription, now_ms, 0, step)
        self._state.segments.make_room()

    def _settle_active(
        self,
        action: settlement.SettleAction,
        subscription: str,
        claim: Claim,
        outcomes: list[Outcome],
        now_ms: int,
        step: Step,
        delay_ms: int,
        row_filter: str = "",
    ) -> None:
        for segment, first, stop, offset, code in self._located(claim, outcomes, row_filter):
            codes = self._judge(action, segment, slice(first, stop), subscription, claim.delivery_count, now_ms)
            if not claim.alone:
                self._spare_barriers(codes, segment, slice(first, stop), np.ones(len(codes), bool))
            if row_filter:
                self._hide(codes, segment, first, offset, claim, subscription, row_filter)
            outcomes.extend(settlement.outcomes(claim.topic, claim.partition, offset, codes))
            slots = np.flatnonzero(codes == code) + first
            if len(slots):
                self._carry_out(action, segment, slots, subscription, now_ms, delay_ms, step)

    def _spare_barriers(
        self, codes: NDArray[np.uint8], segment: Segment, where: Where, swept: NDArray[np.bool_]
    ) -> None:
        """Only its own bookmark takes a barrier that is not released; a range or a filter does not (C86)."""
        if segment.flags is None or self._settings.traits.barrier is None or not self._state.index.barriers:
            return
        waiting = ((segment.flags[where] & Flag.BARRIER) != 0) & np.isin(segment.state[where], (AVAILABLE, DELAYED))
        codes[waiting & swept & (codes == settlement.SETTLED)] = settlement.NOT_LEASED

    def renew(
        self,
        subscription: str,
        claims: Iterable[Claim],
        now_ms: int,
        step: Step,
        lease_ms: int | None = None,
        row_filter: str = "",
    ) -> tuple[list[Outcome], int]:
        """See `QueueShard.renew`."""
        asked_ms = self._settings.lease_ms if lease_ms is None else min(lease_ms, self._settings.max_lease_ms)
        until_ms = now_ms + asked_ms
        outcomes: list[Outcome] = []
        for claim in settlement.each_once(claims, outcomes):
            if self._is_of_another_topic(claim):
                outcomes.append(Outcome(*claim[:4], Result.STALE))
                continue
            for segment, first, stop, offset, code in self._located(claim, outcomes, row_filter):
                codes = self._judge(
                    settlement.SettleAction.RENEW,
                    segment,
                    slice(first, stop),
                    subscription,
                    claim.delivery_count,
                    now_ms,
                )
                if row_filter:
                    self._hide(codes, segment, first, offset, claim, subscription, row_filter)
                outcomes.extend(settlement.outcomes(claim.topic, claim.partition, offset, codes))
                slots = np.flatnonzero(codes == code) + first
                if len(slots):
                    self._decisions.do(
                        Change(ChangeKind.RENEWED, places_of([(segment, slots)]), until_ms=until_ms), step
                    )
                    self._decisions.tell("renewed", [(segment, slots)], now_ms, step, subscription)
        return outcomes, until_ms

    def unheld(self, subscription: str, claims: Iterable[Claim]) -> Iterator[list[int]]:
        """See `QueueShard.unheld`."""
        for claim in claims:
            for segment, first, stop, _, _ in self.located(claim, []):
                places = self._not_held(segment, first, stop, subscription) + segment.base
                if len(places):
                    yield places.tolist()

    def unplaced(self, subscription: str, claims: Iterable[Claim], limit: int) -> Iterator[tuple[str, int, list[int]]]:
        """See `QueueShard.unplaced`."""
        for claim in claims:
            offsets: list[int] = []
            missing: list[Outcome] = []
            for segment, first, stop, offset, _ in self.located(claim, missing):
                gone = np.flatnonzero(~np.isin(segment.state[first:stop], (*LIVE, State.SENT)))
                offsets += (gone[: limit - len(offsets)] + offset).tolist()
            for one in missing:
                if one.result is not Result.UNKNOWN:
                    offsets += range(one.first, min(one.last + 1, one.first + max(0, limit - len(offsets))))
            limit -= len(offsets)
            if offsets:
                yield claim.topic, claim.partition, sorted(offsets)

    def _not_held(self, segment: Segment, first: int, stop: int, subscription: str) -> NDArray[np.intp]:
        """Slots of messages that are there, and that a subscription has neither leased nor been sent."""
        there = np.isin(segment.state[first:stop], (*LIVE, State.SENT))
        return np.flatnonzero(there & ~self._held(segment, first, stop, subscription)) + first

    def _held(self, segment: Segment, first: int, stop: int, subscription: str) -> NDArray[np.bool_]:
        """Which messages a subscription has leased or been sent."""
        state = segment.state[first:stop]
        known = self._state.subscriptions.get(subscription)
        if known is None or segment.holder is None:
            return np.zeros(len(state), bool)
        held: NDArray[np.bool_] = np.isin(state, (State.LEASED, State.SENT))
        held &= segment.holder[first:stop] == known.number
        return held

    def _hide(
        self,
        codes: NDArray[np.uint8],
        segment: Segment,
        first: int,
        offset: int,
        claim: Claim,
        subscription: str,
        row_filter: str,
    ) -> None:
        """Answer for what may not be seen as for what never was: unknown (X4). What is gone is hidden alike."""
        stop = first + len(codes)
        visible = self._held(segment, first, stop, subscription)
        slots = self._not_held(segment, first, stop, subscription)
        if len(slots):
            visible[slots - first] = self._decisions.matching.codes(row_filter, segment.index, slots) == YES
        for seen in self._decisions.matching.seen(row_filter, claim.topic, claim.partition):
            if offset <= seen < offset + len(codes):
                visible[seen - offset] = True
        codes[~visible] = settlement.UNKNOWN

    def _may_see(self, claim: Claim, row_filter: str) -> bool:
        """Whether the first message of a claim may be seen, which has no place."""
        return not row_filter or claim.first in self._decisions.matching.seen(row_filter, claim.topic, claim.partition)

    def _located(
        self, claim: Claim, outcomes: list[Outcome], row_filter: str
    ) -> Iterator[tuple[Segment, int, int, int, int]]:
        """The same as `located`, where what has no place and may not be seen is answered as unknown (X4)."""
        if not row_filter:
            yield from self.located(claim, outcomes)
            return
        missing: list[Outcome] = []
        for found in self.located(claim, missing):
            outcomes += self._hidden(missing, row_filter)
            missing.clear()
            yield found
        outcomes += self._hidden(missing, row_filter)

    def _hidden(self, missing: Iterable[Outcome], row_filter: str) -> Iterator[Outcome]:
        """What is answered for messages without a place: unknown, but for those that may be seen."""
        for one in missing:
            seen = self._decisions.matching.seen(row_filter, one.topic, one.partition)
            at = one.first
            for offset in sorted(each for each in seen if one.first <= each <= one.last):
                if offset > at:
                    yield one._replace(first=at, last=offset - 1, result=Result.UNKNOWN)
                yield one._replace(first=offset, last=offset)
                at = offset + 1
            if at <= one.last:
                yield one._replace(first=at, result=Result.UNKNOWN)

    def take_out(
        self, claim: Claim, states: Sequence[State], reason: Reason, now_ms: int, step: Step, detail: str = ""
    ) -> None:
        """Take out messages in some states whose records Kafka no longer has (C40), or must not be looked at (X7)."""
        for segment, first, stop, _, _ in self.located(claim, []):
            slots = self._decisions.slots_in(segment, states)
            slots = slots[(slots >= first) & (slots < stop)]
            if len(slots):
                self._removals.remove([(segment, slots)], (reason,), now_ms, step, detail=detail)

    def looks_ahead(self, claims: Iterable[Claim]) -> list[tuple[str, int]]:
        """See `QueueShard.looks_ahead`."""
        if self._settings.target_depth is None:
            return []
        names: set[tuple[str, int]] = set()
        for claim in claims:
            number = self._state.sources.find(claim.topic, claim.partition)
            if number is not None and claim.last >= self._state.sources[number].next_offset:
                names.add((claim.topic, claim.partition))
        return sorted(names)

    def _is_of_another_topic(self, claim: Claim) -> bool:
        """Whether a delivery is settled that was made before the topic was created again (C42)."""
        number = self._state.sources.find(claim.topic, claim.partition)
        return number is not None and claim.epoch is not None and claim.epoch < self._state.sources[number].since_epoch

    def _withdraw(self, claim: Claim, outcomes: list[Outcome], now_ms: int, step: Step) -> bool:
        """Withdraw a scheduled message that is named by itself; in a range it is left alone (L5, C16)."""
        number = self._state.sources.find(claim.topic, claim.partition)
        scheduled = None if number is None else self._state.scheduled.get(number, claim.first)
        if number is None or scheduled is None or scheduled.transfer or claim.first != claim.last:
            return False
        late = scheduled.deadline_ms <= self._decisions.deadlines_count_ms(now_ms)
        if not late:
            self._schedule.remove(number, claim.first, (Reason.WITHDRAWN,), now_ms, step)
        outcomes.append(Outcome(*claim[:4], Result.TIME_LIMIT if late else Result.SETTLED))
        return True

    def _parted(self, claim: Claim) -> tuple[Claim | None, Claim | None, Claim | None]:
        """Part a claim into what was read, what is in the log but not active yet, and what is behind its end (C16)."""
        number = self._state.sources.find(claim.topic, claim.partition)
        if number is None:
            return None, None, claim
        source = self._state.sources[number]
        edges = (0, source.next_offset, max(source.next_offset, source.end_offset), 1 << 63)
        parts: list[Claim | None] = []
        for low, high in pairwise(edges):
            first, last = max(claim.first, low), min(claim.last, high - 1)
            parts.append(claim._replace(first=first, last=last) if first <= last else None)
        return parts[0], parts[1], parts[2]

    def _remember(self, subscription: str, claim: Claim, outcomes: list[Outcome], now_ms: int, step: Step) -> None:
        """Remember acknowledgments of messages that are not active yet (Q13)."""
        number = self._state.sources.number(claim.topic, claim.partition)
        left_out: list[Outcome] = []
        if claim.last - claim.first >= _MOST_REMEMBERED:
            stop = claim.first + _MOST_REMEMBERED
            left_out.append(Outcome(claim.topic, claim.partition, stop, claim.last, Result.UNKNOWN))
            claim = claim._replace(last=stop - 1)
        fresh: list[int] = []
        for offset in range(claim.first, claim.last + 1):
            if (number, offset) not in self._state.remembered:
                self._decisions.do(Change(ChangeKind.REMEMBERED, source=number, offset=offset), step)
                fresh.append(offset)
        offsets = np.array(fresh, np.int64)
        messages = Messages(claim.topic, claim.partition, offsets, None, np.zeros(len(fresh), np.uint32), None)
        at = claim.first
        for first, last in messages.ranges():
            if first > at:
                outcomes.append(Outcome(claim.topic, claim.partition, at, first - 1, Result.ALREADY_SETTLED))
            outcomes.append(Outcome(claim.topic, claim.partition, first, last, Result.SETTLED))
            at = last + 1
        if at <= claim.last:
            outcomes.append(Outcome(claim.topic, claim.partition, at, claim.last, Result.ALREADY_SETTLED))
        outcomes += left_out
        if fresh:
            step.events.append(ShardEvent("acknowledged", now_ms, messages, subscription))

    def located(self, claim: Claim, outcomes: list[Outcome]) -> Iterable[tuple[Segment, int, int, int, int]]:
        """Find the places that a claim names; what has none is answered into `outcomes` on the way, in order.

        Yields:
            Segment, first slot, slot behind the last, offset of the first, and the code of `settled`.
        """
        topic, partition, first, last = claim[:4]
        number = self._state.sources.find(topic, partition)
        if number is None:
            outcomes.append(Outcome(topic, partition, first, last, Result.UNKNOWN))
            return
        source = self._state.sources[number]
        # All pieces first: what is settled on the way can take a segment, and its standings, away.
        for piece in list(source.find(first, min(last, source.next_offset - 1))):
            if piece.place < 0:
                outcomes.extend(self._missing(number, piece.first, piece.last))
                continue
            for segment, slot, stop in list(self._state.spans([(piece.place, piece.last - piece.first + 1)])):
                yield segment, slot, stop, piece.first, settlement.SETTLED
                self._state.segments.make_room()
                break
            else:
                outcomes.extend(self._missing(number, piece.first, piece.last))
        if last >= source.next_offset:
            outcomes.append(Outcome(topic, partition, max(first, source.next_offset), last, Result.UNKNOWN))

    def _missing(self, number: int, first: int, last: int) -> Iterable[Outcome]:
        """Answer for offsets that stand nowhere: scheduled, expired, or settled before."""
        source = self._state.sources[number]
        marks: list[tuple[int, int, Result]] = [
            (offset, offset, Result.TRANSFERRING if self._state.scheduled[number, offset].held else Result.SCHEDULED)
            for offset in self._state.scheduled.between(number, first, last)
        ]
        marks += [
            (max(first, low), min(last, high), Result.TIME_LIMIT)
            for of, low, high in self._state.expired
            if of == number and low <= last and high >= first
        ]
        at = first
        for low, high, result in sorted(marks):
            if low > at:
                yield Outcome(source.topic, source.partition, at, low - 1, Result.ALREADY_SETTLED)
            if high >= at:
                yield Outcome(source.topic, source.partition, max(at, low), high, result)
                at = high + 1
        if at <= last:
            yield Outcome(source.topic, source.partition, at, last, Result.ALREADY_SETTLED)

    def _judge(
        self,
        action: settlement.SettleAction,
        segment: Segment,
        where: Where,
        subscription: str,
        token: int | NDArray[np.int64] | None,
        now_ms: int,
    ) -> NDArray[np.uint8]:
        known = self._state.subscriptions.get(subscription)
        return settlement.judge(
            action,
            segment,
            where,
            -2 if known is None else known.number,
            token,
            self._settings.leasing,
            self._decisions.deadlines_count_ms(now_ms),
        )

    def _carry_out(
        self,
        action: settlement.SettleAction,
        segment: Segment,
        slots: NDArray[np.intp],
        subscription: str,
        now_ms: int,
        delay_ms: int,
        step: Step,
    ) -> None:
        sent = segment.state[slots] == SENT
        if sent.any():
            # At-most-once: the message left when it was sent; any settlement only frees backlog (Q6, C18).
            self._decisions.do(Change(ChangeKind.SETTLED, places_of([(segment, slots[sent])])), step)
            slots = slots[~sent]
            if not len(slots):
                return
        some: Slots = [(segment, slots)]
        if action is settlement.SettleAction.ACKNOWLEDGE:
            self._decisions.tell("acknowledged", some, now_ms, step, subscription)
            self._decisions.do(Change(ChangeKind.SETTLED, places_of(some)), step)
        elif action is settlement.SettleAction.EXPIRE:
            self._removals.remove_for_all_reasons(segment, slots, now_ms, step, (Reason.FORCED_EXPIRE,), subscription)
        else:
            until_ms = min(now_ms + delay_ms, NEVER) if delay_ms else 0
            self._decisions.do(Change(ChangeKind.CANCELLED, places_of(some), until_ms=until_ms), step)
            self._decisions.tell("cancelled", some, now_ms, step, subscription)
            self._removals.remove_what_must_go(some, now_ms, step)


def _follows(claim: Claim, before: Claim, standing: Standing) -> bool:
    """Whether a claim names messages behind those of another one, of the same piece and the same delivery's epoch."""
    return (
        claim[:2] == before[:2]
        and before.last < claim.first <= claim.last < standing.offset + standing.count
        and claim.epoch == before.epoch
        and max(claim.delivery_count or 0, before.delivery_count or 0) < _MOST_TOKEN
    )
