"""One shard of a queue: arrivals, subscriptions, deliveries and settlements, as pure decisions.

Every method gets the instant at which it takes effect, and a `Step` to fill. It decides from the state. Each decision
is a `Change` that is applied at once, so later decisions of the step see it. Nothing else changes the state. Between
operations, segments beyond the memory limit are moved to the spill store (Q16).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from lapse.core.expression import compile_filter
from lapse.core.portions import Portions
from lapse.core.queue.advance import Advance
from lapse.core.queue.arrival.entrance import Entrance
from lapse.core.queue.arrival.target_depth import UNLIMITED, TargetDepth
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions
from lapse.core.queue.delivery.dispatch import STEP_MESSAGES, Dispatch
from lapse.core.queue.delivery.handed_out import HandedOut
from lapse.core.queue.inquiry.inquiry import Inquiry
from lapse.core.queue.inquiry.matching import Matching
from lapse.core.queue.inquiry.selection import JUDGED_AT_ONCE, Selection
from lapse.core.queue.inquiry.view import RecordView
from lapse.core.queue.inquiry.visibility import Visibility
from lapse.core.queue.life.table import Trigger
from lapse.core.queue.life.transitions import Transitions
from lapse.core.queue.rates.allowance import Allowance
from lapse.core.queue.removal.pending_letters import OfLetter, PendingLetters
from lapse.core.queue.removal.purge import Purge
from lapse.core.queue.removal.truncation import Truncation
from lapse.core.queue.retirement.activity import UsableQueueShard
from lapse.core.queue.retirement.retiring import RetirableQueueShard
from lapse.core.queue.rewind.rewinding import Rewinding
from lapse.core.queue.schedule.schedule import Schedule
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement import settlement
from lapse.core.queue.settlement.locator import Locator
from lapse.core.queue.settlement.settlement import Claim, Outcome
from lapse.core.queue.settlement.settling import Settling
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Queued, Step
from lapse.core.queue.subscriptions.subscribing import Subscribing
from lapse.core.queue.subscriptions.subscription import Subscription
from lapse.core.queue.transfer.transfer_source import TransferSource
from lapse.core.queue.transfer.transfer_target import TransferTarget
from lapse.core.record import Record
from lapse.core.shard.activity import Activity
from lapse.core.shard.agreement import Agreement
from lapse.core.shard.event import EventKind, ShardEvent


class QueueShard:
    """The state machine of one shard, which delegates to its parts."""

    def __init__(self, settings: QueueSettings, state: QueueState | None = None) -> None:
        self.settings = settings
        self.state = QueueState() if state is None else state
        self.matching = Matching(compile_filter)
        self.state.segments.resting.append(self.matching.mark_empty_slots)
        self._decisions = Decisions(settings, self.state, self.matching)
        self.horizon = self._decisions.horizon
        self._transitions = Transitions(self._decisions)
        self._locator = Locator(self.state)
        self._visibility = Visibility(self._decisions, self._locator)
        self._inquiry = Inquiry(self._decisions)
        self.selection = Selection(self._decisions, self._inquiry)
        self._target_depth = TargetDepth(self._decisions, self._inquiry)
        self._schedule = Schedule(self._decisions, self._target_depth, self._transitions)
        self._entrance = Entrance(self._decisions, self._schedule, self._target_depth)
        self.rewinding = Rewinding(self._decisions, self._entrance)
        self._settling = Settling(self._decisions, self._transitions, self._schedule, self._locator, self._visibility)
        self._truncation = Truncation(self._decisions, self._transitions, self._schedule, self._locator)
        self.subscribing = Subscribing(self._decisions, self._transitions, self.matching)
        self._purge = Purge(self._decisions, self._transitions, self._schedule, self._inquiry)
        self.allowance = Allowance(self._decisions)
        self._dispatch = Dispatch(self._decisions, self.allowance)
        self.release_forwarded = self._dispatch.release_forwarded
        self.handed_out = HandedOut(self._decisions, self._transitions)
        self._pending_letters = PendingLetters(self._decisions)
        self.activity: Activity[Step] = Activity(
            settings.idle_ms, settings.configured, UsableQueueShard(self._decisions)
        )
        self.transfer_target = TransferTarget(self._decisions, self._schedule)
        parts = self._decisions, self._transitions, self._schedule
        self.retirable = RetirableQueueShard(*parts, self._inquiry, self.activity, self.transfer_target)
        self.agreement: Agreement[Step] = Agreement(settings.name, settings.partition, settings.shards, self.retirable)
        self._advance = Advance(*parts, self.subscribing, self._locator, self.activity, self.agreement)
        self.transfer_source = TransferSource(*parts, self._locator, self._inquiry)

    # Inputs

    def arrive(
        self, topic: str, partition: int, records: Sequence[Record], step: Step, now_ms: int = 0, most: int = UNLIMITED
    ) -> int:
        """See `Entrance.arrive`."""
        self.state.segments.make_room()
        return self._entrance.arrive(topic, partition, records, step, now_ms, most)

    @property
    def placed(self) -> int:
        """The number of scheduled messages that have got places because later records arrived."""
        return self._entrance.placed

    def room(self) -> int:
        """Return how many more messages may become active (Q13): 0 once the shard is prepared, or during a rewind."""
        return 0 if self.agreement.frozen or self.state.rewinds.under_way else self._target_depth.room()

    def room_for(self, topic: str, partition: int) -> int:
        """Return how many more messages of a source may become active: see `TargetDepth.room_for` (Q13)."""
        if self.agreement.frozen or self.state.rewinds.under_way:
            return 0
        return self._target_depth.room_for(topic, partition)

    @property
    def has_early_transfer(self) -> bool:
        """Whether a transfer wants a message that is not active yet (Q13)."""
        return not self.agreement.frozen and self._target_depth.has_early_transfer

    def activate_up_to(self, claims: Iterable[Claim], most: int) -> None:
        """See `TargetDepth.activate_up_to`."""
        self._target_depth.activate_up_to(claims, most)

    def with_advancing(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """See `TargetDepth.with_advancing`."""
        return list(self._target_depth.with_advancing(outcomes))

    def sources_named_ahead(self, claims: Iterable[Claim]) -> list[tuple[str, int]]:
        """Return the sources of named messages that are not active yet. The ends of their logs must be known."""
        return self._settling.sources_named_ahead(claims)

    def note_end(self, topic: str, partition: int, end_offset: int) -> None:
        """Note the end of a source's log."""
        number = self.state.sources.find(topic, partition)
        if number is not None:
            self.state.sources[number].end_offset = end_offset

    def note_heartbeat(self, subscription: str, now_ms: int) -> bool:
        """Note a sign of life of a subscription. Return False if the shard does not know it (Q5)."""
        return self.subscribing.note_heartbeat(subscription, now_ms)

    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions of clients."""
        return self.subscribing.subscriptions()

    def unsubscribe(
        self, subscription: str, now_ms: int, step: Step, detail: str = "", lost_at_ms: int | None = None
    ) -> bool:
        """See `Subscribing.unsubscribe`."""
        return self.subscribing.unsubscribe(subscription, now_ms, step, detail, lost_at_ms)

    def pause(self, now_ms: int, step: Step) -> None:
        """Pause deliveries, if they are not paused yet. Everything else goes on (C21)."""
        if not self.state.paused:
            self._decisions.apply_change(Change(ChangeKind.PAUSED), step)
            step.events.append(ShardEvent(EventKind.PAUSED, now_ms))

    def resume(self, now_ms: int, step: Step) -> None:
        """Resume deliveries, if they are paused (C21)."""
        if self.state.paused:
            self._decisions.apply_change(Change(ChangeKind.RESUMED), step)
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
        fault: str = "",
        quiet: bool = False,
    ) -> list[Outcome]:
        """See `Settling.settle`."""
        self.state.segments.make_room()
        return self._settling.settle(action, subscription, claims, now_ms, step, delay_ms, row_filter, fault, quiet)

    def places_not_held(self, subscription: str, claims: Iterable[Claim]) -> Iterator[list[int]]:
        """Yield places of named messages that a subscription does not hold, some at a time (X4)."""
        return self._visibility.places_not_held(subscription, claims)

    def offsets_without_place(
        self, subscription: str, claims: Iterable[Claim], limit: int = JUDGED_AT_ONCE
    ) -> Iterator[tuple[str, int, list[int]]]:
        """See `Visibility.offsets_without_place`."""
        return self._visibility.offsets_without_place(claims, limit)

    def renew(
        self,
        subscription: str,
        claims: Iterable[Claim],
        now_ms: int,
        step: Step,
        lease_ms: int | None = None,
        row_filter: str = "",
    ) -> tuple[list[Outcome], int]:
        """See `Settling.renew`."""
        self.state.segments.make_room()
        return self._settling.renew(subscription, claims, now_ms, step, lease_ms, row_filter)

    def purge(
        self, now_ms: int, step: Step, leased: bool = False, text: str = ""
    ) -> tuple[dict[str, int], dict[str, int]]:
        """See `Purge.purge_all`."""
        return self._purge.purge_all(now_ms, step, leased, text)

    def purge_placed(self, now_ms: int, step: Step, leased: bool, text: str, most: int) -> dict[str, int]:
        """Carry out a part of a purge: see `Purge.purge_placed`. Return how many messages were removed, by state."""
        return self._purge.purge_placed(now_ms, step, leased, text, most)[0]

    def purge_scheduled(self, now_ms: int, step: Step, text: str = "", most: int = UNLIMITED) -> dict[str, int]:
        """See `Purge.purge_scheduled`."""
        return self._purge.purge_scheduled(now_ms, step, text, most)

    def remove_truncated(
        self, topic: str, partition: int, offsets: Sequence[int], now_ms: int, step: Step, handed_out: bool = False
    ) -> None:
        """Remove messages whose records Kafka no longer has (C40).

        Leased messages stay, and those sent at most once have left already (C79, C80). With `handed_out`, the messages
        were delivered in this step and cannot be written, so they leave as well.
        """
        for offset in offsets:
            claim = Claim(topic, partition, offset, offset)
            self._truncation.remove_recordless(Trigger.TRUNCATE, claim, now_ms, step, handed_out)

    def set_aside(self, topic: str, partition: int, record: Record, why: str, step: Step) -> None:
        """Make a dead letter of a record that must not be processed. It never enters the queue (X7)."""
        self._entrance.set_aside(topic, partition, record, why, step)

    def remove_undecodable(
        self, topic: str, partition: int, offset: int, why: str, now_ms: int, step: Step, handed_out: bool = False
    ) -> None:
        """Remove a message whose record must not be processed, or that no transfer target takes (X7).

        A message sent at most once has left (C79), unless it was `handed_out` in this step and reached nobody.
        """
        claim = Claim(topic, partition, offset, offset)
        self._truncation.remove_recordless(Trigger.SPOIL, claim, now_ms, step, handed_out, why)

    def keep_refused_letters(self, refused: Sequence[tuple[OfLetter, str]], step: Step) -> list[tuple[int, int]]:
        """Keep messages whose letters the broker refused. Return their keys for `letter_written` (C27)."""
        return self._pending_letters.keep_refused(refused, step)

    def letter_written(self, letter_key: tuple[int, int], step: Step) -> None:
        """Drop a dying message, because its letter is safe (D3)."""
        self._pending_letters.letter_written(letter_key, step)

    def truncate_below(self, topic: str, partition: int, begin_offset: int, now_ms: int, step: Step) -> bool:
        """Remove messages below an offset, since Kafka has removed their records (C40). Leased ones stay (C80).

        Returns:
            False if there are more; then call it again with the next step.
        """
        return self._truncation.remove_below(topic, partition, begin_offset, now_ms, step)

    def without_acknowledged(self, topic: str, partition: int, first: int, last: int) -> list[tuple[int, int]]:
        """Return ranges of unread offsets without those that were acknowledged in advance (C80, Q13)."""
        return self._truncation.without_acknowledged(topic, partition, first, last)

    def replace_topic(self, topic: str, epoch: int, now_ms: int, step: Step) -> bool:
        """See `Truncation.replace_topic`."""
        return self._truncation.replace_topic(topic, epoch, now_ms, step)

    def note_topic_epoch(self, topic: str, partition: int, epoch: int) -> None:
        """Note the epoch since which the source is this topic. This is not journaled here (C42)."""
        self._truncation.note_topic_epoch(topic, partition, epoch)

    def note_use(self, at_ms: int, step: Step) -> None:
        """Note a use: a publish, receipt, settlement or inquiry; a message becomes available or leaves (C39, C50)."""
        self.activity.note_use(at_ms, step, self.agreement)

    # Queries

    def depth(self, text: str = "", now_ms: int = -1) -> dict[str, int]:
        """Return how many messages there are, by state. Scheduled and dying ones are not in `depth` (Q15, C12).

        With the text of a filter under selection, only matching messages count, and no dying ones. With an instant,
        messages that have expired by then do not count, even if they have not left yet (L11).
        """
        return self._inquiry.matching_depth(text, now_ms) if text else self._inquiry.depth(now_ms)

    def oldest(self, now_ms: int) -> int | None:
        """Return the place of the first message that has not expired; None if there is none."""
        return self._inquiry.oldest(now_ms)

    def held_up(self, now_ms: int) -> dict[str, int]:
        """Return what holds up messages, by cause, without counts of 0 (C48, C87, Q15).

        These are messages and refused letters before the first barrier, groups whose first message matches no
        subscription, and messages of subscriptions that hang.
        """
        others = {
            "groups_held_back": self._dispatch.groups_held_back(),
            "hanging": self.subscribing.count_hanging(now_ms),
        }
        return self._inquiry.count_before_barrier() | {cause: count for cause, count in others.items() if count}

    def peek(
        self,
        skip: int,
        limit: int,
        text: str = "",
        now_ms: int = -1,
        refused: Callable[[tuple[int, int]], str] = lambda name: "",
        state: str = "",
    ) -> Iterator[Queued]:
        """Yield messages by place, then scheduled and dying ones, without leasing them (Q15).

        With the text of a filter under selection, only matching messages, and no dying ones. With an instant, none that
        has expired by then (L11). With a state, only those in it. `refused` returns why the letter of a dying message
        waits, by its source and offset, because the shard does not know the broker's reply (C48).
        """
        return self._inquiry.peek(skip, limit, text, now_ms, refused, state)

    def find_named(
        self, claims: Sequence[Claim], now_ms: int, refused: Callable[[tuple[int, int]], str], row_filter: str = ""
    ) -> Iterator[Queued]:
        """Yield the messages of some bookmarks, in any state: see `Inquiry.find_named`, `Visibility.visible_among`."""
        return self._visibility.visible_among(self._inquiry.find_named(claims, now_ms, refused), claims, row_filter)

    def bookmark_of(self, place: int) -> tuple[str, int, int] | None:
        """Return topic, partition and offset of the message at a place; None if its segment does not hold the place."""
        return self._inquiry.bookmark_of(place)

    # Time

    def advance(self, now_ms: int, step: Step, most: int = STEP_MESSAGES) -> int:
        """See `Advance.process_due`."""
        self.allowance.clear_reached(now_ms)
        return self._advance.process_due(now_ms, step, most)

    def end_lost(self, now_ms: int, step: Step) -> None:
        """End subscriptions whose heartbeats are missing for too long (Q5)."""
        self.subscribing.end_lost(now_ms, step)

    def end_named_leases(self, claims: Iterable[Claim], now_ms: int, step: Step) -> None:
        """See `Advance.end_named_leases`."""
        self._advance.end_named_leases(claims, now_ms, step)

    def next_due_ms(self) -> int:
        """Return the next instant at which `advance` has something to do, ms since the epoch; `NEVER` without one."""
        due_ms = self._advance.next_due_ms()
        return min(due_ms, self.allowance.frees_ms) if self.allowance.is_bounded else due_ms

    def forget_gone(self, until_ms: int) -> None:
        """See `Timers.forget_gone`."""
        self._advance.forget_gone(until_ms)

    def is_due(self, at_ms: int) -> bool:
        """Return whether `advance` has work to do at an instant. Scheduled messages may wait for arrivals (C76)."""
        return self.allowance.frees_ms <= at_ms or self._advance.is_due(at_ms)

    def waits_for_arrivals(self, at_ms: int) -> bool:
        """See `Advance.waits_for_arrivals`."""
        return self._advance.waits_for_arrivals(at_ms)

    def note_arrivals_until(self, to_ms: int) -> None:
        """Note that all arrivals up to an instant were taken in. Without such a note nothing waits for them (C76)."""
        self._schedule.read_to_ms = to_ms

    def set_back(self, now_ms: int) -> None:
        """Let instants ahead of the clock count as now, because the broker's clock was set back (C3).

        Otherwise a lost consumer would be missed so much later, and a rate would permit nothing until then (C71).
        """
        self._decisions.began_ms = min(self._decisions.began_ms, now_ms)
        self.state.subscription_table.set_back(now_ms)
        self.activity.set_back(now_ms)
        self.allowance.set_back(now_ms)
        self._schedule.read_to_ms = 0  # earlier arrivals may be to come (C76)

    def take_over(self, now_ms: int, step: Step | None = None, unwritten: bool = False) -> None:
        """Begin to own the shard: every subscription gets one full heartbeat timeout from now (C5).

        With a step, unleased messages beyond a lowered limit leave (C23), and leased ones once their lease ends. A
        changed cap on backlogs applies to existing subscriptions (Q3). Messages sent at most once still wait for their
        acknowledgment or their subscriber's end (C79). Pass a step only after the journal has begun, since a change
        must follow what it changes. `unwritten`: whether deliveries that the former owner decided were written now
        (C55); they count from now (C71).
        """
        self._decisions.began_ms = now_ms
        self.agreement.take_over(now_ms)
        self.subscribing.restart_timeouts(now_ms)
        if step is None:
            return
        self.subscribing.apply_backlog_cap(step)
        self._transitions.remove_beyond_limits(now_ms, step)
        self.activity.begin(now_ms, step, self.agreement)
        self.allowance.take_over(now_ms, step, unwritten)

    def release_memory(self) -> Portions[None]:
        """Free the large parts of the state, in portions: see `Shard`."""
        yield from self.state.release_memory()

    # Outputs

    @property
    def unjudged(self) -> list[int]:
        """Places that must be judged before delivery can go on: pass their records (`bookmark_of`) to `judge`."""
        return self._dispatch.unjudged

    def deliver(self, now_ms: int, step: Step) -> bool:
        """Hand messages to the subscriptions that have space, in order (Q3, Q5 to Q7).

        Returns:
            Whether there may be more to hand out now.
        """
        self.state.segments.make_room()
        if self.state.ending.retirement is not None and self.agreement.frozen:
            return False
        return self._dispatch.deliver(now_ms, step)

    def repeat_barrier(self, released: Change, step: Step) -> None:
        """Send a barrier again, since a crash may have prevented its delivery (C35)."""
        self._dispatch.repeat_barrier(released, step)

    def judge(self, records: Sequence[tuple[int, str, int, Record | None]]) -> None:
        """Evaluate the filters in use on messages, as (place, topic, partition, record); a record of None is gone."""
        views = [
            None if record is None else RecordView(topic, partition, record, self.settings.parse)
            for _, topic, partition, record in records
        ]
        self.matching.judge([place for place, *_ in records], views)

    def judge_bookmarks(self, text: str, records: Iterable[tuple[str, int, Record]]) -> None:
        """Evaluate a filter under selection on messages without a place, as (topic, partition, record)."""
        views = (RecordView(topic, partition, record, self.settings.parse) for topic, partition, record in records)
        self.matching.judge_bookmarks(text, views)
