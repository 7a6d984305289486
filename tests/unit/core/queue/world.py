"""A queue shard beside its oracle, with the changelog that a crash leaves; every command is compared at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lapse.core.lifetime import NEVER
from lapse.core.queue.delivery import dispatch as dispatching
from lapse.core.queue.delivery.handed_out import Unsent
from lapse.core.queue.inquiry.matching import MOST_PAGED
from lapse.core.queue.segments.segment import NOBODY
from lapse.core.queue.settlement.settlement import Claim, Outcome, SettleAction
from lapse.core.queue.step import Step
from lapse.core.queue.subscriptions.subscription import Payload
from unit.core.queue.compared.endings import Endings
from unit.core.queue.compared.handing_over import HandingOver
from unit.core.queue.compared.rewinds import Rewinds
from unit.core.queue.compared.shown import by_subscription, shown_row
from unit.core.queue.compared.written import published
from unit.core.queue.expected.message import Bookmark, Gone, Published, Sent


class World(Endings, Rewinds, HandingOver):
    """One shard, its oracle, its changelog and its underlying topics, with every command to them."""

    def publish(self, topic: str, gap: int = 0, **said: object) -> Bookmark:
        """Write a record to an underlying topic; nobody has read it yet."""
        records = self.topics[topic, 0]
        offset = (records[-1].offset + 1 if records else 0) + gap
        said.setdefault("timestamp", self.now_ms)
        if said.get("message_id") and any(record.timestamp > said["timestamp"] for record in records):
            said["message_id"] = b""  # The window is by timestamps: nothing is promised where they run backwards.
        records.append(published(offset, **said))
        return (topic, 0, offset)

    def read(self, topic: str, most: int = 1 << 30, again: int = 0) -> None:
        """Take in what is next; with `again`, some records that were read before as well."""
        next_offset = self.oracle.next_offset.get((topic, 0), 0)
        records = self.topics[topic, 0]
        at = sum(record.offset < next_offset for record in records)
        assert self.shard.room() == self.oracle.room()
        most = min(most, self.oracle.room())
        batch = records[max(0, at - again) : at + most]
        if batch and most:
            self._both(
                lambda step: self._taken(self.shard.arrive(topic, 0, batch, step, self.now_ms), topic, batch),
                lambda: self.oracle.arrive(topic, 0, batch, self.now_ms),
            )

    def _taken(self, count: int, topic: str, batch: list[Published]) -> None:
        """What was not taken in comes again."""
        source = self.shard.state.sources[self.shard.state.sources.number(topic, 0)]
        assert [one.offset < source.next_offset for one in batch] == [at < count for at in range(len(batch))]

    def subscribe(
        self,
        subscription: str,
        max_backlog: int = 1,
        timeout_ms: int = 1_000_000,
        text: str = "",
        payload: Payload = "inline",
    ) -> None:
        now_ms = self.now_ms
        self._both(
            lambda step: _none(
                self.shard.subscribing.subscribe(
                    subscription, "client", max_backlog, timeout_ms, text, now_ms, step, payload
                )
            ),
            lambda: self.oracle.subscribe(subscription, max_backlog, timeout_ms, now_ms, text, payload),
        )

    def heard(self, subscription: str) -> None:
        self._both(
            lambda _: self.shard.note_heartbeat(subscription, self.now_ms),
            lambda: self.oracle.heard(subscription, self.now_ms),
        )

    def set_back(self) -> None:
        """The shard goes back with the clock, as a worker's does if that was set back by more than brokers differ."""
        assert not self.oracle.rates(), "what counts of a rate is not journaled"
        self._both(lambda _: self.shard.set_back(self.now_ms), lambda: self.oracle.set_back(self.now_ms))
        self.shard.note_arrivals_until(NEVER)

    def unsubscribe(self, subscription: str) -> None:
        self._both(
            lambda step: self.shard.unsubscribe(subscription, self.now_ms, step),
            lambda: self.oracle.unsubscribe(subscription, self.now_ms),
        )

    def pause(self, on: bool) -> None:
        step = self._open()
        (self.shard.pause if on else self.shard.resume)(self.now_ms, step)
        self.oracle.paused = on
        self.check()

    def purge(self, leased: bool = False, text: str = "", younger: int = 0) -> tuple[int, int]:
        """A purge; so many of the latest messages of each source are younger than it."""
        with self.selection(text), self._horizon(younger) as ends:
            removed, left = self._both(
                lambda step: tuple(sum(one.values()) for one in self.shard.purge(self.now_ms, step, leased, text)),
                lambda: self.oracle.purge(self.now_ms, leased, text, ends),
            )
        self.did["purge"] += removed > 0
        return removed, left

    def truncate(self, *bookmarks: Bookmark, handed_out: bool = False) -> None:
        """Kafka no longer has some records, and the shard comes to know."""
        self.lost.update(bookmarks)

        def tell(step: Step) -> None:
            for topic, partition, offset in bookmarks:
                self.shard.remove_truncated(topic, partition, [offset], self.now_ms, step, handed_out)

        self._both(tell, lambda: self.oracle.truncated(list(bookmarks), self.now_ms, handed_out))

    def log_begins(self, topic: str, begin_offset: int) -> None:
        """Kafka removes the beginning of a topic, and the shard comes to know, in as many steps as it takes."""
        self.lost |= {(topic, 0, record.offset) for record in self.topics[topic, 0] if record.offset < begin_offset}
        now_ms, more = self.now_ms, True

        def tell(step: Step) -> None:
            nonlocal more
            while more:
                more = not self.shard.truncate_below(topic, 0, begin_offset, now_ms, step)

        self._both(tell, lambda: self.oracle.log_begins(topic, begin_offset, now_ms))

    def peek(self, text: str = "", skip: int = 0, limit: int = 1_000) -> list[Bookmark]:
        with self.selection(text, MOST_PAGED):
            shown = [shown_row(one) for one in self.shard.peek(skip, limit, text)]
            every = list(self.shard.peek(0, 1 << 62, text))
            for state in {one.state_name for one in every} | {"held"}:
                found = [shown_row(one) for one in self.shard.peek(skip, limit, text, state=state)]
                assert found == [shown_row(one) for one in every if one.state_name == state][skip : skip + limit]
        assert shown == self.oracle.shown(text)[skip : skip + limit]
        return [bookmark for bookmark, *_ in shown]

    def deliver(self) -> dict[str, list[Sent]]:
        def until_done(step: Step) -> None:
            more, looks = True, 0
            while more:
                before = len(step.deliveries)
                more = self.shard.deliver(self.now_ms, step)
                handed = step.deliveries[before:]
                messages = sum(len(one.messages) for one in handed if not one.barrier)
                assert messages <= dispatching.STEP_MESSAGES, "a step that holds up the others"
                barriers = [one for one in handed if one.barrier]
                most = max(dispatching.BARRIERS_AT_ONCE, len({one.subscription for one in barriers}))
                assert len(barriers) <= most, "barriers that hold up the others"
                looks += 1
                assert looks < 1_000, "a delivery that is never done"
                self.judge(self.shard.unjudged)
            assert more is False
            assert not self.shard.unjudged

        self._both(until_done, lambda: self.oracle.deliver(self.now_ms))
        if self.settings.rate or self.settings.group_rate:
            frees_ms = self.oracle.frees_ms(self.now_ms)
            assert self.shard.next_due_ms() <= (NEVER if frees_ms is None else frees_ms)
        return by_subscription(self._last_sent)

    def unsent(self, *deliveries: tuple[str, Bookmark, int]) -> list[Gone]:
        """Take back deliveries that were never sent: subscription, message and delivery count of each."""
        unsent = [Unsent(name, *bookmark, count) for name, bookmark, count in deliveries]

        def take_back(step: Step) -> None:
            places = self.shard.handed_out.places_of_unsent(unsent)
            self.shard.handed_out.take_back_unsent(places, self.now_ms, step)
            self.did["unsent"] += len(places)

        self._both(take_back, lambda: self.oracle.unsent(list(deliveries), self.now_ms))
        return self._last_gone

    def advance(self, by_ms: int = 0) -> list[Gone]:
        self.now_ms += by_ms

        def until_done(step: Step) -> None:
            # As the runtime does it. What came back and left at once may leave its instant behind: one more look.
            self.shard.advance(self.now_ms, step)
            looks = 0
            while self.shard.next_due_ms() <= self.now_ms:
                looks += 1
                assert looks < 100, "a timer that is never done"
                self.shard.advance(self.now_ms, step)

        self._both(until_done, lambda: self.oracle.advance(self.now_ms))
        return self._last_gone

    def settle(
        self,
        action: str,
        subscription: str,
        *claims: Claim,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        row_filter: str = "",
    ) -> list[str]:
        """Settle on both; the results, bookmark by bookmark in the order of the claims."""
        step, now_ms = self._open(), self.now_ms
        if row_filter:
            self._judge_what_is_not_held(subscription, claims, row_filter)
        ends = {name: records[-1].offset + 1 for name, records in self.topics.items() if records}
        for topic, partition in self.shard.sources_named_ahead(claims) if action == "acknowledge" else []:
            self.shard.note_end(topic, partition, ends.get((topic, partition), 0))
        if action == "renew":
            outcomes, _ = self.shard.renew(subscription, claims, now_ms, step, lease_ms, row_filter)
        else:
            outcomes = self.shard.settle(SettleAction(action), subscription, claims, now_ms, step, delay_ms, row_filter)
        if row_filter:
            self.shard.matching.end_selection(row_filter)
            _check_borders(claims, outcomes)
        named = [
            (
                (claim.topic, claim.partition, offset),
                claim.delivery_count,
                claim.epoch,
                claim.first == claim.last and not claim.found,
            )
            for claim in claims
            for offset in range(claim.first, claim.last + 1)
        ]
        bodies = {(*name, one.offset): one.body for name, records in self.topics.items() for one in records}
        if row_filter:
            there = self.oracle.in_state("available", "leased", "delayed", "sent", "transferring")
            seen = {message.bookmark for message in (*there, *self.oracle.scheduled())}
            self.did["row_filter"] += any(
                one in seen and self.oracle.hides(one, subscription, (row_filter, bodies)) for one, *_ in named
            )
        expected = self.oracle.settle(
            action, subscription, named, now_ms, delay_ms, lease_ms, ends, (row_filter, bodies) if row_filter else None
        )
        actual = [
            ((one.topic, one.partition, offset), str(one.result))
            for one in outcomes
            for offset in range(one.first, one.last + 1)
        ]
        lenient = [
            (bookmark, "time_limit" if bookmark in self.forgotten and result == "already_settled" else result)
            for bookmark, result in actual
        ]
        assert lenient == expected, (lenient, expected)
        self._compare_outputs()
        self.check()
        return [result for _, result in actual]

    def _judge_what_is_not_held(self, subscription: str, claims: Sequence[Claim], row_filter: str) -> None:
        """Judge beforehand what the user does not hold, as the runtime does it."""
        self.shard.matching.begin_selection(row_filter)
        for places in self.shard.places_not_held(subscription, claims):
            self.judge(places)
        for topic, partition, offsets in self.shard.offsets_without_place(subscription, claims):
            there = self._records(topic, partition, offsets)
            self.shard.judge_bookmarks(row_filter, [(topic, partition, one) for one in there])

    def settle_by_filter(
        self, action: str, subscription: str, text: str, younger: int = 0, **options: int
    ) -> list[str]:
        with self.selection(text), self._horizon(younger) as ends:
            claims = self.shard.selection.selected(text, NOBODY)
            named = [(c.topic, c.partition, offset) for c in claims for offset in range(c.first, c.last + 1)]
            assert named == self.oracle.selected(text, ends, "")
            return self.settle(action, subscription, *claims, **options)


def _check_borders(claims: Sequence[Claim], outcomes: Sequence[Outcome]) -> None:
    """Check that no border is between equal results, unless one of both was named before (C16).

    Such a border would tell of a hidden message (X4).
    """
    for one, other in pairwise(outcomes):
        same = one[:2] == other[:2] and one.result is other.result and one.last + 1 == other.first
        about = [claim for claim in claims if claim[:2] == one[:2]]
        naming = [claim for claim in about if claim.first <= other.first and one.last <= claim.last]
        assert not same or len(naming) != 1 or not naming[0].first <= one.last < naming[0].last, outcomes


def _none(_: object) -> None:
    """What the oracle answers where there is nothing to say."""
