"""A queue shard beside its oracle, with the changelog that a crash leaves; every command is compared at once."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pytest

from lapse.core.expression import compile_filter
from lapse.core.generation import offset_of
from lapse.core.lifetime import NEVER
from lapse.core.queue import timer as timers
from lapse.core.queue.delivery import dispatch as dispatching
from lapse.core.queue.groups import group_choice, waiting_groups
from lapse.core.queue.inquiry.matching import MOST_PAGED, MOST_TRAVELLING, NO, UNKNOWN, YES
from lapse.core.queue.journal import packed_segment
from lapse.core.queue.journal import queue_journal as journals
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.removal import truncation
from lapse.core.queue.rewind.rewinding import RewindRequest
from lapse.core.queue.rewind.rewinds import Rewind
from lapse.core.queue.segments import segment as segments
from lapse.core.queue.segments.segment import NOBODY, State
from lapse.core.queue.segments.spill import Segments
from lapse.core.queue.segments.summary import SegmentSummary
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, Outcome, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Messages, Queued, Step
from lapse.core.queue.subscriptions.subscription import Payload
from lapse.core.queue.transfer.transfers import HandOver
from lapse.core.reason import Reason
from lapse.core.shard.retirement import Asker
from unit.core.queue.oracle import Bookmark, Ends, Gone, Oracle, Published, Sent, Told

STATES = {
    State.AVAILABLE: "available",
    State.LEASED: "leased",
    State.DELAYED: "delayed",
    State.SENT: "sent",
    State.TRANSFERRING: "transferring",
}
EVENTS = frozenset(
    (
        "acknowledged cancelled renewed lease_returned delivered_at_most_once barrier_released repeated scheduled held "
        "transferring transferred transfer_cancelled transfer_confirmed rewound"
    ).split()
)
IDLE_MS = 1_000
"""What `World.idle` takes for the idle time of a temporary queue."""


@contextmanager
def small(size: int = 5, ring: int = 4, at_once: int = 3) -> Iterator[None]:
    """Segments of a few places, short steps and a short ring, so that what is rare happens all the time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("lapse.core.queue.") and hasattr(module, "SIZE"):
                patch.setattr(module, "SIZE", size)
        patch.setattr(journals, "RING", ring)
        patch.setattr(journals, "_AHEAD", 1)
        patch.setattr(journals, "_MOVED", 1)
        patch.setattr(dispatching, "JUDGED_AT_ONCE", at_once)
        patch.setattr(group_choice, "LOOKED_AT_ONCE", at_once)
        patch.setattr(waiting_groups, "_LOADED_AT_ONCE", at_once)
        for module in (dispatching, timers):
            patch.setattr(module, "STEP_MESSAGES", at_once)
        patch.setattr(truncation, "AT_ONCE", 2)
        yield


