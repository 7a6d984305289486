"""Settling: carries out acknowledgments, cancels, expirations and renewals by bookmark (Q8, C13 to C18)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.generation import FIRST_REWOUND
from lapse.core.letter import FORWARDER
from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.source import PlacedRun
from lapse.core.queue.arrival.trait import Flag
from lapse.core.queue.change import Change
from lapse.core.queue.decision import Decisions, Slots, last_place
from lapse.core.queue.delivery.retry_cause import Cause
from lapse.core.queue.inquiry.visibility import Visibility
from lapse.core.queue.life.message_state import State
from lapse.core.queue.life.table import route
from lapse.core.queue.life.transitions import Transitions
from lapse.core.queue.schedule.schedule import Schedule
from lapse.core.queue.segments.segment import AVAILABLE, DELAYED, SIZE, Segment, Where, slots_of, where_between
from lapse.core.queue.settlement import settlement
from lapse.core.queue.settlement.alike_claims import AlikeClaims
from lapse.core.queue.settlement.asked_settlement import Settlement
from lapse.core.queue.settlement.claim_columns import ClaimColumns
from lapse.core.queue.settlement.locator import Locator
from lapse.core.queue.settlement.settlement import Claim, Outcome, Result, SettleAction
from lapse.core.queue.step import Messages, Step
from lapse.core.shard.event import ShardEvent

_MOST_REMEMBERED: Final = 10_000
"""How many messages beyond the target depth a range may acknowledge, since each is a record in the journal."""

_NO_HOLDER: Final = -2
"""The number of a subscription that the shard does not know."""

_ACKNOWLEDGE: Final = SettleAction.ACKNOWLEDGE  # a look-up in the enumeration takes five times as long
_CANCEL: Final = SettleAction.CANCEL
_SETTLED: Final = Result.SETTLED


class Settling:
    """Carries out settlements."""

    def __init__(
        self,
        decisions: Decisions,
        transitions: Transitions,
        schedule: Schedule,
        locator: Locator,
        visibility: Visibility,
    ) -> None:
        self._decisions = decisions
        self._transitions = transitions
        self._schedule = schedule
        self._locator = locator
        self._visibility = visibility
        self._state = decisions.state
        self._settings = decisions.settings
        self._leasing = decisions.settings.leasing

    def settle(
        self,
        action: SettleAction,
        subscription: str,
        claims: Iterable[Claim],
        now_ms: int,
        step: Step,
        delay_ms: int | None = None,
        row_filter: str = "",
        fault: str = "",
        quiet: bool = False,
    ) -> list[Outcome]:
        """Acknowledge, cancel or expire messages, bookmark by bookmark (Q8, C13 to C18).

        Args:
            action: the action, not RENEW.
            subscription: id of the settling subscription; sublet leasing allows unknown ones.
            claims: the messages; if one is named twice, the first naming counts (C16).
            now_ms: the command's instant, ms since the epoch.
            step: receives the decisions.
            delay_ms: CANCEL: delay before the next delivery, ms (C19); None = the message's or the queue's (Q24).
            row_filter: messages that do not match it are unknown to the user, unless they hold them. It was judged on
                `places_not_held` and `offsets_without_place` before (X4).
            fault: EXPIRE: what is wrong with the messages, for their letters and events (L14).
            quiet: whether the outcomes of messages that are settled may be left out.

        Returns:
            The outcomes in the order of the claims.
        """
        until_ms = min(now_ms + delay_ms, NEVER) if delay_ms else 0
        retries = action is _CANCEL and delay_ms is None
        settling = Settlement(action, subscription, now_ms, step, until_ms, row_filter, retries, fault, quiet)
        acknowledges, cancels = action is _ACKNOWLEDGE, action is _CANCEL
        # A row filter is not judged on inactive messages, so a user with one may not settle these.
        settle_claim = self._settle_active
        if acknowledges and not row_filter and self._settings.target_depth is not None:
            settle_claim = self._settle_part
        if self._settings.traits.barrier is not None:  # the remainder of a range must not count as a bookmark
            claims = [claim if claim.names_one else claim._replace(found=True) for claim in claims]
        # With a row filter each claim is judged separately, since a part of it may be held or visible.
        one_by_one = (
            settlement.without_repeats(claims, settling.outcomes) if row_filter else self._settle_runs(settling, claims)
        )
        for claim in one_by_one:
            since = len(settling.outcomes)
            if claim.epoch is not None and self._is_of_another_topic(claim):
                settling.add_result(claim, Result.STALE)
            elif cancels and self._withdraw(settling, claim):
                continue
            elif acknowledges and self._state.scheduled.held:
                for part in self._without_held(settling, claim):
                    settle_claim(settling, part)
            else:
                settle_claim(settling, claim)
            if row_filter:
                settlement.join_outcomes(settling.outcomes, since)
        self._note_that_it_settles(settling)
        return self._state.rewinds.with_stale_results(settling.outcomes)

    def _note_that_it_settles(self, asked: Settlement) -> None:
        """Note when a subscription last settled something: one that holds messages and settles none hangs (Q15)."""
        known = self._state.subscriptions.get(asked.subscription)
        if known is None or not known.idle_until_ms:
            return
        if asked.has_settled or any(one.result is _SETTLED for one in asked.outcomes):
            known.idle_until_ms = asked.now_ms

    def renew(
        self,
        subscription: str,
        claims: Iterable[Claim],
        now_ms: int,
        step: Step,
        lease_ms: int | None = None,
        row_filter: str = "",
    ) -> tuple[list[Outcome], int]:
        """Extend leases from now on. Only their holder may, any number of times (C17). `row_filter`: see `settle`.

        Returns:
            The outcomes in the order of the claims, and the end of the renewed leases, ms since the epoch.
        """
        asked_ms = self._settings.lease_ms if lease_ms is None else min(lease_ms, self._settings.max_lease_ms)
        settling = Settlement(SettleAction.RENEW, subscription, now_ms, step, now_ms + asked_ms, row_filter)
        one_by_one = (
            settlement.without_repeats(claims, settling.outcomes) if row_filter else self._settle_runs(settling, claims)
        )
        for claim in one_by_one:
            since = len(settling.outcomes)
            if self._is_of_another_topic(claim):
                settling.add_result(claim, Result.STALE)
            else:
                self._settle_active(settling, claim)
            if row_filter:
                settlement.join_outcomes(settling.outcomes, since)
        known = self._state.subscriptions.get(subscription)
        if known is not None:
            known.settled += sum(one.result is Result.SETTLED for one in settling.outcomes)
        return self._state.rewinds.with_stale_results(settling.outcomes), settling.until_ms

    def _settle_part(self, asked: Settlement, claim: Claim) -> None:
        """Acknowledge the messages of a claim, active or not."""
        active, inactive, beyond = self._split_claim(claim)
        if active is not None:
            self._settle_active(asked, active)
        if inactive is not None:
            self._remember_acknowledgments(asked, inactive)
        if beyond is not None:
            asked.add_result(beyond, Result.UNKNOWN)

    def _settle_active(self, asked: Settlement, claim: Claim) -> None:
        if claim.names_one and not asked.row_filter and (named := self._locator.find_named(claim)) is not None:
            self._settle_one(asked, claim, *named)
            self._state.segments.make_room()
            return
        for segment, first, stop, offset, code in self._visibility.locate(claim, asked.outcomes, asked.row_filter):
            codes = self._judge(asked, segment, slice(first, stop), claim.delivery_count)
            if not claim.names_one and asked.action is not SettleAction.RENEW:
                self._spare_barriers(codes, segment, slice(first, stop), np.ones(len(codes), bool))
            if asked.row_filter:
                self._visibility.hide(codes, segment, first, offset, claim, asked.subscription, asked.row_filter)
            asked.outcomes.extend(settlement.outcomes(claim.topic, claim.partition, offset, codes))
            slots = np.flatnonzero(codes == code) + first
            if len(slots):
                self._carry_out(asked, [(segment, slots)])

    def _settle_one(self, asked: Settlement, claim: Claim, segment: Segment, slot: int) -> None:
        """Settle the one message that a claim names, as most claims do, without columns."""
        known = self._state.subscriptions.get(asked.subscription)
        holder = _NO_HOLDER if known is None else known.number
        now_ms = self._decisions.deadlines_count_ms(asked.now_ms)
        topic, partition, first, _, token, _, _ = claim
        code = settlement.judge_one(asked.action, segment, slot, holder, token, self._leasing, now_ms)
        asked.outcomes.append(Outcome(topic, partition, first, first, settlement.RESULTS[code]))
        if code != settlement.SETTLED:
            return
        if asked.action is _ACKNOWLEDGE and asked.subscription != FORWARDER:
            self._transitions.acknowledge_one(segment, slot, asked.now_ms, asked.step, asked.subscription)
        else:
            self._carry_out(asked, [(segment, np.array((slot,), np.intp))])

    def _carry_out(self, asked: Settlement, slots: Slots) -> None:
        if asked.retries:
            self._transitions.return_messages(
                asked.trigger,
                Cause.CANCEL,
                slots,
                asked.now_ms,
                asked.step,
                since_ms=asked.now_ms,
                subscription=asked.subscription,
            )
        else:
            self._transitions.apply_trigger(
                asked.trigger,
                slots,
                asked.now_ms,
                asked.step,
                guard=asked.guard,
                subscription=asked.subscription,
                detail=asked.fault,
                until_ms=asked.until_ms,
            )

    def _judge(
        self, asked: Settlement, segment: Segment, where: Where, token: int | NDArray[np.int64] | None
    ) -> NDArray[np.uint8]:
        known = self._state.subscriptions.get(asked.subscription)
        holder = _NO_HOLDER if known is None else known.number
        now_ms = self._decisions.deadlines_count_ms(asked.now_ms)
        return settlement.judge(asked.action, segment, where, holder, token, self._settings.leasing, now_ms)

    def _spare_barriers(
        self, codes: NDArray[np.uint8], segment: Segment, where: Where, swept: NDArray[np.bool_]
    ) -> None:
        """Set NOT_LEASED for unreleased barriers that only a range or a filter names (C86)."""
        if segment.flags is None or self._settings.traits.barrier is None or not self._state.index.barriers:
            return
        waiting = ((segment.flags[where] & Flag.BARRIER) != 0) & np.isin(segment.state[where], (AVAILABLE, DELAYED))
        codes[waiting & swept & (codes == settlement.SETTLED)] = settlement.NOT_LEASED

    # Several claims at once

    def _settle_runs(self, asked: Settlement, claims: Iterable[Claim]) -> Iterable[Claim]:
        """Settle claims together if possible, and return all others, one after the other.

        Consecutive claims on ascending messages of one run are settled together, because none depends on the result of
        another, and one call for all is faster.
        """
        waiting = claims if type(claims) is AlikeClaims else list(claims)
        if len(waiting) == 1:
            return waiting
        return self._settle_many(asked, waiting)

    def _settle_many(self, asked: Settlement, waiting: Sequence[Claim]) -> Iterator[Claim]:
        at, looked, is_stale = 0, 0, False
        columns = ClaimColumns(waiting) if len(waiting) > 1 else None
        while at < len(waiting):
            claim, stop = waiting[at], at + 1
            if columns is not None and columns.end_of_ascending(at) > stop:
                standing = self._find_run(claim)
                if standing is not None:
                    stop = columns.end_of_run(at, standing.offset + standing.count)
                    if stop > at + 1:
                        is_stale = self._settle_together(asked, waiting[at:stop], columns, at, standing)
                        looked = len(asked.outcomes)
            if stop == at + 1:
                self._settle_judged(asked)
                yield claim
            at = stop
            if is_stale or any(one.result is Result.STALE for one in asked.outcomes[looked:]):
                self._settle_judged(asked)
                yield from settlement.without_repeats(waiting[at:], asked.outcomes)
                return
            looked = len(asked.outcomes)
        self._settle_judged(asked)

    def _settle_judged(self, asked: Settlement) -> None:
        """Settle the messages that were judged, those of several segments by one change."""
        if asked.judged:
            slots, asked.judged = asked.judged, []
            self._carry_out(asked, slots)
            self._state.segments.make_room()

    def _find_run(self, claim: Claim) -> PlacedRun | None:
        """Return the run that contains the first message of a claim; None if it has no place."""
        number = self._state.sources.find(claim.topic, claim.partition)
        if number is None or self._is_of_another_topic(claim):
            return None
        return self._state.sources[number].find_run(claim.first)

    def _settle_together(
        self, asked: Settlement, claims: Sequence[Claim], columns: ClaimColumns, at: int, standing: PlacedRun
    ) -> bool:
        """Settle several claims on messages of one run; the first is the one at index `at` of the columns.

        The messages are only judged here. `_settle_judged` settles them, before any of them is judged again.

        Returns:
            Whether the token of one is stale.
        """
        if asked.judged and last_place(asked.judged) >= standing.place + claims[0].first - standing.offset:
            self._settle_judged(asked)
        segment = self._state.segments[standing.place // SIZE]
        shift = standing.place - segment.base - standing.offset
        firsts, lasts, tokens = (one[at : at + len(claims)] for one in (columns.firsts, columns.lasts, columns.tokens))
        where, counts = where_between(firsts + shift, lasts + (shift + 1)), lasts - firsts + 1
        token: int | NDArray[np.int64] | None = claims[0].delivery_count
        if not bool((tokens == tokens[0]).all()):
            token = np.repeat(tokens, counts)
        codes = self._judge(asked, segment, where, token)
        if asked.action is not SettleAction.RENEW and self._settings.traits.barrier is not None:
            self._spare_barriers(codes, segment, where, np.repeat([not claim.names_one for claim in claims], counts))
        if asked.quiet and not codes.any():
            asked.has_settled = True
        else:
            asked.outcomes.extend(settlement.outcomes_of(claims, firsts, counts, codes))
        slots = slots_of(where) if not codes.any() else slots_of(where)[codes == settlement.SETTLED]
        if len(slots):
            asked.judged.append((segment, slots))
        return bool((codes == settlement.STALE).any())

    # Messages without a place

    def _without_held(self, asked: Settlement, claim: Claim) -> Iterator[Claim]:
        """Acknowledge a claim's messages that the target depth holds (C51, Q13), and yield the rest of it in order."""
        number = self._state.sources.find(claim.topic, claim.partition)
        if number is None:
            yield claim
            return
        at, takes = claim.first, route(asked.trigger).takes
        for offset in list(self._state.scheduled.between(number, claim.first, claim.last)):
            scheduled = self._state.scheduled[number, offset]
            may_see = self._visibility.may_see(claim._replace(first=offset), asked.row_filter)
            if not (may_see and takes[scheduled.state]):
                continue
            if offset > at:
                yield claim._replace(first=at, last=offset - 1)
            self._schedule.remove(
                asked.trigger, number, offset, asked.now_ms, asked.step, subscription=asked.subscription
            )
            asked.add_result(claim._replace(first=offset, last=offset), Result.SETTLED)
            at = offset + 1
        if at <= claim.last:
            yield claim._replace(first=at)

    def _withdraw(self, asked: Settlement, claim: Claim) -> bool:
        """Withdraw a scheduled message that is named alone. As part of a range it stays (L5, C16)."""
        number = self._state.sources.find(claim.topic, claim.partition)
        scheduled = None if number is None else self._state.scheduled.get(number, claim.first)
        if number is None or scheduled is None or claim.first != claim.last:
            return False
        if not route(asked.trigger).takes[scheduled.state] or not self._visibility.may_see(claim, asked.row_filter):
            return False
        late = scheduled.deadline_ms <= self._decisions.deadlines_count_ms(asked.now_ms)
        if not late:
            self._schedule.remove(asked.trigger, number, claim.first, asked.now_ms, asked.step)
        asked.add_result(claim, Result.TIME_LIMIT if late else Result.SETTLED)
        return True

    def _remember_acknowledgments(self, asked: Settlement, claim: Claim) -> None:
        """Remember acknowledgments of messages that are not active yet (Q13)."""
        number, row = self._state.sources.number(claim.topic, claim.partition), route(asked.trigger).row(State.UNREAD)
        left_out: Claim | None = None
        if claim.last - claim.first >= _MOST_REMEMBERED:
            left_out = claim._replace(first=claim.first + _MOST_REMEMBERED)
            claim = claim._replace(last=left_out.first - 1)
        fresh: list[int] = []
        for offset in range(claim.first, claim.last + 1):
            if (number, offset) not in self._state.remembered:
                self._decisions.apply_change(Change(row.changes[0], source=number, offset=offset), asked.step)
                fresh.append(offset)
        offsets = np.array(fresh, np.int64)
        messages = Messages(claim.topic, claim.partition, offsets, None, np.zeros(len(fresh), np.uint32), None)
        at = claim.first
        for first, last in messages.ranges():
            if first > at:
                asked.add_result(claim._replace(first=at, last=first - 1), Result.ALREADY_SETTLED)
            asked.add_result(claim._replace(first=first, last=last), Result.SETTLED)
            at = last + 1
        if at <= claim.last:
            asked.add_result(claim._replace(first=at), Result.ALREADY_SETTLED)
        if left_out is not None:
            asked.add_result(left_out, Result.UNKNOWN)
        if fresh:
            asked.step.events.append(ShardEvent(row.event, asked.now_ms, messages, asked.subscription))

    # Claims

    def sources_named_ahead(self, claims: Iterable[Claim]) -> list[tuple[str, int]]:
        """See `QueueShard.sources_named_ahead`."""
        if self._settings.target_depth is None:
            return []
        names: set[tuple[str, int]] = set()
        for claim in claims:
            number = self._state.sources.find(claim.topic, claim.partition)
            if claim.first >= FIRST_REWOUND:
                continue
            if number is not None and claim.last >= self._state.sources[number].next_offset:
                names.add((claim.topic, claim.partition))
        return sorted(names)

    def _is_of_another_topic(self, claim: Claim) -> bool:
        """Return whether a claim is on a delivery from before the topic was created again (C42)."""
        if claim.epoch is None:
            return False
        number = self._state.sources.find(claim.topic, claim.partition)
        return number is not None and claim.epoch < self._state.sources[number].since_epoch

    def _split_claim(self, claim: Claim) -> tuple[Claim | None, Claim | None, Claim | None]:
        """Split a claim into messages that were read, those in the log but not active, and those beyond it (C16)."""
        number = self._state.sources.find(claim.topic, claim.partition)
        if number is None:
            return None, None, claim
        if claim.first >= FIRST_REWOUND:  # a message that a rewind brought back was read
            return claim, None, None
        source = self._state.sources[number]
        edges = (0, source.next_offset, max(source.next_offset, source.end_offset), 1 << 63)
        parts: list[Claim | None] = []
        for low, high in pairwise(edges):
            first, last = max(claim.first, low), min(claim.last, high - 1)
            parts.append(claim._replace(first=first, last=last) if first <= last else None)
        return parts[0], parts[1], parts[2]
