"""One shard of a queue: arrivals, subscriptions, deliveries and settlements, as pure decisions.

Every method takes the instant at which it counts and a `Step` that it fills. It decides from the state, and each
decision is a `Change` that is applied at once, so that what follows in the same step sees it. Nothing else mutates.
Where nobody is at work on a segment, what there is no room for in memory is put away (Q16).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lapse.core.expression import compile_filter
from lapse.core.letter import FORWARDER
from lapse.core.lifetime import NEVER
from lapse.core.queue import settlement
from lapse.core.queue.activity import Activity
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions
from lapse.core.queue.dispatch import STEP_MESSAGES, Dispatch
from lapse.core.queue.entrance import Entrance
from lapse.core.queue.handed_out import HandedOut
from lapse.core.queue.inquiry import JUDGED_AT_ONCE, Inquiry
from lapse.core.queue.life import Guard, Trigger, route
from lapse.core.queue.locator import Locator
from lapse.core.queue.matching import Matching
from lapse.core.queue.message_state import LIVE
from lapse.core.queue.pending_letters import PendingLetters
from lapse.core.queue.retiring import RetirableQueueShard
from lapse.core.queue.retry import Cause
from lapse.core.queue.schedule import Schedule
from lapse.core.queue.segment import SIZE
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement import Claim, Outcome
from lapse.core.queue.settling import Settling
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Queued, Removal, ShardEvent, Step
from lapse.core.queue.subscription import Payload, Subscription
from lapse.core.queue.target_depth import UNLIMITED, TargetDepth
from lapse.core.queue.timer import Timers
from lapse.core.queue.transfer import HandOver
from lapse.core.queue.transfer_source import TransferSource
from lapse.core.queue.transfer_target import TransferTarget
from lapse.core.queue.transitions import Transitions
from lapse.core.queue.truncation import Truncation
from lapse.core.queue.view import RecordView
from lapse.core.queue.visibility import Visibility
from lapse.core.record import Record
from lapse.core.shard.agreement import Agreement
from lapse.core.shard.event import EventKind


class QueueShard:
    """The state machine of one shard: the entrance to its parts."""

    def __init__(self, settings: QueueSettings, state: QueueState | None = None) -> None:
        self.settings = settings
        self.state = QueueState() if state is None else state
        self.matching = Matching(compile_filter)
        self.state.segments.resting.append(self.matching.put_away)
        self._keep_filters()
        self._decisions = Decisions(settings, self.state, self.matching)
        self._transitions = Transitions(self._decisions)
        self._locator = Locator(self.state)
        self._visibility = Visibility(self._decisions, self._locator)
        self._inquiry = Inquiry(self._decisions)
        self._target_depth = TargetDepth(self._decisions, self._inquiry)
        self._schedule = Schedule(self._decisions, self._target_depth)
        self._entrance = Entrance(self._decisions, self._schedule, self._target_depth)
        self._settling = Settling(self._decisions, self._transitions, self._schedule, self._locator, self._visibility)
        self._truncation = Truncation(self._decisions, self._transitions, self._schedule, self._locator)
        self._timers = Timers(self._decisions, self._transitions)
        self._dispatch = Dispatch(self._decisions)
        self.handed_out = HandedOut(self._decisions)
        self._pending_letters = PendingLetters(self._decisions)
        self.activity = Activity(self._decisions)
        retirable = RetirableQueueShard(
            self._decisions, self._transitions, self._schedule, self._inquiry, self.activity
        )
        self.agreement: Agreement[Step] = Agreement(settings.name, settings.partition, settings.shards, retirable)
        self._transfer_source = TransferSource(
            self._decisions, self._transitions, self._schedule, self._locator, self._inquiry
        )
        self._transfer_target = TransferTarget(self._decisions, self._schedule)

    # What comes in

    def arrive(
        self,
        topic: str,
        partition: int,
        records: Sequence[Record],
        step: Step,
        now_ms: int = 0,
        most: int = UNLIMITED,
    ) -> int:
        """Take in records of an underlying topic, in the order of their offsets (L1 to L8, L12).

        Records that were seen before are skipped, so that reading again after a crash changes nothing.

        Args:
            topic: the topic.
            partition: its partition.
            records: what comes next in its log.
            step: gets what is decided.
            now_ms: the instant; what may not enter leaves as of it, or as of its arrival if that is later (C53).
            most: so many scheduled messages at most get their places before the records (C60).

        Returns:
            How many of the records were taken in: fewer than all where messages come before the rest that were held,
            and fill the target depth (C51), or that are a crowd (C60).
        """
        self.state.segments.make_room()
        return self._entrance.arrive(topic, partition, records, step, now_ms, most)

    @property
    def placed(self) -> int:
        """How many scheduled messages got their places so far because of what arrived behind them."""
        return self._entrance.placed

    def room(self) -> int:
        """How many more messages may become active (Q13); none once the shard has agreed to end."""
        return 0 if self.agreement.frozen else self._target_depth.room()

    def room_for(self, topic: str, partition: int) -> int:
        """How many more messages of a source may become active: room, or the way to one that a transfer wants (Q13)."""
        return 0 if self.agreement.frozen else self._target_depth.room_for(topic, partition)

    @property
    def advancing(self) -> bool:
        """Whether a transfer wants a message that is not active yet (Q13)."""
        return not self.agreement.frozen and self._target_depth.advancing

    def advance_to(self, claims: Iterable[Claim], most: int) -> None:
        """See `TargetDepth.advance_to`."""
        self._target_depth.advance_to(claims, most)

    def told(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """See `TargetDepth.told`."""
        return list(self._target_depth.told(outcomes))

    def looks_ahead(self, claims: Iterable[Claim]) -> list[tuple[str, int]]:
        """Sources of which messages are named that are not active yet, so that the end of their log must be known."""
        return self._settling.looks_ahead(claims)

    def note_end(self, topic: str, partition: int, end_offset: int) -> None:
        """Know where the log of a source ends."""
        number = self.state.sources.find(topic, partition)
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
        payload: Payload = "inline",
        row_filter: str = "",
    ) -> Subscription:
        """Begin a subscription, or replace its options and keep its leases (Q3, C20).

        A row_filter, of what its user may see at most, is part of the filter already (X4).

        Raises:
            ExpressionError: the filter cannot be compiled.
        """
        if filter_text:
            compile_filter(filter_text)
        known = self.state.subscriptions.get(subscription)
        facts = Subscription(
            id=subscription,
            number=self.state.subscription_table.next_number if known is None else known.number,
            client=client,
            max_backlog=self._capped(max_backlog),
            asked_backlog=max_backlog,
            heartbeat_timeout_ms=heartbeat_timeout_ms,
            filter=filter_text,
            last_seen_ms=now_ms,
            payload=payload,
            row_filter=row_filter,
        ).facts()
        self._decisions.do(Change(ChangeKind.SUBSCRIBED, holder=facts["number"], facts=facts), step)
        self._keep_filters()
        if known is None:
            step.events.append(ShardEvent(EventKind.SUBSCRIBED, now_ms, subscription=subscription, detail=client))
        return self.state.subscriptions[subscription]

    def heard(self, subscription: str, now_ms: int) -> bool:
        """Note that a subscription lives; False if the shard does not know it (Q5)."""
        known = self.state.subscriptions.get(subscription)
        if known is None:
            return False
        known.last_seen_ms = max(known.last_seen_ms, now_ms)
        return True

    def subscriptions(self) -> list[Subscription]:
        """What clients are subscribed to now."""
        return [one for one in self.state.subscriptions.values() if one.id != FORWARDER]

    def unsubscribe(
        self, subscription: str, now_ms: int, step: Step, detail: str = "", lost_at_ms: int | None = None
    ) -> bool:
        """End a subscription and return its leases (Q5); False if the shard does not know it.

        They return at once; where its consumer was lost at `lost_at_ms`, after their back-off (Q24).
        """
        known = self.state.subscriptions.get(subscription)
        if known is None:
            return False
        self.state.segments.make_room()
        at, held = Trigger.LOSE_CONSUMER, self._decisions.held_by(known.number)
        if lost_at_ms is None:
            self._transitions.happen(at, held, now_ms, step)
        else:
            self._transitions.come_back(at, Cause.LOST, held, now_ms, step, since_ms=lost_at_ms)
        self._decisions.do(Change(ChangeKind.UNSUBSCRIBED, holder=known.number, facts={"id": known.id}), step)
        self._keep_filters()
        step.events.append(ShardEvent(EventKind.UNSUBSCRIBED, now_ms, subscription=subscription, detail=detail))
        return True

    def pause(self, now_ms: int, step: Step) -> None:
        """Hold deliveries back; everything else goes on (C21)."""
        self._decisions.do(Change(ChangeKind.PAUSED), step)
        step.events.append(ShardEvent(EventKind.PAUSED, now_ms))

    def resume(self, now_ms: int, step: Step) -> None:
        """Deliver again (C21)."""
        self._decisions.do(Change(ChangeKind.RESUMED), step)
        step.events.append(ShardEvent(EventKind.RESUMED, now_ms))

    def settle(
        self,
        action: settlement.SettleAction,
        subscription: str,
        claims: Iterable[Claim],
        now_ms: int,
        step: Step,
        delay_ms: int | None = None,
        row_filter: str = "",
    ) -> list[Outcome]:
        """Acknowledge, cancel or expire messages, bookmark by bookmark (Q8, C13 to C18).

        Args:
            action: what is asked for; not RENEW.
            subscription: who asks; need not be known under sublet leasing.
            claims: which messages; of one named twice the first counts (C16).
            now_ms: the command's instant.
            step: filled with what it causes.
            delay_ms: CANCEL: so long the messages stay undeliverable (C19); None = as the message or the queue says
                (Q24).
            row_filter: what does not match it is unknown to who asks, unless they hold it; judged on `unheld` and
                `unplaced` (X4).

        Returns:
            What happened to each message, in the order of the claims.
        """
        self.state.segments.make_room()
        return self._settling.settle(action, subscription, claims, now_ms, step, delay_ms, row_filter)

    def unheld(self, subscription: str, claims: Iterable[Claim]) -> Iterator[list[int]]:
        """Places of messages that are named and that a subscription does not hold, some at a time (X4)."""
        return self._visibility.unheld(subscription, claims)

    def unplaced(
        self, subscription: str, claims: Iterable[Claim], limit: int = JUDGED_AT_ONCE
    ) -> Iterator[tuple[str, int, list[int]]]:
        """What is named and not there: settled, expired, scheduled, or never a message (X4).

        Yields:
            Topic, partition and ascending offsets for `judge_bookmarks`; so many in all at most. What is left out
            counts as not to be seen.
        """
        return self._visibility.unplaced(claims, limit)

    def renew(
        self,
        subscription: str,
        claims: Iterable[Claim],
        now_ms: int,
        step: Step,
        lease_ms: int | None = None,
        row_filter: str = "",
    ) -> tuple[list[Outcome], int]:
        """Extend leases from now; by their holder only, any number of times (C17); `row_filter` as of `settle`.

        Returns:
            What happened to each message, and when the renewed leases end, ms since the epoch.
        """
        self.state.segments.make_room()
        return self._settling.renew(subscription, claims, now_ms, step, lease_ms, row_filter)

    def purge(
        self, now_ms: int, step: Step, leased: bool = False, text: str = ""
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Take out all but leased messages, scheduled and held ones too; with `leased` those as well (C37, C83).

        What is being transferred stays, and counts as left; so does what a transfer has put here (Q17).

        With the text of a filter under selection, only messages that match it; scheduled ones as far as `to_judge` and
        `scheduled_to_judge` are done.

        Returns:
            How many were removed, by the state in which they were, and how many were left.
        """
        self.state.segments.make_room()
        guard = Guard.LEASED_TOO if leased else None
        along = route(Trigger.PURGE, guard)
        removed = dict.fromkeys(("available", "delayed", "leased", "scheduled", "held"), 0)
        left = dict.fromkeys(("leased", "transferring", "unconfirmed"), 0)
        for index in sorted(self.state.segments):
            if not self.state.outline(index).held:
                continue
            segment = self.state.segments[index]
            for state in LIVE:
                slots = self._decisions.slots_in(segment, (state,), text)
                goes = along.takes[state]
                (removed if goes else left)[state.name.lower()] += len(slots)
                if len(slots) and goes:
                    self._transitions.happen(Trigger.PURGE, [(segment, slots)], now_ms, step, guard=guard)
            self.state.segments.make_room()
        if self.state.scheduled.held or self.state.scheduled.unconfirmed:
            for (number, offset), scheduled in self._inquiry.scheduled(text):
                if not along.takes[scheduled.state]:
                    left[self._inquiry.queued_scheduled(number, offset, scheduled).stands] += 1
        for state_name, count in self.purge_scheduled(now_ms, step, text).items():
            removed[state_name] += count
        return removed, left

    def purge_scheduled(self, now_ms: int, step: Step, text: str = "", most: int = UNLIMITED) -> dict[str, int]:
        """Take out scheduled and held messages, so many at most: the first part of a purge that takes long (C60).

        Returns:
            How many were removed, by the state in which they were; as many as `most` = there may be more.
        """

        def matches(number: int, offset: int) -> bool:
            return not text or self._inquiry.matches(text, number, offset)

        gone = self._schedule.purge(now_ms, step, Trigger.PURGE, most=most, matches=matches)
        held = sum(one.ready for one in gone)
        return {"scheduled": len(gone) - held, "held": held}

    def truncated(
        self,
        topic: str,
        partition: int,
        offsets: Sequence[int],
        now_ms: int,
        step: Step,
        handed_out: bool = False,
    ) -> None:
        """Take out messages whose records Kafka no longer has (C40).

        A lease protects them, and what was sent at most once has left (C79, C80): unless they were `handed_out` in this
        very step, and so will reach nobody.
        """
        for offset in offsets:
            claim = Claim(topic, partition, offset, offset)
            self._truncation.record_gone(Trigger.TRUNCATE, claim, now_ms, step, handed_out)

    def set_aside(self, topic: str, partition: int, record: Record, why: str, step: Step) -> None:
        """Turn a record that must not be looked at into a dead letter; it never enters (X7)."""
        self._entrance.set_aside(topic, partition, record, why, step)

    def undecodable(
        self,
        topic: str,
        partition: int,
        offset: int,
        why: str,
        now_ms: int,
        step: Step,
        handed_out: bool = False,
    ) -> None:
        """Take out a message whose record must not be looked at, or which nobody takes (X7).

        What was sent at most once has left (C79), unless it was `handed_out` in this very step and reached nobody.
        """
        claim = Claim(topic, partition, offset, offset)
        self._truncation.record_gone(Trigger.SPOIL, claim, now_ms, step, handed_out, why)

    def keep_pending(self, removal: Removal, refused: Mapping[int, str], step: Step) -> list[tuple[int, int]]:
        """Keep messages of a removal of the step whose letters the broker refuses, by their index, with why (C27).

        Returns:
            The messages as (source, offset), for `letter_written`.
        """
        return self._pending_letters.keep(removal, refused, step)

    def letter_written(self, source: int, offset: int, step: Step) -> None:
        """Let a dying message go, whose letter is safe now."""
        self._pending_letters.letter_written(source, offset, step)

    def log_begins(self, topic: str, partition: int, begin_offset: int, now_ms: int, step: Step) -> bool:
        """Take out messages below an offset: Kafka has removed their records (C40). Leases protect theirs (C80).

        Returns:
            False if there are more; come again with the next step.
        """
        return self._truncation.below(topic, partition, begin_offset, now_ms, step)

    def not_acknowledged(self, topic: str, partition: int, first: int, last: int) -> list[tuple[int, int]]:
        """First and last offset of what nobody acknowledged ahead of messages that were not read yet (C80, Q13)."""
        return self._truncation.not_acknowledged(topic, partition, first, last)

    def replace_topic(self, topic: str, epoch: int, now_ms: int, step: Step) -> bool:
        """Close what is known of a topic that was deleted and created again; it is read from its beginning (C42).

        Args:
            topic: which one.
            epoch: this epoch; a settlement of what an earlier one delivered is stale from now on.
            now_ms: the instant, ms since the epoch.
            step: gets the removals.

        Returns:
            False if messages are left; come again with the next step, and with nothing else in between.
        """
        return self._truncation.replace(topic, epoch, now_ms, step)

    def topic_begins(self, topic: str, partition: int, epoch: int) -> None:
        """Know since which epoch a source is the topic of its name; not journaled here (C42)."""
        self._truncation.begins(topic, partition, epoch)

    def use(self, now_ms: int, step: Step) -> None:
        """Note that the shard is used, which a temporary queue goes by (C39, C50, Q18).

        Somebody publishes, receives, settles or looks; or a message becomes available, or leaves.
        """
        if self.activity.watched:
            self.activity.note(now_ms, step)
            self.agreement.used(now_ms, step)

    # Handing over to another deployment, and taking over from one (Q17)

    def hold(
        self, name: str, target: str, claims: Iterable[Claim], most: int, now_ms: int, step: Step
    ) -> tuple[list[Outcome], bool]:
        """Keep messages back for a transfer: nobody gets them, and their lifetime goes on.

        Args:
            name: the transfer's id.
            target: where the messages go, for people.
            claims: which messages; what the transfer holds already is settled again.
            most: so many messages at most are held for it at a time.
            now_ms: the command's instant.
            step: filled with what it causes.

        Returns:
            What happened to each message, as far as was looked, and whether there are more.
        """
        return self._transfer_source.hold(name, target, claims, most, now_ms, step)

    def confirm(self, name: str, given: Iterable[HandOver], now_ms: int, step: Step) -> list[Outcome]:
        """Let messages go that a transfer holds and has put at its destination; what has expired has not left."""
        return self._transfer_source.confirm(name, given, now_ms, step)

    def finish_transfer(self, name: str, step: Step) -> None:
        """Forget what a transfer has confirmed: its destination knows."""
        self._transfer_source.finish(name, step)

    def give_back(self, name: str, now_ms: int, step: Step) -> int:
        """Return the messages that a transfer holds, to where they were; how many. What it confirmed is forgotten."""
        return self._transfer_source.give_back(name, now_ms, step)

    def held(self, name: str) -> Iterable[Queued]:
        """Messages that a transfer holds."""
        return self._transfer_source.held(name)

    def accept(self, name: str, claims: Iterable[Claim], now_ms: int, step: Step) -> list[Outcome]:
        """Make messages visible that a transfer has put here, now that they have left where they came from."""
        return self._transfer_target.accept(name, claims, now_ms, step)

    def discard(self, name: str, now_ms: int, step: Step) -> int:
        """Throw away what a transfer has put here and never confirmed; how many messages (`withdrawn`)."""
        return self._transfer_target.discard(name, now_ms, step)

    # What is asked

    def selected(self, text: str) -> list[Claim]:
        """Messages that match a filter under selection, as claims; complete once `to_judge` gives no more (Q8)."""
        return self._inquiry.selected(text)

    def selected_scheduled(self, text: str) -> list[Claim]:
        """The same of messages without a place, once `scheduled_to_judge` is done; unconfirmed ones are left out."""
        return self._inquiry.selected_scheduled(text)

    def scheduled_to_judge(self) -> Iterator[tuple[str, int, list[int]]]:
        """Topic, partition and offsets of messages without a place, some at a time, for `judge_bookmarks` (C82)."""
        return self._inquiry.scheduled_to_judge()

    def to_judge(self, text: str, limit: int = JUDGED_AT_ONCE) -> list[int]:
        """Places whose payloads are needed to know whether they match a filter under selection."""
        return self._inquiry.to_judge(text, limit)

    def depth(self, text: str = "", now_ms: int = -1) -> dict[str, int]:
        """How many messages there are, by state; scheduled and dying ones do not count in the depth (Q15, C12).

        With the text of a filter under selection, only messages that match it, and no dying ones. With an instant,
        none that has expired by then, though a crowd of them leaves bit by bit (L11).
        """
        return self._inquiry.matching_depth(text, now_ms) if text else self._inquiry.depth(now_ms)

    def oldest(self, now_ms: int) -> int | None:
        """The place of the first message that has not expired; None if there is none."""
        return self._inquiry.oldest(now_ms)

    def held_up(self) -> dict[str, int]:
        """What is held up by what stands before it, by figure; those that are 0 are left out (C48, C87).

        Of the first barrier: messages before it, and refused letters of such; and groups whose first message no
        subscription matches that is there.
        """
        groups = self._dispatch.groups_held_back()
        return self._inquiry.before_barrier() | ({"groups_held_back": groups} if groups else {})

    def peek(self, skip: int, limit: int, text: str = "", now_ms: int = -1) -> Iterator[Queued]:
        """Messages in order, scheduled and dying ones behind; takes no lease (Q15).

        With the text of a filter under selection, only messages that match it, and no dying ones. With an instant,
        none that has expired by then (L11).
        """
        return self._inquiry.peek(skip, limit, text, now_ms)

    def bookmark_of(self, place: int) -> tuple[str, int, int] | None:
        """Topic, partition and offset of the message at a place; None if it is gone."""
        return self._inquiry.bookmark_of(place)

    # What time brings

    def advance(self, now_ms: int, step: Step, most: int = STEP_MESSAGES) -> int:
        """Do what is due at `now_ms`, in the order of C2; much of it at once is left for the next call (C60).

        Args:
            now_ms: the instant.
            step: gets what is decided.
            most: about so many messages expire, return or materialise.

        Returns:
            How many did.
        """
        self.state.segments.make_room()
        if self.agreement.retired:
            self.agreement.advance(now_ms, step)
            return 0
        removed = len(step.removals)
        done = self._timers.expire(now_ms, step, most)
        changed = len(step.changes)
        done += self._timers.end_leases(now_ms, step, max(most - done, most // 2))
        came = len(step.changes) > changed
        self.end_lost(now_ms, step)
        changed = len(step.changes)
        done += self._schedule.advance(now_ms, step, max(most - done, most // 2))
        if came or len(step.changes) > changed or len(step.removals) > removed:
            self.use(now_ms, step)  # before anybody looks whether the queue is idle (C50)
        self.agreement.advance(now_ms, step)
        return done

    def end_lost(self, now_ms: int, step: Step) -> None:
        """End subscriptions that were not heard of for too long (Q5)."""
        for lost in [one for one in self.state.subscriptions.values() if one.lost_at_ms <= now_ms]:
            why = f"not heard of for {now_ms - lost.last_seen_ms} ms"
            self.unsubscribe(lost.id, now_ms, step, why, lost.lost_at_ms)

    def end_leases_of(self, claims: Iterable[Claim], now_ms: int, step: Step) -> None:
        """Return what is named and whose lease or delay is over, before others whose are over, too (C2, C60)."""
        if self._timers.next_due_ms() > now_ms:
            return
        for claim in claims:
            for segment, first, stop, _, _ in self._locator.located(claim, []):
                self._timers.end_leases_in(segment, first, stop, now_ms, step, SIZE)

    def next_due_ms(self) -> int:
        """The next instant at which `advance` has something to do; `NEVER` if there is none."""
        due_ms = self._unscheduled_due_ms()
        return due_ms if self.agreement.retired else min(due_ms, self._schedule.next_due_ms())

    def is_due(self, at_ms: int) -> bool:
        """Whether `advance` has something to do at an instant; what is scheduled may wait for older arrivals (C76)."""
        if self._unscheduled_due_ms() <= at_ms:
            return True
        return not self.agreement.retired and self._schedule.is_due(at_ms)

    def waits_for_arrivals(self, at_ms: int) -> bool:
        """Whether a scheduled message is due at an instant, and has to stand behind what arrived before it (C76)."""
        return not (self.agreement.frozen or self.agreement.retired) and self._schedule.waits_for_arrivals(at_ms)

    def arrivals_are_in(self, to_ms: int) -> None:
        """Know that what arrived up to an instant was taken in; a shard that was never told waits for nothing (C76)."""
        self._schedule.read_to_ms = to_ms

    def _unscheduled_due_ms(self) -> int:
        if self.agreement.retired:
            return self.agreement.next_due_ms()
        lost_at_ms = min((one.lost_at_ms for one in self.state.subscriptions.values()), default=NEVER)
        return min(self._timers.next_due_ms(), lost_at_ms, self.agreement.next_due_ms())

    def take_over(self, now_ms: int, step: Step | None = None) -> None:
        """Begin to own the shard: every subscription has one full heartbeat timeout from now (C5).

        With a step, limits that were lowered below the counts of unleased messages take them out (C23); leased ones
        follow when their lease ends. A changed cap on backlogs reaches the subscriptions that are there (Q3). What was
        sent at most once waits on for its acknowledgment, or its subscriber's end (C79). Not before the journal has
        begun: a change has to stand behind what it changes.
        """
        self._decisions.began_ms = now_ms
        self.agreement.take_over(now_ms)
        for subscription in self.state.subscriptions.values():
            subscription.last_seen_ms = max(subscription.last_seen_ms, now_ms)
        if step is None:
            return
        for known in list(self.state.subscriptions.values()):
            max_backlog = self._capped(known.asked_backlog)
            if max_backlog != known.max_backlog:
                facts = {**known.facts(), "max_backlog": max_backlog}
                self._decisions.do(Change(ChangeKind.SUBSCRIBED, holder=known.number, facts=facts), step)
        self._transitions.remove_beyond_limits(now_ms, step)
        self.activity.begin(now_ms, step)

    # What goes out

    @property
    def unjudged(self) -> list[int]:
        """Places whose payloads are needed to go on delivering; `bookmark_of` names them, `judge` takes them."""
        return self._dispatch.unjudged

    def deliver(self, now_ms: int, step: Step) -> bool:
        """Hand deliverable messages to the subscriptions that have space, in order (Q3, Q5 to Q7).

        Returns:
            Whether there may be more to hand out at once.
        """
        self.state.segments.make_room()
        if self.agreement.frozen:
            return False
        return self._dispatch.deliver(now_ms, step)

    def repeat(self, released: Change, step: Step) -> None:
        """Send a barrier again that a crash may have kept from its receivers (C35)."""
        self._dispatch.repeat(released, step)

    def judge(self, records: Sequence[tuple[int, str, int, Record | None]]) -> None:
        """Evaluate the subscriptions' filters on messages: (place, topic, partition, record), None = record gone."""
        views = [
            None if record is None else RecordView(topic, partition, record, self.settings.parse)
            for _, topic, partition, record in records
        ]
        self.matching.judge([place for place, *_ in records], views)

    def judge_bookmarks(self, text: str, records: Iterable[tuple[str, int, Record]]) -> None:
        """Evaluate a filter under selection on records whose messages have no place: (topic, partition, record)."""
        views = (RecordView(topic, partition, record, self.settings.parse) for topic, partition, record in records)
        self.matching.judge_bookmarks(text, views)

    def _capped(self, backlog: int) -> int:
        return backlog if self.settings.max_backlog is None else min(backlog, self.settings.max_backlog)

    def _keep_filters(self) -> None:
        self.matching.keep(one.filter for one in self.state.subscriptions.values())
