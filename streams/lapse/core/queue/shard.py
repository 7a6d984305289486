"""One shard of a queue: arrivals, subscriptions, deliveries and settlements, as pure decisions.

Every method takes the instant at which it counts and a `Step` that it fills. It decides from the state, and each
decision is a `Change` that is applied at once, so that what follows in the same step sees it. Nothing else mutates.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.expression import compile_filter
from lapse.core.lifetime import NEVER
from lapse.core.queue import settlement
from lapse.core.queue.arrival import Arrivals, sort_out
from lapse.core.queue.change import Change, Places, Verb, joined
from lapse.core.queue.choice import Chooser
from lapse.core.queue.fairness import allot
from lapse.core.queue.matching import UNKNOWN, YES, Matching
from lapse.core.queue.segment import LIVE, SIZE, Segment, State
from lapse.core.queue.settings import QueueSettings, Semantics
from lapse.core.queue.settlement import Claim, Outcome, Result
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Delivery, Happening, Messages, Queued, Removal, Step
from lapse.core.queue.subscription import Subscription
from lapse.core.queue.trait import NONE, Traits
from lapse.core.queue.view import RecordView
from lapse.core.reason import Reason, in_order
from lapse.core.record import Record

JUDGED_AT_ONCE: Final = 1_000
"""So many messages are read back and judged under the filters at a time."""

STEP_MESSAGES: Final = 4096
"""About so many messages leave or are handed out in one step, so that a step does not hold up the others."""

Slots = list[tuple[Segment, NDArray[np.intp]]]
"""Some places, by segment: ascending slots of each."""


class QueueShard:
    """The state machine of one shard."""

    def __init__(self, settings: QueueSettings, state: QueueState | None = None) -> None:
        self.settings = settings
        self.state = QueueState() if state is None else state
        self.matching = Matching(compile_filter)
        self.matching.keep(one.filter for one in self.state.subscriptions.values())
        self.unjudged: list[int] = []
        """Places whose payloads are needed to go on delivering; `bookmark_of` names them, `judge` takes them."""
        self._turn = -1
        self._schedule: list[tuple[int, str, int, int, int]] = []
        for (source, offset), scheduled in self.state.scheduled.items():
            self._plan(scheduled.due_ms, source, offset)

    # What comes in

    def arrive(self, topic: str, partition: int, records: Sequence[Record], step: Step) -> None:
        """Take in records of an underlying topic, in the order of their offsets (L1 to L8, L12).

        Records that were seen before are skipped, so that reading again after a crash changes nothing.
        """
        number = self.state.source_number(topic, partition)
        source = self.state.sources[number]
        if not records or records[-1].offset < source.next_offset:
            return
        if records[0].offset < source.next_offset:
            records = [record for record in records if record.offset >= source.next_offset]
        if self.state.remembered:
            records = self._honour(number, records, step)
            if not records:
                return
        arrivals = sort_out(records, self.settings.name, self.settings.expiration_of(topic))
        deadlines_ms = np.array(arrivals.deadlines_ms, np.int64)
        views = self._views(topic, partition, records, arrivals.offsets)
        traits = self.settings.traits.read(views) if self.settings.traits.wanted else NONE
        for first, stop in arrivals.runs():
            place = self.state.next_place
            self._enter(
                number,
                arrivals.offsets[first],
                stop - first,
                deadlines_ms[first:stop],
                step,
                traits if traits is NONE else traits.slice(first, stop),
            )
            if self.matching.active:
                self.matching.judge(range(place, place + stop - first), views[first:stop])
        for offset, at_ms, deadline_ms in arrivals.scheduled:
            view = self._views(topic, partition, records, [offset])
            self._do(
                Change(
                    Verb.SCHEDULED,
                    source=number,
                    offset=offset,
                    until_ms=at_ms,
                    deadlines_ms=np.array([deadline_ms], np.int64),
                    traits=self.settings.traits.read(view) if self.settings.traits.wanted else NONE,
                ),
                step,
            )
            self._plan(min(at_ms, deadline_ms), number, offset)
        self._refuse(number, records, arrivals, step)
        source.next_offset = max(source.next_offset, records[-1].offset + 1)

    def room(self) -> int:
        """How many more messages may become active (Q13)."""
        if self.settings.target_depth is None:
            return 1 << 62
        return max(0, self.settings.target_depth - self.depth()["depth"])

    def _honour(self, number: int, records: Sequence[Record], step: Step) -> list[Record]:
        """Leave out messages that were acknowledged before they became active (Q13)."""
        source = self.state.sources[number]
        kept: list[Record] = []
        for record in records:
            if (number, record.offset) in self.state.remembered:
                self._do(Change(Verb.HONOURED, source=number, offset=record.offset), step)
                source.next_offset = record.offset + 1
            else:
                kept.append(record)
        return kept

    def looks_ahead(self, claims: Iterable[Claim]) -> list[tuple[str, int]]:
        """Sources of which messages are named that are not active yet, so that the end of their log must be known."""
        if self.settings.target_depth is None:
            return []
        return sorted(
            {
                (source.topic, source.partition)
                for claim in claims
                for source in self.state.sources
                if (source.topic, source.partition) == (claim.topic, claim.partition)
                and claim.last >= source.next_offset
            }
        )

    def note_end(self, topic: str, partition: int, end_offset: int) -> None:
        """Know where the log of a source ends."""
        number = self.state.find_source(topic, partition)
        if number is not None:
            self.state.sources[number].end_offset = end_offset

    def subscribe(
        self,
        subscription: str,
        client: str,
        max_backlog: int,
        heartbeat_timeout_ms: int,
        filter_text: str,
        now_ms: int,
        step: Step,
        by_reference: bool = False,
    ) -> Subscription:
        """Begin a subscription, or replace its options and keep its leases (Q3, C20).

        Raises:
            ExpressionError: the filter cannot be compiled.
        """
        if filter_text:
            compile_filter(filter_text)
        known = self.state.subscriptions.get(subscription)
        if self.settings.max_backlog is not None:
            max_backlog = min(max_backlog, self.settings.max_backlog)
        facts = Subscription(
            id=subscription,
            number=self.state.next_number if known is None else known.number,
            client=client,
            max_backlog=max_backlog,
            heartbeat_timeout_ms=heartbeat_timeout_ms,
            filter=filter_text,
            last_seen_ms=now_ms,
            by_reference=by_reference,
        ).facts()
        self._do(Change(Verb.SUBSCRIBED, holder=facts["number"], facts=facts), step)
        self.matching.keep(one.filter for one in self.state.subscriptions.values())
        if known is None:
            step.happenings.append(Happening("subscribed", now_ms, subscription=subscription, detail=client))
        return self.state.subscriptions[subscription]

    def heard(self, subscription: str, now_ms: int) -> bool:
        """Note that a subscription lives; False if the shard does not know it (Q5)."""
        known = self.state.subscriptions.get(subscription)
        if known is None:
            return False
        known.last_seen_ms = max(known.last_seen_ms, now_ms)
        return True

    def unsubscribe(self, subscription: str, now_ms: int, step: Step, detail: str = "") -> bool:
        """End a subscription and return its leases at once (Q5); False if the shard does not know it."""
        known = self.state.subscriptions.get(subscription)
        if known is None:
            return False
        leased, sent = self._held_by(known.number)
        self._return(leased, now_ms, step)
        if sent:
            self._do(Change(Verb.SETTLED, _places(sent)), step)
        self._do(Change(Verb.UNSUBSCRIBED, holder=known.number, facts={"id": known.id}), step)
        self.matching.keep(one.filter for one in self.state.subscriptions.values())
        step.happenings.append(Happening("unsubscribed", now_ms, subscription=subscription, detail=detail))
        return True

    def pause(self, now_ms: int, step: Step) -> None:
        """Hold deliveries back; everything else goes on (C21)."""
        self._do(Change(Verb.PAUSED), step)
        step.happenings.append(Happening("paused", now_ms))

    def resume(self, now_ms: int, step: Step) -> None:
        """Deliver again (C21)."""
        self._do(Change(Verb.RESUMED), step)
        step.happenings.append(Happening("resumed", now_ms))

    def settle(
        self,
        verb: settlement.Verb,
        subscription: str,
        claims: Iterable[Claim],
        now_ms: int,
        step: Step,
        delay_ms: int = 0,
    ) -> list[Outcome]:
        """Acknowledge, cancel or expire messages, bookmark by bookmark (Q8, C13 to C18).

        Args:
            verb: what is asked for; not RENEW.
            subscription: who asks; need not be known under sublet leasing.
            claims: which messages; of one named twice the first counts (C16).
            now_ms: the command's instant.
            step: filled with what it causes.
            delay_ms: CANCEL: so long the messages stay undeliverable (C19).

        Returns:
            What happened to each message, in the order of the claims.
        """
        outcomes: list[Outcome] = []
        for named in claims:
            if verb is settlement.Verb.CANCEL and self._withdraw(named, outcomes, now_ms, step):
                continue
            claim: Claim | None = named
            if verb is settlement.Verb.ACKNOWLEDGE and self.settings.target_depth is not None:
                claim = self._remember(named, outcomes, now_ms, step, subscription)
            if claim is None:
                continue
            for segment, first, stop, offset, code in self._located(claim, outcomes):
                codes = self._judge(verb, segment, first, stop, subscription, claim.delivery_count, now_ms)
                outcomes.extend(settlement.outcomes(claim.topic, claim.partition, offset, codes))
                slots = np.flatnonzero(codes == code) + first
                if len(slots):
                    self._carry_out(verb, segment, slots, subscription, now_ms, delay_ms, step)
        return outcomes

    def _withdraw(self, claim: Claim, outcomes: list[Outcome], now_ms: int, step: Step) -> bool:
        """Withdraw a scheduled message that is named by itself; in a range it is left alone (L5, C16)."""
        number = self.state.find_source(claim.topic, claim.partition)
        if number is None or claim.first != claim.last or (number, claim.first) not in self.state.scheduled:
            return False
        self._remove_scheduled(number, claim.first, (Reason.WITHDRAWN,), now_ms, step)
        outcomes.append(Outcome(*claim[:4], Result.SETTLED))
        return True

    def _remember(
        self, claim: Claim, outcomes: list[Outcome], now_ms: int, step: Step, subscription: str
    ) -> Claim | None:
        """Remember acknowledgments of messages that are not active yet; what is left of the claim (Q13, C16)."""
        number = self.state.find_source(claim.topic, claim.partition)
        if number is None:
            return claim
        source = self.state.sources[number]
        first, last = max(claim.first, source.next_offset), min(claim.last, source.end_offset - 1)
        if first > last:
            return claim
        if claim.first < first:
            before = claim._replace(last=first - 1)
            outcomes.extend(self.settle(settlement.Verb.ACKNOWLEDGE, subscription, [before], now_ms, step))
        for offset in range(first, last + 1):
            if (number, offset) not in self.state.remembered:
                self._do(Change(Verb.REMEMBERED, source=number, offset=offset), step)
        count = last - first + 1
        offsets = np.arange(first, last + 1, dtype=np.int64)
        messages = Messages(source.topic, source.partition, offsets, None, np.zeros(count, np.uint32), None)
        step.happenings.append(Happening("acknowledged", now_ms, messages, subscription))
        outcomes.append(Outcome(claim.topic, claim.partition, first, last, Result.SETTLED))
        return claim._replace(first=last + 1) if last < claim.last else None

    def renew(
        self, subscription: str, claims: Iterable[Claim], now_ms: int, step: Step, lease_ms: int | None = None
    ) -> tuple[list[Outcome], int]:
        """Extend leases from now; by their holder only, any number of times (C17).

        Returns:
            What happened to each message, and when the renewed leases end, ms since the epoch.
        """
        asked_ms = self.settings.lease_ms if lease_ms is None else min(lease_ms, self.settings.max_lease_ms)
        until_ms = now_ms + asked_ms
        outcomes: list[Outcome] = []
        for claim in claims:
            for segment, first, stop, offset, code in self._located(claim, outcomes):
                codes = self._judge(
                    settlement.Verb.RENEW, segment, first, stop, subscription, claim.delivery_count, now_ms
                )
                outcomes.extend(settlement.outcomes(claim.topic, claim.partition, offset, codes))
                slots = np.flatnonzero(codes == code) + first
                if len(slots):
                    self._do(Change(Verb.RENEWED, _places([(segment, slots)]), until_ms=until_ms), step)
                    self._tell("renewed", [(segment, slots)], now_ms, step, subscription)
        return outcomes, until_ms

    def purge(self, now_ms: int, step: Step, leased: bool = False, text: str = "") -> tuple[int, int]:
        """Take out all but leased messages, scheduled ones too; with `leased` those as well (C37).

        With the text of a filter under selection, only messages that match it, and no scheduled ones.

        Returns:
            How many were removed, and how many leased ones were left.
        """
        wanted = (State.AVAILABLE, State.DELAYED, *((State.LEASED,) if leased else ()))
        removed = skipped = 0
        for segment in list(self.state.segments.values()):
            skipped += 0 if leased else len(self._slots_in(segment, (State.LEASED,), text))
            slots = self._slots_in(segment, wanted, text)
            if len(slots):
                removed += len(slots)
                self._remove_by_reasons(segment, slots, now_ms, step, (Reason.PURGED,), "")
        for (source, offset), scheduled in list(self.state.scheduled.items()) if not text else []:
            late = self.settings.expiration.enabled and scheduled.deadline_ms <= now_ms
            reasons = (Reason.TIME_LIMIT, Reason.PURGED) if late else (Reason.PURGED,)
            self._remove_scheduled(source, offset, reasons, now_ms, step)
            removed += 1
        return removed, skipped

    def selected(self, text: str) -> list[Claim]:
        """Messages that match a filter under selection, as claims; complete once `to_judge` gives no more (Q8)."""
        claims: list[Claim] = []
        for index in sorted(self.state.segments):
            segment = self.state.segments[index]
            for messages in self._messages([(segment, self._slots_in(segment, LIVE, text))]):
                claims += [Claim(messages.topic, messages.partition, *ends) for ends in messages.ranges()]
        return claims

    def to_judge(self, text: str, limit: int = JUDGED_AT_ONCE) -> list[int]:
        """Places whose payloads are needed to know whether they match a filter under selection."""
        places: list[int] = []
        for index in sorted(self.state.segments):
            segment = self.state.segments[index]
            slots = self._slots_in(segment, LIVE, text, UNKNOWN)
            places += (slots[: limit - len(places)] + segment.base).tolist()
            if len(places) >= limit:
                break
        return places

    # What time brings

    def truncated(self, topic: str, partition: int, offsets: Sequence[int], now_ms: int, step: Step) -> None:
        """Take out messages whose records Kafka no longer has (C40)."""
        for offset in offsets:
            for segment, first, stop, _, _ in self._located(Claim(topic, partition, offset, offset), []):
                if segment.state[first] in LIVE:
                    self._remove([(segment, np.arange(first, stop))], (Reason.LOG_TRUNCATED,), now_ms, step)

    def depth(self) -> dict[str, int]:
        """How many messages there are, by state; scheduled ones do not count in the depth (Q15, C12)."""
        counts = {State.AVAILABLE: 0, State.LEASED: 0, State.DELAYED: 0}
        for segment in self.state.segments.values():
            counts[State.AVAILABLE] += segment.available
            if segment.available != segment.held:
                state = segment.state[: segment.used]
                for bound in (State.LEASED, State.DELAYED):
                    counts[bound] += int(np.count_nonzero(state == bound))
        return {
            "available": counts[State.AVAILABLE],
            "leased": counts[State.LEASED],
            "delayed": counts[State.DELAYED],
            "scheduled": len(self.state.scheduled),
            "depth": sum(counts.values()),
        }

    def peek(self, skip: int, limit: int, text: str = "") -> Iterator[Queued]:
        """Messages in order, scheduled ones behind; takes no lease (Q15).

        With the text of a filter under selection, only messages that match it, and no scheduled ones.
        """
        left = limit
        for index in sorted(self.state.segments):
            if left <= 0:
                return
            segment = self.state.segments[index]
            slots = self._slots_in(segment, LIVE, text)
            if skip >= len(slots):
                skip -= len(slots)
                continue
            for slot in slots[skip : skip + left].tolist():
                yield self._queued(segment, slot)
                left -= 1
            skip = 0
        if text:
            return
        rest = sorted(self.state.scheduled.items(), key=lambda item: (item[1].at_ms, item[0]))
        for (number, offset), scheduled in rest[skip : skip + max(0, left)]:
            source = self.state.sources[number]
            deadline_ms = None if scheduled.deadline_ms == NEVER else scheduled.deadline_ms
            yield Queued(source.topic, source.partition, offset, None, deadline_ms, until_ms=scheduled.at_ms)

    def _queued(self, segment: Segment, slot: int) -> Queued:
        run = segment.run_at(slot)
        source = self.state.sources[run.source]
        state, deadline_ms = State(int(segment.state[slot])), segment.deadline_of(slot)
        queued = Queued(
            source.topic,
            source.partition,
            run.offset + slot - run.slot,
            state,
            None if deadline_ms == NEVER else deadline_ms,
            int(segment.deliveries[slot]),
            segment.cancels_of(slot),
        )
        if state is not State.AVAILABLE and segment.holder is not None and segment.until_ms is not None:
            holder = self.state.holder(int(segment.holder[slot]))
            queued.subscription = "" if holder is None else holder.id
            queued.until_ms = int(segment.until_ms[slot])
        return queued

    def advance(self, now_ms: int, step: Step) -> None:
        """Do what is due at `now_ms`, in the order of C2; much of it at once is left for the next call."""
        if self.settings.expiration.enabled:
            self._expire_due(now_ms, step)
        self._end_leases(now_ms, step)
        for lost in [one for one in self.state.subscriptions.values() if one.lost_at_ms <= now_ms]:
            self.unsubscribe(lost.id, now_ms, step, f"not heard of for {now_ms - lost.last_seen_ms} ms")
        self._materialise(now_ms, step)

    def next_due_ms(self) -> int:
        """The next instant at which `advance` has something to do; `NEVER` if there is none."""
        due_ms = self.state.untils.next_ms()
        if self.settings.expiration.enabled:
            due_ms = min(due_ms, self.state.deadlines.next_ms())
        if self._schedule:
            due_ms = min(due_ms, self._schedule[0][0])
        return min(due_ms, min((one.lost_at_ms for one in self.state.subscriptions.values()), default=NEVER))

    def take_over(self, now_ms: int, step: Step | None = None) -> None:
        """Begin to own the shard: every subscription has one full heartbeat timeout from now (C5).

        With a step, limits that were lowered below the counts of unleased messages take them out (C23); leased ones
        follow when their lease ends. Places of messages that were sent at most once become free (Q6). Not before the
        journal has begun: a change has to stand behind what it changes.
        """
        for subscription in self.state.subscriptions.values():
            subscription.last_seen_ms = max(subscription.last_seen_ms, now_ms)
        if step is None:
            return
        # What was sent at most once may never have arrived, and then nobody will ever free its place.
        for number in [one.number for one in self.state.subscriptions.values()]:
            _, sent = self._held_by(number)
            if sent:
                self._do(Change(Verb.SETTLED, _places(sent)), step)
        if not (self.settings.max_deliveries or self.settings.max_cancels):
            return
        for segment in list(self.state.segments.values()):
            state = segment.state[: segment.used]
            waiting = np.flatnonzero((state == State.AVAILABLE) | (state == State.DELAYED))
            beyond = waiting[self._beyond_limits(segment, waiting) > 0]
            if len(beyond):
                self._remove_by_reasons(segment, beyond, now_ms, step, (), "", returned=True)

    # What goes out

    def deliver(self, now_ms: int, step: Step) -> bool:
        """Hand deliverable messages to the subscriptions that have space, in order (Q3, Q5 to Q7).

        Returns:
            Whether there may be more to hand out at once.
        """
        self.unjudged = []
        if self.state.paused:
            return False
        subscriptions = list(self.state.subscriptions.values())
        if self.state.barriers and not self._release_barriers(subscriptions, now_ms, step):
            return bool(self.unjudged)
        space = sum(subscription.space for subscription in subscriptions)
        if not space:
            return False
        limit = min(space, STEP_MESSAGES)
        deadlines_count_ms = now_ms if self.settings.expiration.enabled else -1
        if self.settings.traits.wanted or self.matching.active:
            self.matching.drop(self.state.dropped)
            chooser = Chooser(self.state, self.matching, self.settings.fairness, self._turn, deadlines_count_ms)
            dealt = chooser.deal(subscriptions, limit)
            self._turn, self.unjudged = chooser.turn, chooser.unknown[:JUDGED_AT_ONCE]
            for subscription, places in dealt:
                self._hand_out(subscription, places, now_ms, step)
            handed = sum(len(places) for _, places in dealt)
            return bool(self.unjudged) or handed == limit < space
        places = self.state.available(limit, deadlines_count_ms)
        if not places:
            return False
        shares, self._turn = allot(self.settings.fairness, len(places), subscriptions, self._turn)
        for subscription, share in shares:
            if share[-1] - share[0] == len(share) - 1:
                self._hand_out(subscription, places[share[0] : share[-1] + 1], now_ms, step)
            else:
                self._hand_out(subscription, [places[position] for position in share], now_ms, step)
        return len(places) == limit < space

    def repeat(self, released: Change, step: Step) -> None:
        """Send a barrier again that a crash may have kept from its receivers (C35)."""
        told = released.facts
        messages = Messages(
            told["topic"], told["partition"], np.array([told["offset"]], np.int64), None, np.zeros(1, np.uint32), None
        )
        for name in told["receivers"]:
            if name in self.state.subscriptions:
                step.deliveries.append(Delivery(name, messages, 0, barrier=True))

    def bookmark_of(self, place: int) -> tuple[str, int, int] | None:
        """Topic, partition and offset of the message at a place; None if it is gone."""
        index, slot = divmod(place, SIZE)
        segment = self.state.segments.get(index)
        if segment is None or slot >= segment.used:
            return None
        run = segment.run_at(slot)
        source = self.state.sources[run.source]
        return source.topic, source.partition, run.offset + slot - run.slot

    def judge(self, records: Sequence[tuple[int, str, int, Record | None]]) -> None:
        """Evaluate the subscriptions' filters on messages: (place, topic, partition, record), None = record gone."""
        views = [
            None if record is None else RecordView(topic, partition, record, self.settings.parse)
            for _, topic, partition, record in records
        ]
        self.matching.judge([place for place, *_ in records], views)

    def _hand_out(self, subscription: Subscription, places: list[int], now_ms: int, step: Step) -> None:
        """Give messages to a subscription: under a lease, or for good (Q5, Q6)."""
        once = self.settings.semantics is Semantics.AT_MOST_ONCE
        until_ms = 0 if once else now_ms + self.settings.lease_ms
        verb = Verb.SENT if once else Verb.LEASED
        self._do(Change(verb, joined(sorted(places)), holder=subscription.number, until_ms=until_ms), step)
        for messages in self._messages(self._slots(joined(places))):
            step.deliveries.append(Delivery(subscription.id, messages, until_ms, subscription.by_reference))
            if once:
                step.happenings.append(
                    Happening("delivered_at_most_once", now_ms, messages, subscription=subscription.id)
                )

    def _release_barriers(self, subscriptions: Sequence[Subscription], now_ms: int, step: Step) -> bool:
        """Send barriers before which nothing is left to all subscriptions that they match (Q12, C34).

        Returns:
            False if one cannot be sent before its payload is judged.
        """
        while self.state.barriers and subscriptions:
            place = self.state.barriers[0]
            index, slot = divmod(place, SIZE)
            segment, at = self.state.segments[index], np.array([slot])
            over = self.settings.expiration.enabled and segment.deadline_of(slot) <= now_ms
            if over or self.state.first_held() != place or segment.state[slot] != State.AVAILABLE:
                return True
            codes = {one.id: int(self.matching.codes(one.filter, index, at)[0]) for one in subscriptions}
            if UNKNOWN in codes.values():
                self.unjudged = [place]
                return False
            (messages,) = self._messages([(segment, at)])
            receivers = [name for name, code in codes.items() if code == YES]
            told = {"topic": messages.topic, "partition": messages.partition, "offset": int(messages.offsets[0])}
            for name in receivers:
                step.deliveries.append(Delivery(name, messages, 0, barrier=True))
            step.happenings.append(Happening("barrier_released", now_ms, messages, detail=", ".join(receivers)))
            self._do(Change(Verb.RELEASED, [(place, 1)], facts={**told, "receivers": receivers}), step)
        return True

    # Decisions

    def _do(self, change: Change, step: Step) -> None:
        self.state.apply(change)
        step.changes.append(change)

    def _views(self, topic: str, partition: int, records: Sequence[Record], offsets: Sequence[int]) -> list[RecordView]:
        """The messages at some offsets as expressions see them; empty where no expression asks."""
        if not self.settings.traits.wanted and not self.matching.active:
            return []
        wanted = set(offsets)
        return [
            RecordView(topic, partition, record, self.settings.parse) for record in records if record.offset in wanted
        ]

    def _enter(
        self,
        source: int,
        offset: int,
        count: int,
        deadlines_ms: NDArray[np.int64],
        step: Step,
        traits: Traits = NONE,
    ) -> None:
        self._do(
            Change(
                Verb.ARRIVED,
                [(self.state.next_place, count)],
                source=source,
                offset=offset,
                deadlines_ms=None if bool((deadlines_ms == NEVER).all()) else deadlines_ms,
                traits=traits,
            ),
            step,
        )

    def _refuse(self, number: int, records: Sequence[Record], arrivals: Arrivals, step: Step) -> None:
        """Tell of the messages that did not enter."""
        if not arrivals.invalid and not arrivals.expired:
            return
        arrived_ms = {record.offset: record.timestamp for record in records}
        for offset, fault in arrivals.invalid:
            self._refuse_one(number, offset, NEVER, (Reason.INVALID_LIFETIME,), arrived_ms[offset], step, fault)
        for offset, deadline_ms in arrivals.expired:
            self._refuse_one(number, offset, deadline_ms, (Reason.TIME_LIMIT,), arrived_ms[offset], step)

    def _refuse_one(
        self,
        number: int,
        offset: int,
        deadline_ms: int,
        reasons: tuple[Reason, ...],
        at_ms: int,
        step: Step,
        detail: str = "",
    ) -> None:
        source = self.state.sources[number]
        messages = Messages(
            source.topic,
            source.partition,
            np.array([offset], np.int64),
            None if deadline_ms == NEVER else np.array([deadline_ms], np.int64),
            np.zeros(1, np.uint32),
            None,
        )
        step.removals.append(Removal(messages, reasons, at_ms, self.settings.writes_letter(reasons), detail))

    def _plan(self, due_ms: int, source: int, offset: int) -> None:
        of = self.state.sources[source]
        heapq.heappush(self._schedule, (due_ms, of.topic, of.partition, offset, source))

    def _located(self, claim: Claim, outcomes: list[Outcome]) -> Iterable[tuple[Segment, int, int, int, int]]:
        """Find the places that a claim names; what has none is answered into `outcomes` on the way, in order.

        Yields:
            Segment, first slot, slot behind the last, offset of the first, and the code of `settled`.
        """
        topic, partition, first, last, _ = claim
        number = self.state.find_source(topic, partition)
        if number is None:
            outcomes.append(Outcome(topic, partition, first, last, Result.UNKNOWN))
            return
        source = self.state.sources[number]
        # All pieces first: what is settled on the way can take a segment, and its standings, away.
        for piece in list(source.find(first, min(last, source.next_offset - 1))):
            if piece.place < 0:
                outcomes.extend(self._missing(number, piece.first, piece.last))
                continue
            for segment, slot, stop in list(self.state.spans([(piece.place, piece.last - piece.first + 1)])):
                yield segment, slot, stop, piece.first, settlement.SETTLED
                break
            else:
                outcomes.extend(self._missing(number, piece.first, piece.last))
        if last >= source.next_offset:
            outcomes.append(Outcome(topic, partition, max(first, source.next_offset), last, Result.UNKNOWN))

    def _missing(self, number: int, first: int, last: int) -> Iterable[Outcome]:
        """Answer for offsets that stand nowhere: scheduled, expired, or settled before."""
        source = self.state.sources[number]
        marks: list[tuple[int, int, Result]] = [
            (offset, offset, Result.SCHEDULED)
            for of, offset in self.state.scheduled
            if of == number and first <= offset <= last
        ]
        marks += [
            (max(first, low), min(last, high), Result.TIME_LIMIT)
            for of, low, high in self.state.expired
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
        verb: settlement.Verb,
        segment: Segment,
        first: int,
        stop: int,
        subscription: str,
        token: int | None,
        now_ms: int,
    ) -> NDArray[np.uint8]:
        known = self.state.subscriptions.get(subscription)
        return settlement.judge(
            verb,
            segment,
            first,
            stop,
            -2 if known is None else known.number,
            token,
            self.settings.leasing,
            now_ms if self.settings.expiration.enabled else -1,
        )

    def _carry_out(
        self,
        verb: settlement.Verb,
        segment: Segment,
        slots: NDArray[np.intp],
        subscription: str,
        now_ms: int,
        delay_ms: int,
        step: Step,
    ) -> None:
        sent = segment.state[slots] == State.SENT
        if sent.any():
            # At-most-once: the message left when it was sent; any settlement only frees backlog (Q6, C18).
            self._do(Change(Verb.SETTLED, _places([(segment, slots[sent])])), step)
            slots = slots[~sent]
            if not len(slots):
                return
        some: Slots = [(segment, slots)]
        if verb is settlement.Verb.ACKNOWLEDGE:
            self._tell("acknowledged", some, now_ms, step, subscription)
            self._do(Change(Verb.SETTLED, _places(some)), step)
        elif verb is settlement.Verb.EXPIRE:
            self._remove_by_reasons(segment, slots, now_ms, step, (Reason.FORCED_EXPIRE,), subscription)
        else:
            until_ms = min(now_ms + delay_ms, NEVER) if delay_ms else 0
            self._do(Change(Verb.CANCELLED, _places(some), until_ms=until_ms), step)
            self._tell("cancelled", some, now_ms, step, subscription)
            self._remove_what_must_go(some, now_ms, step)

    def _return(self, slots: Slots, now_ms: int, step: Step) -> None:
        """Return leased messages; what may not stay leaves at once (Q5, Q9, Q10)."""
        if not slots:
            return
        self._tell("lease_returned", slots, now_ms, step)
        self._do(Change(Verb.RETURNED, _places(slots)), step)
        self._remove_what_must_go(slots, now_ms, step)

    def _remove_what_must_go(self, slots: Slots, now_ms: int, step: Step) -> None:
        """Remove messages that came back and are expired, or were delivered or cancelled too often (Q9, Q10)."""
        for segment, some in slots:
            self._remove_by_reasons(segment, some, now_ms, step, (), "", returned=True)

    def _remove_by_reasons(
        self,
        segment: Segment,
        slots: NDArray[np.intp],
        now_ms: int,
        step: Step,
        always: tuple[Reason, ...],
        subscription: str,
        returned: bool = False,
    ) -> None:
        """Remove each message for all reasons that hold (C22); none holds = it stays."""
        holds = self._beyond_limits(segment, slots) if returned else np.zeros(len(slots), np.uint8)
        if self.settings.expiration.enabled and segment.deadline_ms is not None:
            holds |= segment.deadline_ms[slots] <= now_ms
        for bits in np.unique(holds).tolist():
            reasons = in_order((*always, *(reason for bit, reason in _REASON_BITS if bits & bit)))
            if reasons:
                self._remove([(segment, slots[holds == bits])], reasons, now_ms, step, subscription)

    def _beyond_limits(self, segment: Segment, slots: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Which limits forbid that each message is delivered once more (Q9): bits of `_REASON_BITS`."""
        settings = self.settings
        holds = np.zeros(len(slots), np.uint8)
        if settings.max_deliveries:
            holds |= (segment.deliveries[slots] >= settings.max_deliveries).astype(np.uint8) << 1
        if settings.max_cancels and segment.cancels is not None:
            holds |= (segment.cancels[slots] > settings.max_cancels).astype(np.uint8) << 2
        return holds

    def _remove(
        self, slots: Slots, reasons: tuple[Reason, ...], now_ms: int, step: Step, subscription: str = ""
    ) -> None:
        letter = self.settings.writes_letter(reasons)
        for messages in self._messages(slots):
            step.removals.append(Removal(messages, reasons, now_ms, letter, subscription=subscription))
        expired = Reason.TIME_LIMIT in reasons
        self._do(Change(Verb.EXPIRED if expired else Verb.SETTLED, _places(slots)), step)

    def _expire_due(self, now_ms: int, step: Step) -> None:
        state = self.state
        removed = 0
        while removed < STEP_MESSAGES and (index := state.deadlines.pop_due(now_ms)) is not None:
            segment = state.segments[index]
            column = segment.state[: segment.used]
            waiting = (column == State.AVAILABLE) | (column == State.DELAYED)
            if segment.deadline_ms is not None:
                slots = np.flatnonzero(waiting & (segment.deadline_ms[: segment.used] <= now_ms))
                if len(slots):
                    removed += len(slots)
                    self._remove([(segment, slots)], (Reason.TIME_LIMIT,), now_ms, step)
            segment.find_min_deadline()
            state.deadlines.note(segment.min_deadline_ms, index)

    def _end_leases(self, now_ms: int, step: Step) -> None:
        state = self.state
        returned = 0
        while returned < STEP_MESSAGES and (index := state.untils.pop_due(now_ms)) is not None:
            segment = state.segments[index]
            if segment.until_ms is not None:
                column = segment.state[: segment.used]
                over = segment.until_ms[: segment.used] <= now_ms
                leased = np.flatnonzero((column == State.LEASED) & over)
                delayed = np.flatnonzero((column == State.DELAYED) & over)
                returned += len(leased) + len(delayed)
                if len(leased):
                    self._return([(segment, leased)], now_ms, step)
                if len(delayed):
                    self._do(Change(Verb.RETURNED, _places([(segment, delayed)])), step)
            segment.find_min_until()
            state.untils.note(segment.min_until_ms, index)

    def _materialise(self, now_ms: int, step: Step) -> None:
        while self._schedule and self._schedule[0][0] <= now_ms:
            due_ms, _, _, offset, number = heapq.heappop(self._schedule)
            scheduled = self.state.scheduled.get((number, offset))
            if scheduled is None:
                continue
            if scheduled.deadline_ms <= now_ms and self.settings.expiration.enabled:
                self._remove_scheduled(number, offset, (Reason.TIME_LIMIT,), now_ms, step)
            elif scheduled.at_ms > due_ms:
                self._plan(scheduled.at_ms, number, offset)
            else:
                self._do(Change(Verb.UNSCHEDULED, source=number, offset=offset), step)
                self._enter(
                    number,
                    offset,
                    1,
                    np.array([scheduled.deadline_ms], np.int64),
                    step,
                    scheduled.traits(self.settings.traits) if self.settings.traits.wanted else NONE,
                )

    def _remove_scheduled(self, number: int, offset: int, reasons: tuple[Reason, ...], now_ms: int, step: Step) -> None:
        deadline_ms = self.state.scheduled[number, offset].deadline_ms
        self._do(Change(Verb.UNSCHEDULED, source=number, offset=offset), step)
        self._refuse_one(number, offset, deadline_ms, reasons, now_ms, step)

    # Looking

    def _held_by(self, number: int) -> tuple[Slots, Slots]:
        """Places that a subscription holds: leased, and sent at most once."""
        leased: Slots = []
        sent: Slots = []
        for segment in self.state.segments.values():
            if segment.holder is None:
                continue
            column, mine = segment.state[: segment.used], segment.holder[: segment.used] == number
            for state, found in ((State.LEASED, leased), (State.SENT, sent)):
                slots = np.flatnonzero(mine & (column == state))
                if len(slots):
                    found.append((segment, slots))
        return leased, sent

    def _slots_in(self, segment: Segment, states: Sequence[State], text: str = "", code: int = YES) -> NDArray[np.intp]:
        """Places of a segment in some states, about which that much is known under a filter."""
        slots = np.flatnonzero(np.isin(segment.state[: segment.used], states))
        return slots[self.matching.codes(text, segment.index, slots) == code] if text else slots

    def _slots(self, places: Places) -> Slots:
        return [(segment, np.arange(first, stop)) for segment, first, stop in self.state.spans(places)]

    def _messages(self, slots: Slots) -> Iterable[Messages]:
        for segment, some in slots:
            yield from self.state.messages(segment, some)

    def _tell(self, kind: str, slots: Slots, now_ms: int, step: Step, subscription: str = "") -> None:
        for messages in self._messages(slots):
            step.happenings.append(Happening(kind, now_ms, messages, subscription))


_REASON_BITS = ((1, Reason.TIME_LIMIT), (2, Reason.MAX_DELIVERIES), (4, Reason.MAX_CANCELS))


def _places(slots: Slots) -> Places:
    places: Places = []
    for segment, some in slots:
        base = segment.base
        if len(some) and int(some[-1]) - int(some[0]) == len(some) - 1:
            places.append((base + int(some[0]), len(some)))
        else:
            places.extend((first + base, count) for first, count in joined(some.tolist()))
    return places