@dataclass
class Log:
    """A changelog partition: who wrote, key, value; a claim has no key."""

    records: list[tuple[int, int, bytes, bytes | None]] = field(default_factory=list)
    claims: dict[int, int] = field(default_factory=dict)
    end: int = 0

    def claim(self, epoch: int) -> None:
        self.claims[epoch] = self.end
        self.append(epoch, [(b"", b"")])

    def append(self, epoch: int, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in items:
            self.records.append((self.end, epoch, key, value))
            self.end += 1

    def latest(self) -> dict[bytes, bytes]:
        """What counts: not what a lower epoch writes behind a higher one's claim. Steps stand in a ring."""
        current, latest = 0, dict[bytes, bytes]()
        for _, epoch, key, value in self.records:
            if epoch < current:
                continue
            current = epoch
            latest.pop(key, None)
            if key and value is not None:
                latest[key] = value
        assert all(0 <= int.from_bytes(key[9:]) < journals.RING for key in latest if key[:1] == b"d")
        return latest

    def compact(self, below: int, tombstones_too: bool) -> None:
        """Keep the last record of each key, whoever wrote it; the broker knows nothing of epochs."""
        last = {key: at for at, _, key, _ in self.records if at < below}
        self.records = [
            (at, epoch, key, value)
            for at, epoch, key, value in self.records
            if not key or at >= below or (last[key] == at and not (tombstones_too and value is None))
        ]


class World:
    """One shard, its oracle, its changelog and its underlying topics.

    Args:
        settings: the queue's.
        room: bytes of memory for segments, the others are spilled; None = all are in memory, or as the class says.
    """

    room: int | None = None

    def __init__(self, settings: QueueSettings, room: int | None = None) -> None:
        self.settings = settings
        if room is not None:
            self.room = room
        self.now_ms = 1_000
        self.log = Log()
        self.epoch = 1
        self.oracle = Oracle(settings)
        self.shard = QueueShard(settings, QueueState(self._segments()))
        self.journal = QueueJournal(self.shard.state, self.epoch)
        self.step: Step | None = None
        self.topics: dict[tuple[str, int], list[Published]] = defaultdict(list)
        self.forgotten: set[Bookmark] = set()
        self.lost: set[Bookmark] = set()
        self._know_sources()
        self.refusing = 0
        self._letters = 0
        self.did = Counter[str]()  # what has really happened: why messages left, and what took some
        self.stalled: tuple[int, QueueShard, QueueJournal, Step | None] | None = None
        self.log.claim(1)
        self.log.append(1, self.journal.begin())
        self.committed = pickle.dumps(self.oracle, pickle.HIGHEST_PROTOCOL)
        self.committed_dump = dump(self.shard.state)
        self.durably_released: list[tuple[Bookmark, list[str]]] = []

    def _know_sources(self) -> None:
        """With a target depth, acknowledgments can be about sources of which nothing was read yet."""
        if self.settings.target_depth is not None:
            for topic in ("orders", "direct"):
                self.shard.state.sources.number(topic, 0)
                self.oracle.next_offset.setdefault((topic, 0), 0)

    def _segments(self) -> Segments:
        return Segments() if self.room is None else Segments({}, self.room)

    # Commands, on both

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

    @contextmanager
    def _horizon(self, younger: int) -> Iterator[Ends]:
        """The horizon of a sweep, before the latest messages of each source that the shard has read."""
        current = {(one.topic, one.partition): one.next_offset - younger for one in self.shard.state.sources.current()}
        ends = current if younger else {}
        self.shard.horizon.ends = {self.shard.state.sources.number(*name): end for name, end in ends.items()}
        yield ends
        self.shard.horizon.ends = {}

    def truncate(self, *bookmarks: Bookmark, handed_out: bool = False) -> None:
        """Kafka no longer has some records, and the shard comes to know."""
        self.lost.update(bookmarks)

        def tell(step: Step) -> None:
            for topic, partition, offset in bookmarks:
                self.shard.remove_truncated(topic, partition, [offset], self.now_ms, step, handed_out)

        self._both(tell, lambda: self.oracle.truncated(list(bookmarks), self.now_ms, handed_out))

    def letter_written(self, bookmark: Bookmark) -> None:
        """The letter of a dying message is safe at last."""
        refusing, self.refusing = self.refusing, 0
        number = self.shard.state.sources.number(*bookmark[:2])
        self._both(
            lambda step: self.shard.letter_written(number, bookmark[2], step),
            lambda: self.oracle.letter_written(bookmark),
        )
        self.refusing = refusing

    def _refuse(self) -> None:
        """The broker refuses every so manieth letter."""
        for removal in [one for one in self.step.removals if one.letter]:
            refused = {}
            for at, row in enumerate(rows(removal.messages)):
                self._letters += 1
                if self.refusing and self._letters % self.refusing == 0:
                    refused[at] = "too large"
                    reasons = tuple(map(str, removal.reasons))
                    bookmark, deadline_ms, *counts = row
                    self.oracle.keep_pending(Gone(bookmark, reasons, True, deadline_ms, removal.at_ms, *counts))
            if refused:
                told, before = len(self.step.events), len(removal.messages)
                left = removal.messages
                names = self.shard.keep_refused_letters(removal, refused, self.step)
                kept = [int(left.offsets[at]) for at in refused]
                assert [offset for _, offset in names] == kept
                (event,) = self.step.events[told:]
                assert (event.kind, event.messages.offsets.tolist()) == ("dying", kept)
                there = any(one is removal for one in self.step.removals)
                assert there == (len(refused) < before)
                assert not there or len(removal.messages) == before - len(refused)

    def log_begins(self, topic: str, begin_offset: int) -> None:
        """Kafka removes the beginning of a topic, and the shard comes to know, in as many steps as it takes."""
        self.lost |= {(topic, 0, record.offset) for record in self.topics[topic, 0] if record.offset < begin_offset}
        now_ms, more = self.now_ms, True

        def tell(step: Step) -> None:
            nonlocal more
            while more:
                more = not self.shard.truncate_below(topic, 0, begin_offset, now_ms, step)

        self._both(tell, lambda: self.oracle.log_begins(topic, begin_offset, now_ms))

    def replace(self, topic: str, crashes: Iterable[bool] = ()) -> None:
        """Delete a topic and create it again; the shard is taken over, and perhaps again before it is done."""
        self.topics[topic, 0] = []
        self.lost = {bookmark for bookmark in self.lost if bookmark[0] != topic}
        self.crash()
        for bookmark in [one for one in self.oracle.pending if one[0] == topic]:
            self.letter_written(bookmark)
        done, gone = False, Counter[Gone]()
        falls = iter(crashes)
        while not done:
            step = self._open()
            done = self.shard.replace_topic(topic, self.epoch, self.now_ms, step)
            gone.update(all_gone(step, self._heard))
            if next(falls, False) and not done:
                self.commit()
                self._reopen()
            else:
                step.removals.clear()
        self.oracle.replaced(topic, self.epoch, self.now_ms)
        assert gone == Counter(self.oracle.removals)
        self.did.update(reason for one in gone for reason in one.reasons)
        self.oracle.removals = []
        self.forgotten = {bookmark for bookmark in self.forgotten if bookmark[0] != topic}
        self.check()
        self.commit()

    def _reopen(self) -> None:
        """A crash in the middle of what the oracle does in one go: the shard alone is taken over."""
        state, self.journal = self._restored()
        self.log.append(self.epoch, self.journal.begin())
        self.shard = QueueShard(self.settings, state)
        self._begin_topics()
        step = self._open()
        self.shard.take_over(self.now_ms, step)
        self.commit()

    def _begin_topics(self) -> None:
        for topic, epoch in self.oracle.since.items():
            self.shard.note_topic_epoch(topic, 0, epoch)

    @contextmanager
    def selection(self, text: str, most_kept: int = 0) -> Iterator[None]:
        """A filter under selection, every message judged, as the runtime does it."""
        if not text:
            yield
            return
        self.shard.matching.begin_selection(text, most_kept)
        while places := self.shard.places_to_judge(text, 2):
            self.judge(places)
        for topic, partition, offsets in self.shard.scheduled_to_judge(text):
            there = self._records(topic, partition, offsets)
            self.shard.judge_bookmarks(text, [(topic, partition, one) for one in there])
        yield
        self.shard.matching.end_selection(text)

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
                handed = sum(len(one.messages) for one in step.deliveries if not one.barrier)
                more = self.shard.deliver(self.now_ms, step)
                handed = sum(len(one.messages) for one in step.deliveries if not one.barrier) - handed
                assert handed <= dispatching.STEP_MESSAGES, "a step that holds up the others"
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

    def _records(self, topic: str, partition: int, positions: Iterable[int]) -> list[Published]:
        """The records of some messages, each under its position."""
        by_offset = {record.offset: record for record in self.topics[topic, partition]}
        there = [(position, by_offset.get(offset_of(position))) for position in positions]
        return [replace(record, offset=position) for position, record in there if record is not None]

    def judge(self, places: list[int]) -> None:
        """Read payloads back for the filters."""
        told = []
        for place in places:
            topic, partition, offset = self.shard.bookmark_of(place)
            (record,) = self._records(topic, partition, [offset])
            told.append((place, topic, partition, record))
        self.shard.judge(told)

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
        if row_filter:  # what the user does not hold is judged beforehand, as the runtime does it
            self.shard.matching.begin_selection(row_filter)
            for places in self.shard.places_not_held(subscription, claims):
                self.judge(places)
            for topic, partition, offsets in self.shard.offsets_without_place(subscription, claims):
                there = self._records(topic, partition, offsets)
                self.shard.judge_bookmarks(row_filter, [(topic, partition, one) for one in there])
        ends = {name: records[-1].offset + 1 for name, records in self.topics.items() if records}
        for topic, partition in self.shard.sources_named_ahead(claims) if action == "acknowledge" else []:
            self.shard.note_end(topic, partition, ends.get((topic, partition), 0))
        if action == "renew":
            outcomes, _ = self.shard.renew(subscription, claims, now_ms, step, lease_ms, row_filter)
        else:
            outcomes = self.shard.settle(SettleAction(action), subscription, claims, now_ms, step, delay_ms, row_filter)
        if row_filter:
            self.shard.matching.end_selection(row_filter)
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

    def settle_by_filter(
        self, action: str, subscription: str, text: str, younger: int = 0, **options: int
    ) -> list[str]:
        with self.selection(text), self._horizon(younger) as ends:
            claims = self.shard.selected(text, NOBODY)
            named = [(c.topic, c.partition, offset) for c in claims for offset in range(c.first, c.last + 1)]
            assert named == self.oracle.selected(text, ends, "")
            return self.settle(action, subscription, *claims, **options)

    # Bringing back what has left (Q22)

    def rewind(
        self,
        *topics: str,
        first: int = 0,
        kept: bool = False,
        handed_over: bool = False,
        text: str = "",
        dry_run: bool = False,
        part: int = 1_000,
        crashes: Iterable[bool] = (),
        name: str = "back",
    ) -> int:
        """Bring back what has left, some records at a time; perhaps the shard is taken over between two of them."""
        falls = iter(crashes)
        if crashes:
            self.commit()
            self.crash()
        there = {
            source: [one for one in records if (*source, one.offset) not in self.lost]
            for source, records in self.topics.items()
        }
        numbers = {topic: self.shard.state.sources.find(topic, 0) for topic in topics}
        firsts = {number: first for number in numbers.values() if number is not None}
        step, matches = self._open(), compile_filter(text) if text else None
        request = RewindRequest(name, self.now_ms, 7, firsts, text, kept, handed_over, dry_run)
        under_way = self.shard.rewinding.begin(request, step)
        self._come_by(under_way, there)
        while not under_way.done:
            runs, cursors = self._next_part(under_way, there, part)
            self.shard.rewinding.bring_back_part(under_way, runs, cursors, matches, step, dry_run=dry_run)
            if next(falls, False) and not under_way.done and not dry_run:
                assert self.shard.room() == 0, "what arrives meanwhile stands behind all of it"
                self.commit()
                self._reopen()
                under_way = self.shard.state.rewinds.under_way
                assert under_way is not None
                self.shard.rewinding.resume()
                self._come_by(under_way, there)
                step = self._open()
        wanted = dict.fromkeys(topics, first)
        count = self.oracle.rewind(
            wanted, there, self.now_ms, kept=kept, handed_over=handed_over, text=text, dry_run=dry_run
        )
        assert under_way.counts["rewound"] == count
        self.did["rewind"] += bool(count) and not dry_run
        if crashes:  # what was told before the last crash was told in other steps
            self.oracle.events = []
            step.events.clear()
            self._heard = 0
        self._compare_outputs()
        self.check()
        if crashes:
            self.commit()  # some parts are durable, and the oracle knows the whole only
        return count

    def _come_by(self, under_way: Rewind, there: dict[tuple[str, int], list[Published]]) -> None:
        for number, span in under_way.spans.items():
            source = self.shard.state.sources[number]
            before = [one for one in there[source.topic, source.partition] if one.offset < span.cursor]
            if before:
                self.shard.rewinding.remember(number, before)

    def _next_part(
        self, under_way: Rewind, there: dict[tuple[str, int], list[Published]], part: int
    ) -> tuple[list[tuple[int, list[Published]]], dict[int, int]]:
        """The next records of all sources: that whose first one is the oldest comes first."""
        waiting = {
            number: [
                one for one in there[self.shard.state.sources[number].topic, 0] if span.cursor <= one.offset < span.stop
            ]
            for number, span in under_way.spans.items()
        }
        runs: list[tuple[int, list[Published]]] = []
        while part and any(waiting.values()):
            part -= 1

            def turn(number: int) -> tuple[int, str, int]:
                source = self.shard.state.sources[number]
                return waiting[number][0].timestamp, source.topic, source.partition

            number = min((one for one in waiting if waiting[one]), key=turn)
            record = waiting[number].pop(0)
            if runs and runs[-1][0] == number:
                runs[-1][1].append(record)
            else:
                runs.append((number, [record]))
        cursors = {
            number: waiting[number][0].offset if waiting[number] else span.stop
            for number, span in under_way.spans.items()
        }
        return runs, cursors

    # Handing over to, and taking over from, another deployment (Q17)

    def hold(self, transfer: str, *claims: Claim, most: int = 100) -> bool:
        """Hold messages for a transfer on both; whether there are more."""
        step, now_ms = self._open(), self.now_ms
        outcomes, more = self.shard.transfer_source.hold(transfer, "there", claims, most, now_ms, step)
        expected, more_expected = self.oracle.hold(transfer, [_bookmarks(claim) for claim in claims], most, now_ms)
        actual = dict(_singly(outcomes))
        assert more == more_expected
        assert more or actual.keys() == expected.keys()
        for bookmark, result in actual.items():
            self._agree(bookmark, result, expected[bookmark])
        self._compare_outputs()
        self.check()
        return more

    def spare(self, most: int, least_life_ms: int, came: bool, text: str = "") -> list[Bookmark]:
        """What nobody takes here now; of what no filter was tried on yet, nobody knows (Q26, C73, C74)."""
        source, subscriptions = self.shard.transfer_source.spare, self.shard.state.subscriptions.values()
        expected = self.oracle.spare(least_life_ms, self.now_ms, came, text)
        at = {}
        for place in range(self.shard.state.next_place):
            index, slot = divmod(place, segments.SIZE)
            at[self.shard.bookmark_of(place)] = index, np.array([slot])
        if text:  # the payloads are read as far as that takes
            self.shard.matching.begin_selection(text, MOST_TRAVELLING)
            while places := source.places_to_judge(most, least_life_ms, self.now_ms, came, text, 2):
                self.judge(places)
        else:
            for other in {one.filter for one in subscriptions if one.filter and (came or one.space)}:
                codes = {bookmark: self.shard.matching.codes(other, *at[bookmark]) for bookmark in expected}
                expected = [bookmark for bookmark in expected if codes[bookmark] != UNKNOWN]
        claims, unseen = source.claims(most, least_life_ms, self.now_ms, came, text)
        if text:
            self.shard.matching.end_selection(text)
        assert not unseen
        found = [bookmark for one in claims for bookmark in _bookmarks(one)]
        assert len(found) == len(set(found))
        assert set(found) == set(expected[:most])
        assert source.unfiltered_demand() == self.oracle.wanted()

        def not_matched(other: str, bookmark: Bookmark) -> bool:
            code = int(self.shard.matching.codes(other, *at[bookmark])[0])
            assert code == UNKNOWN or (code == YES) is self.oracle.matches(other, bookmark)
            return code == NO

        assert {one.filter: one.wanted for one in source.demands()} == self.oracle.demands(not_matched)
        self.check()
        return found

    def confirm(self, transfer: str, *given: HandOver) -> list[str]:
        step, now_ms = self._open(), self.now_ms
        outcomes = self.shard.transfer_source.confirm(transfer, given, now_ms, step)
        pairs = [pair for one in given for pair in _pairs(one)]
        expected = self.oracle.confirm(transfer, pairs, now_ms)
        actual = dict(_singly(outcomes))
        for bookmark, result in expected:
            self._agree(bookmark, actual[bookmark], result)
        self._compare_outputs()
        self.check()
        return [result for _, result in expected]

    def finish_transfer(self, transfer: str) -> None:
        self._both(lambda step: self.shard.transfer_source.finish(transfer, step), lambda: self.oracle.finish(transfer))

    def hand_back(self, transfer: str) -> int:
        return self._both(
            lambda step: self.shard.transfer_source.give_back(transfer, self.now_ms, step),
            lambda: self.oracle.hand_back(transfer, self.now_ms),
        )

    def accept(self, transfer: str, *claims: Claim) -> list[str]:
        step, now_ms = self._open(), self.now_ms
        outcomes = _singly(self.shard.transfer_target.accept(transfer, claims, now_ms, step))
        expected = self.oracle.accept(transfer, [b for claim in claims for b in _bookmarks(claim)], now_ms)
        assert outcomes == expected
        self._compare_outputs()
        self.check()
        return [result for _, result in expected]

    def discard(self, transfer: str) -> int:
        return self._both(
            lambda step: self.shard.transfer_target.discard(transfer, self.now_ms, step),
            lambda: self.oracle.discard(transfer, self.now_ms),
        )

    def _agree(self, bookmark: Bookmark, actual: str, expected: str) -> None:
        forgotten = bookmark in self.forgotten and actual == "already_settled" and expected == "time_limit"
        assert forgotten or actual == expected, (bookmark, actual, expected)

    # Durability

    def commit(self) -> None:
        """Make the open step durable, in one batch."""
        if self.step is not None:
            self.log.append(self.epoch, self.journal.encode(self.step))
            assert not self.shard.state.dropped, "a leak"
            self._clear()
            self.durably_released, self.oracle.released = self.oracle.released, []
            self.step = None
            self.committed = pickle.dumps(self.oracle, pickle.HIGHEST_PROTOCOL)
            self.committed_dump = dump(self.shard.state)

    def crash(
        self,
        settings: QueueSettings | None = None,
        torn: Iterable[int] = (),
        stall: bool = False,
        compact: bool = False,
    ) -> None:
        """Lose what is not durable, and take the shard over, perhaps after others who did not get to the end of it."""
        self.did["take_over"] += 1
        if stall:
            self.stalled = (self.epoch, self.shard, self.journal, self.step)
        old_enough = self._old_enough()
        for cut in torn:
            _, journal = self._restored()
            items = journal.begin()
            self.log.append(self.epoch, items[: cut % (len(items) + 1)])
            if compact:
                self.log.compact(old_enough, False)
        state, self.journal = self._restored()
        assert dump(state) == self.committed_dump, "the restored state is not the one that was durable"
        self.log.append(self.epoch, self.journal.begin())
        self.settings = settings or self.settings
        self.shard = QueueShard(self.settings, state)
        self.oracle = pickle.loads(self.committed)
        for subscriber in self.oracle.subscribers.values():
            # Not durable: a take-over counts anew, unless the clock was set back behind what is (C5).
            subscriber.last_seen_ms = state.subscriptions[subscriber.id].last_seen_ms
        self.oracle.settings = self.settings
        for subscriber in self.oracle.subscribers.values():
            # When a subscription was heard of is not durable, and the clock may have been set back since.
            subscriber.last_seen_ms = state.subscriptions[subscriber.id].last_seen_ms
        self._begin_topics()
        self.forgotten |= {b for b, message in self.oracle.messages.items() if message.state == "expired"}
        self.step = None
        self._know_sources()
        self._repeat_barriers()
        self._both(lambda step: self.shard.take_over(self.now_ms, step), lambda: self.oracle.take_over(self.now_ms))
        self.commit()

    def end(self, force: bool) -> None:
        """What a deletion would be answered now, and take along; the shard itself goes on.

        A shard that is restored from the log is asked, so the questions and the decision pass through the journal, too.
        """
        self.commit()
        state = restore(self.log.latest().items()).state
        shard, oracle, step = QueueShard(self.settings, state), copy.deepcopy(self.oracle), Step()
        shard.take_over(self.now_ms, step)
        oracle.take_over(self.now_ms)
        shard.advance(self.now_ms, step)
        while shard.next_due_ms() <= self.now_ms:  # a bounded amount at a time; the runtime does the same
            shard.advance(self.now_ms, step)
        oracle.advance(self.now_ms)
        placed = oracle.in_state("available", "leased", "delayed", "transferring")
        there = {m.bookmark: m for m in (*placed, *oracle.scheduled())}
        leased = Counter(m.holder for m in oracle.in_state("leased"))
        step = converse(shard, self.now_ms, lambda step: shard.agreement.delete(Asker("me"), force, self.now_ms, step))
        (verdict,) = step.verdicts
        self.did["deletion"] += bool(there)
        left = sum(map(len, oracle.transfers.values()))
        states = [m.state for m in (*placed, *oracle.scheduled())]
        under_way = {
            "transferring": states.count("transferring") + states.count("held") + left,
            "unconfirmed": states.count("unconfirmed"),
        }
        assert dict(verdict.counts) == {
            **{name: len(oracle.in_state(name)) for name in ("leased", "available", "delayed")},
            "scheduled": sum(m.state == "scheduled" for m in oracle.scheduled()),
            "dying": len(oracle.pending),
            **{name: count for name, count in under_way.items() if count},
            **({"held": states.count("beyond")} if "beyond" in states else {}),
        }
        error = "" if verdict.refusal is None else verdict.refusal.text
        unfinished = any(under_way.values())  # not even force takes that along (C77)
        assert bool(error) is (unfinished or (bool(there or oracle.pending) and not force))
        assert ("Unfinished is transfer" in error) is unfinished
        if error:
            assert all(f"{count} by {name} (client) until" in error for name, count in leased.items())
            assert shard.state.ending.retirement is None
            assert not step.removals
            return
        while shard.next_due_ms() <= self.now_ms:
            shard.advance(self.now_ms, step)
        gone = [(bookmark, one.reasons) for one in step.removals for bookmark, *_ in rows(one.messages)]
        assert Counter(bookmark for bookmark, _ in gone) == Counter(there.keys())
        assert all(Reason.PURGED in reasons for _, reasons in gone)
        assert all((Reason.TIME_LIMIT in reasons) is oracle.late(there[b], self.now_ms) for b, reasons in gone)
        assert {one.letter for one in step.removals} <= {bool(self.settings.dead_letter_topic), False}
        assert shard.depth()["depth"] == shard.depth()["scheduled"] == shard.room() == 0
        assert not shard.deliver(self.now_ms, step)

    def idle(self) -> None:
        """What would become of the queue if it were a temporary one that nobody uses from now on (Q18, C50, C77).

        A shard that is restored from the log is asked; the shard itself goes on.
        """
        self.commit()
        settings = replace(self.settings, idle_ms=IDLE_MS, configured="temporary")
        shard, oracle, step = (
            QueueShard(settings, restore(self.log.latest().items()).state),
            copy.deepcopy(self.oracle),
            Step(),
        )
        shard.take_over(self.now_ms, step)
        oracle.take_over(self.now_ms)
        shard.advance(self.now_ms, step)
        while min(shard.next_due_ms(), shard.activity.idle_at_ms()) <= self.now_ms:
            shard.advance(self.now_ms, step)
        oracle.advance(self.now_ms)
        shard.use(self.now_ms, step)
        waits = oracle.subscribers or oracle.scheduled() or oracle.in_state("delayed", "transferring")
        idle_at_ms = NEVER if waits or any(oracle.transfers.values()) else self.now_ms + IDLE_MS
        self.did["temporary"] += 1
        assert shard.activity.idle_at_ms() == idle_at_ms
        due_ms = oracle.next_due_ms()
        if idle_at_ms == NEVER or (due_ms is not None and due_ms <= idle_at_ms):
            return  # what leaves meanwhile is use
        shard.advance(idle_at_ms - 1, step)
        assert shard.state.ending.retirement is None, "too early"
        step = converse(shard, idle_at_ms, lambda step: shard.advance(idle_at_ms, step))
        assert shard.agreement.retired
        self.did["auto_deleted"] += 1
        while shard.next_due_ms() <= idle_at_ms:
            shard.advance(idle_at_ms, step)
        there = [message.bookmark for message in oracle.in_state("available")]
        gone = [(bookmark, one.reasons) for one in step.removals for bookmark, *_ in rows(one.messages)]
        assert Counter(bookmark for bookmark, _ in gone) == Counter(there)
        assert all(Reason.AUTO_DELETED in reasons for _, reasons in gone)
        assert not any(one.letter for one in step.removals), "only where the queue asks for it"

    def _repeat_barriers(self) -> None:
        """What the last durable step released may not have been sent: it is sent once more (C35)."""
        step = Step()
        for change in self.released:
            self.shard.repeat_barrier(change, step)
        sent = [(one.subscription, bookmark) for one in step.deliveries for bookmark, *_ in rows(one.messages)]
        assert all(one.barrier and one.until_ms == 0 for one in step.deliveries)
        assert sent == [
            (name, bookmark)
            for bookmark, names in self.durably_released
            for name in names
            if name in self.oracle.subscribers
        ]

    def _restored(self) -> tuple[QueueState, QueueJournal]:
        self.epoch += 1
        self.log.claim(self.epoch)
        restored = restore(self.log.latest().items(), self._segments())
        self.released = restored.released
        assert not restored.state.as_of, "of recovery only"
        return restored.state, QueueJournal(restored.state, self.epoch, restored)

    def zombie(self, by_ms: int, leave_all: bool) -> None:
        """An owner that was stalled wakes up and writes on, for it does not know that its current is over."""
        if self.stalled is None:
            return
        epoch, shard, journal, step = self.stalled
        self.stalled = (epoch, shard, journal, None)
        if step is None:
            self.log.append(epoch, journal.maintain())
            step = Step()
        shard.advance(self.now_ms + by_ms, step)
        shard.deliver(self.now_ms + by_ms, step)
        if leave_all:
            shard.purge(self.now_ms, step, leased=True)
        self.log.append(epoch, journal.encode(step))

    def compact(self, tombstones_too: bool) -> None:
        """Compact the changelog, as far as `min.compaction.lag.ms` lets the broker."""
        self.log.compact(self._old_enough(), tombstones_too)

    def _old_enough(self) -> int:
        """All is old, but for what was written since segments were inherited that still stand under older epochs."""
        oldest = min((int.from_bytes(key[1:9]) for key in self.journal._whole_at.values()), default=self.epoch)
        return min((at for epoch, at in self.log.claims.items() if epoch > oldest), default=self.log.end)

    # Comparing

    def _open(self) -> Step:
        if self.step is None:
            self.log.append(self.epoch, self.journal.maintain())
            self.step = Step()
            self._heard = 0
        return self.step

    def _both(self, shard, oracle):
        step = self._open()
        actual, expected = shard(step), oracle()
        assert actual == expected
        self._compare_outputs()
        self.check()
        return expected

    def _compare_outputs(self) -> None:
        step = self.step
        self._last_sent, self._last_gone = self.oracle.deliveries, self.oracle.removals
        sent = [
            Sent(one.subscription, *row, one.until_ms, one.barrier, one.payload)
            for one in step.deliveries
            for row in rows(one.messages)
        ]
        gone = all_gone(step, self._heard)
        assert by_subscription(sent) == by_subscription(self._last_sent)
        assert Counter(gone) == Counter(self._last_gone)
        self.did.update(reason for one in gone for reason in one.reasons)
        told = [
            Told(one.kind, bookmark, one.subscription)
            for one in step.events[self._heard :]
            if one.messages and one.kind in EVENTS
            for bookmark, *_ in rows(one.messages)
        ]
        assert Counter(told) == Counter(self.oracle.events)
        self._refuse()
        self._clear()

    def _clear(self) -> None:
        self.step.deliveries.clear()
        self.step.removals.clear()
        self._heard = len(self.step.events)
        self.oracle.deliveries, self.oracle.removals, self.oracle.events = [], [], []

    def check(self) -> None:
        """The whole state, message by message, and every count that is kept beside it."""
        state, oracle = self.shard.state, self.oracle
        numbers = {subscriber.number: subscriber.id for subscriber in oracle.subscribers.values()}
        live = []
        if self.room is not None:
            assert state.segments._loaded.keys() <= state.segments._used.keys() | state.segments._weights.keys()
            assert not state.segments._loaded.keys() & state.segments._seen.keys()
            assert state.segments._weight == sum(state.segments._weights.values())
            for index, summary in state.segments._summaries.items():
                segment = state.segments.look(index)
                assert SegmentSummary.from_segment(segment) == summary
                assert packed_segment.encode(segment) == bytes(state.segments.encoded(index))
        for index in sorted(state.segments):
            segment = state.segments.look(index)
            assert not segment.is_droppable
            column = segment.state[: segment.used]
            assert segment.available == np.count_nonzero(column == State.AVAILABLE)
            held = np.flatnonzero(_LIVE[column]).tolist()
            assert segment.held == len(held)
            for slot in held:
                run = segment.run_at(slot)
                of = state.sources[run.source]
                name = STATES[State(int(column[slot]))]
                deadline_ms, holder, until_ms = segment.deadline_of(slot), "", 0
                if name in ("leased", "sent"):
                    holder = numbers[int(segment.holder[slot])]
                if name == "transferring":
                    holder = state.transfers.name(int(segment.holder[slot]))
                if name in ("leased", "delayed", "transferring"):
                    until_ms = int(segment.until_ms[slot])
                    assert segment.min_until_ms <= until_ms or name == "transferring"
                if name in ("available", "delayed", "transferring"):
                    assert segment.min_deadline_ms <= deadline_ms
                bookmark = (of.topic, of.partition, run.offset + slot - run.slot)
                live.append(
                    (
                        bookmark,
                        name,
                        None if deadline_ms == NEVER else deadline_ms,
                        holder,
                        until_ms,
                        int(segment.deliveries[slot]),
                        segment.cancels_of(slot),
                    )
                )
                pieces = list(of.find(bookmark[2], bookmark[2]))
                assert [piece.place for piece in pieces] == [segment.base + slot]
            assert index == segment.index
        assert live == [
            (
                m.bookmark,
                m.state,
                m.deadline_ms,
                m.holder if m.state in ("leased", "sent") else m.transfer,
                m.until_ms if m.state in ("leased", "delayed", "transferring") else 0,
                m.deliveries,
                m.cancels,
            )
            for m in oracle.in_state(*STATES.values())
        ]
        assert {
            ((state.sources[number].topic, state.sources[number].partition, offset), one.at_ms)
            + ((one.transfer, one.then_ms, one.held) if one.transfer else ("", 0, False))
            + (one.ready,)
            for (number, offset), one in state.scheduled.items()
        } == {
            (m.bookmark, m.at_ms, m.transfer, m.then_ms if m.transfer else 0, m.state == "held", m.state == "beyond")
            for m in oracle.scheduled()
        }
        told = {one.id: [pair for over in one.confirmed for pair in _pairs(over)] for one in state.transfers}
        assert told == oracle.transfers
        kept = {"elsewhere": set(), "never": set()}
        for (number, _), departed in state.rewinds.departed.items():
            of = state.sources[number]
            if state.sources.find(of.topic, of.partition) == number:
                for why, ranges in (("elsewhere", departed.elsewhere), ("never", departed.never)):
                    kept[why] |= {(of.topic, of.partition, at) for low, high in ranges for at in range(low, high + 1)}
        assert kept == {"elsewhere": oracle.elsewhere, "never": oracle.never}
        assert [
            (s.id, s.number, s.max_backlog, s.outstanding, s.last_seen_ms, s.filter)
            for s in state.subscriptions.values()
        ] == [
            (s.id, s.number, s.max_backlog, oracle.outstanding(s.id), s.last_seen_ms, s.filter)
            for s in oracle.subscribers.values()
        ]
        assert state.paused == oracle.paused
        assert oracle.depth().items() <= self.shard.depth().items()
        assert {(s.topic, s.partition): s.next_offset for s in state.sources} == oracle.next_offset
        remembered = {
            (state.sources[number].topic, state.sources[number].partition, o) for number, o in state.remembered
        }
        assert remembered == oracle.remembered
        assert {
            (state.sources[number].topic, state.sources[number].partition, offset): (
                tuple(map(str, one.reasons)),
                None if one.deadline_ms == NEVER else one.deadline_ms,
                one.at_ms,
                one.deliveries,
                one.cancels,
            )
            for (number, offset), one in state.pending.items()
        } == {
            bookmark: (gone.reasons, gone.deadline_ms, gone.at_ms, gone.deliveries, gone.cancels)
            for bookmark, gone in oracle.pending.items()
        }
        there = oracle.in_state(*STATES.values())
        first = state.first_held()
        assert (None if first is None else self.shard.bookmark_of(first)) == (there[0].bookmark if there else None)
        for _, columns in self.shard.matching._filters.values():
            assert columns.keys() <= state.segments.keys(), "a leak"
        for source in state.sources:
            standings = [*source._standings, *source._rewound]
            assert all(one.place // segments.SIZE in state.segments for one in standings), "a leak"
        due_ms = oracle.next_due_ms()
        assert self.shard.next_due_ms() <= (NEVER if due_ms is None else due_ms)


def converse(shard: QueueShard, now_ms: int, begin: Callable[[Step], object]) -> Step:
    """Do something that makes a shard talk to itself, and hear it out; what all of that caused."""
    step = Step()
    begin(step)
    while step.shard_messages:
        shard.agreement.receive(step.shard_messages.pop(0), now_ms, step)
    return step


def _bookmarks(claim: Claim) -> list[Bookmark]:
    return [(claim.topic, claim.partition, offset) for offset in range(claim.first, claim.last + 1)]


def _singly(outcomes: Iterable[Outcome]) -> list[tuple[Bookmark, str]]:
    outcomes = list(outcomes)
    assert all(one.first <= one.last for one in outcomes), "an answer about nothing"
    return [
        ((one.topic, one.partition, offset), str(one.result))
        for one in outcomes
        for offset in range(one.first, one.last + 1)
    ]


def _pairs(one: HandOver) -> list[tuple[Bookmark, Bookmark]]:
    return [
        ((one.topic, one.partition, one.first + n), (one.to_topic, one.to_partition, one.to_first + n))
        for n in range(one.count)
    ]


def _none(_: object) -> None:
    """What the oracle answers where there is nothing to say."""


def published(offset: int, letter: bool = False, **said) -> Published:
    """A record whose headers say what the keywords say; of a letter they say what was (C54)."""
    record = Published(offset=offset, **said)
    record.value = json.dumps(record.body).encode()
    names = ((record.ttl_ms, "ttl"), (record.expires_at_ms, "expires-at"), (record.enqueue_at_ms, "enqueue-at"))
    record.headers = [("trace", b"1")] if offset % 3 == 0 else []
    record.headers += [(f"lapse-{name}-ms", b"%d" % value) for value, name in names if value is not None]
    if record.broken:
        record.headers.append(("lapse-ttl-ms", b"soon"))
    if record.message_id:
        record.headers.append(("lapse-message-id", record.message_id))
    if record.retry is not None:
        record.headers.append(("lapse-retry-delay-ms", record.retry))
    if record.redriven_for:
        record.headers.append(("lapse-redrive-queue", record.redriven_for.encode()))
    if record.transferred:
        record.headers.append(("lapse-transfer", "/".join(record.transferred).encode()))
    if any(record.counts):
        record.headers.append(("lapse-transfer-counts", b"%d/%d" % record.counts))
    if letter:
        record.headers += [("lapse-id", b"risk/orders:0:1/0"), ("__dlq.errors.topic", b"orders")]
        if not record.redriven_for and not record.transferred:
            record.ttl_ms = record.expires_at_ms = record.enqueue_at_ms = record.retry = None
            record.broken, record.message_id = False, b""
    return record


def shown_row(one: Queued) -> tuple:
    bookmark = (one.topic, one.partition, one.offset)
    return (
        bookmark,
        one.state_name,
        one.deadline_ms,
        one.deliveries,
        one.cancels,
        one.subscription,
        one.until_ms,
        one.since_ms,
    )


def rows(messages: Messages) -> Iterator[tuple[Bookmark, int | None, int, int]]:
    for at, offset in enumerate(messages.offsets.tolist()):
        deadline_ms = NEVER if messages.deadlines_ms is None else int(messages.deadlines_ms[at])
        cancels = 0 if messages.cancels is None else int(messages.cancels[at])
        yield (
            (messages.topic, messages.partition, offset),
            None if deadline_ms == NEVER else deadline_ms,
            int(messages.deliveries[at]),
            cancels,
        )


def all_gone(step: Step, heard: int = 0) -> list[Gone]:
    """What left in a step, and what left before and whose letter is safe now: of that there is an event only."""
    left = [(one, one.letter) for one in step.removals]
    left += [(one, True) for one in step.events[heard:] if one.reasons]
    return [
        Gone(bookmark, tuple(map(str, one.reasons)), letter, deadline_ms, one.at_ms, deliveries, cancels)
        for one, letter in left
        for bookmark, deadline_ms, deliveries, cancels in rows(one.messages)
    ]


def by_subscription(sent: Iterable[Sent]) -> dict[str, list[Sent]]:
    shares: dict[str, list[Sent]] = defaultdict(list)
    for one in sent:
        shares[one.subscription].append(one)
    return dict(shares)


def _among(*wanted: State) -> np.ndarray:
    return np.isin(np.arange(max(State) + 1), wanted)


_LIVE = _among(*STATES)
_BOUND = _among(State.LEASED, State.DELAYED, State.SENT, State.TRANSFERRING)
_HELD = _among(State.AVAILABLE, State.LEASED, State.SENT, State.TRANSFERRING)


@cache
def _constant(count: int, value: int) -> bytes:
    return np.full(count, value, np.int64).tobytes()


def dump(state: QueueState) -> bytes:
    """Everything that a shard's future depends on, in one form, but for when subscriptions were heard of."""
    parts: list[object] = [
        state.next_place,
        state.subscription_table.next_number,
        state.paused,
        [(source.topic, source.partition, source.next_offset) for source in state.sources],
        sorted(state.scheduled.items()),
        sorted(state.remembered),
        sorted(state.ending.entries()),
        sorted(state.repeats.chunks.items()),
        sorted(state.counted.batches.items()),
        sorted(state.pending.items()),
        sorted((one.id, one.number, one.target, one.confirmed) for one in state.transfers),
        [one.facts() for one in state.rewinds],
        sorted((name, one.facts()["elsewhere"], one.facts()["never"]) for name, one in state.rewinds.departed.items()),
        [
            (s.id, s.number, s.client, s.max_backlog, s.heartbeat_timeout_ms, s.filter, s.payload, s.outstanding)
            for s in state.subscriptions.values()
        ],
    ]
    for index in sorted(state.segments):
        segment = state.segments.look(index)
        column = segment.state[: segment.used]
        live, bound, held = _LIVE[column], _BOUND[column], _HELD[column]

        def some(values: np.ndarray | None, where: np.ndarray, otherwise: int) -> bytes:
            if values is None:
                return _constant(np.count_nonzero(where), otherwise)
            return values[: len(where)][where].astype(np.int64).tobytes()

        runs = [tuple(run) for run in segment.runs]
        parts.append((index, segment.used, segment.held, segment.available, runs, column.tobytes()))
        parts += [
            some(segment.deadline_ms, live, NEVER),
            some(segment.deliveries, live, 0),
            some(segment.cancels, live, 0),
            some(segment.holder, held, -1),
            some(segment.until_ms, bound, 0),
            some(segment.ranks, live, 0),
            some(segment.flags, live, 0),
            some(segment.groups, live, 0),
            some(segment.retries, live, -1),
        ]
    return repr(parts).encode()
