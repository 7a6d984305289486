"""A queue shard beside its oracle: what one does, the other does, and both are compared at once."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from lapse.core.generation import offset_of
from lapse.core.lifetime import NEVER
from lapse.core.queue.journal import packed_segment
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.segments import segment as segments
from lapse.core.queue.segments.segment import Segment, State
from lapse.core.queue.segments.spill import Segments
from lapse.core.queue.segments.summary import SegmentSummary
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, Outcome
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from lapse.core.queue.transfer.transfers import HandOver
from unit.core.queue.compared.changelog import Changelog
from unit.core.queue.compared.dump import LIVE, STATES, dump
from unit.core.queue.compared.shown import all_gone, by_subscription, rows
from unit.core.queue.expected.message import Bookmark, Ends, Gone, MessageEvent, Published, Sent
from unit.core.queue.oracle import Oracle

EVENTS = frozenset(
    (
        "acknowledged cancelled renewed lease_returned delivered_at_most_once barrier_released repeated scheduled held "
        "transferring transferred transfer_cancelled transfer_confirmed rewound"
    ).split()
)


class ComparedShard:
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
        self.log = Changelog()
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
        """Make known all sources, because with a target depth an acknowledgment may name one that was never read."""
        if self.settings.target_depth is not None:
            for topic in ("orders", "direct"):
                self.shard.state.sources.number(topic, 0)
                self.oracle.next_offset.setdefault((topic, 0), 0)

    def _segments(self) -> Segments:
        return Segments() if self.room is None else Segments({}, self.room)

    # Filters

    @contextmanager
    def selection(self, text: str, most_kept: int = 0) -> Iterator[None]:
        """Begin the selection of a filter, and judge every message, as the runtime does."""
        if not text:
            yield
            return
        self.shard.matching.begin_selection(text, most_kept)
        while places := self.shard.selection.places_to_judge(text, 2):
            self.judge(places)
        for topic, partition, offsets in self.shard.selection.scheduled_to_judge(text):
            there = self._records(topic, partition, offsets)
            self.shard.judge_bookmarks(text, [(topic, partition, one) for one in there])
        yield
        self.shard.matching.end_selection(text)

    def judge(self, places: list[int]) -> None:
        """Read payloads back for the filters."""
        results = []
        for place in places:
            topic, partition, offset = self.shard.bookmark_of(place)
            (record,) = self._records(topic, partition, [offset])
            results.append((place, topic, partition, record))
        self.shard.judge(results)

    def _records(self, topic: str, partition: int, positions: Iterable[int]) -> list[Published]:
        """Return the records of some messages, each with its position as its offset."""
        by_offset = {record.offset: record for record in self.topics[topic, partition]}
        there = [(position, by_offset.get(offset_of(position))) for position in positions]
        return [replace(record, offset=position) for position, record in there if record is not None]

    @contextmanager
    def _horizon(self, younger: int) -> Iterator[Ends]:
        """Set the horizon of a sweep: the last `younger` messages that were read of each source lie behind it."""
        current = {(one.topic, one.partition): one.next_offset - younger for one in self.shard.state.sources.current()}
        ends = current if younger else {}
        self.shard.horizon.ends = {self.shard.state.sources.number(*name): end for name, end in ends.items()}
        yield ends
        self.shard.horizon.ends = {}

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
        emitted = [
            MessageEvent(one.kind, bookmark, one.subscription)
            for one in step.events[self._heard :]
            if one.messages and one.kind in EVENTS
            for bookmark, *_ in rows(one.messages)
        ]
        assert Counter(emitted) == Counter(self.oracle.events)
        self.did["repeated"] += sum(one.kind == "repeated" for one in emitted)
        self._refuse()
        self._clear()

    def _clear(self) -> None:
        self.step.deliveries.clear()
        self.step.removals.clear()
        self._heard = len(self.step.events)
        self.oracle.deliveries, self.oracle.removals, self.oracle.events = [], [], []

    def _refuse(self) -> None:
        """Have the broker refuse every letter whose number `refusing` divides."""
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
                emitted, before = len(self.step.events), len(removal.messages)
                left = removal.messages
                names = self.shard.keep_refused_letters(
                    [((removal, at), why) for at, why in refused.items()], self.step
                )
                kept = [int(left.offsets[at]) for at in refused]
                assert [offset for _, offset in names] == kept
                (event,) = self.step.events[emitted:]
                assert (event.kind, event.messages.offsets.tolist()) == ("dying", kept)
                there = any(one is removal for one in self.step.removals)
                assert there == (len(refused) < before)
                assert not there or len(removal.messages) == before - len(refused)

    def check(self) -> None:
        """Compare the whole state, message by message, and check every count that is kept beside it."""
        if self.room is not None:
            self._check_spilled()
        self._check_placed()
        self._check_without_place()
        self._check_subscriptions()
        self._check_remembered()
        self._check_leaks()
        due_ms = self.oracle.next_due_ms()
        assert self.shard.next_due_ms() <= (NEVER if due_ms is None else due_ms)

    def _check_spilled(self) -> None:
        """What stays in memory of segments in the spill store."""
        spilled = self.shard.state.segments
        assert spilled._loaded.keys() <= spilled._used.keys() | spilled._weights.keys()
        assert not spilled._loaded.keys() & spilled._seen.keys()
        assert spilled._weight == sum(spilled._weights.values())
        for index, summary in spilled._summaries.items():
            segment = spilled.look(index)
            assert SegmentSummary.from_segment(segment) == summary
            assert packed_segment.encode(segment) == bytes(spilled.encoded(index))

    def _check_placed(self) -> None:
        """Messages with a place, and the counts of their segments."""
        state, oracle = self.shard.state, self.oracle
        live = []
        for index in sorted(state.segments):
            segment = state.segments.look(index)
            assert not segment.is_droppable
            column = segment.state[: segment.used]
            assert segment.available == np.count_nonzero(column == State.AVAILABLE)
            held = np.flatnonzero(LIVE[column]).tolist()
            assert segment.occupied == len(held)
            live += [self._placed(segment, slot) for slot in held]
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

    def _placed(self, segment: Segment, slot: int) -> tuple[object, ...]:
        """What the shard knows of one message with a place."""
        state = self.shard.state
        column = segment.state
        run = segment.run_at(slot)
        of = state.sources[run.source]
        name = STATES[State(int(column[slot]))]
        deadline_ms, holder, until_ms = segment.deadline_of(slot), "", 0
        if name in ("leased", "sent"):
            holder = self._subscription_of(int(segment.holder[slot]))
        if name == "transferring":
            holder = state.transfers.name(int(segment.holder[slot]))
        if name in ("leased", "delayed", "transferring"):
            until_ms = int(segment.until_ms[slot])
            assert segment.min_until_ms <= until_ms or name == "transferring"
        if name in ("available", "delayed", "transferring"):
            assert segment.min_deadline_ms <= deadline_ms
        bookmark = (of.topic, of.partition, run.offset + slot - run.slot)
        pieces = list(of.find(bookmark[2], bookmark[2]))
        assert [piece.place for piece in pieces] == [segment.base + slot]
        return (
            bookmark,
            name,
            None if deadline_ms == NEVER else deadline_ms,
            holder,
            until_ms,
            int(segment.deliveries[slot]),
            segment.cancels_of(slot),
        )

    def _subscription_of(self, number: int) -> str:
        return next(one.id for one in self.oracle.subscribers.values() if one.number == number)

    def _check_without_place(self) -> None:
        """Scheduled messages, and those that transfers and rewinds remember."""
        state, oracle = self.shard.state, self.oracle
        assert {
            ((state.sources[number].topic, state.sources[number].partition, offset), one.at_ms)
            + ((one.transfer, one.then_ms, one.in_transfer) if one.transfer else ("", 0, False))
            + (one.held,)
            for (number, offset), one in state.scheduled.items()
        } == {
            (m.bookmark, m.at_ms, m.transfer, m.then_ms if m.transfer else 0, m.state == "early", m.state == "held")
            for m in oracle.scheduled()
        }
        known = {one.id: [pair for over in one.confirmed for pair in pairs(over)] for one in state.transfers}
        assert known == oracle.transfers
        kept = {"elsewhere": set(), "never": set()}
        for (number, _), departed in state.rewinds.departed.items():
            of = state.sources[number]
            if state.sources.find(of.topic, of.partition) == number:
                for why, ranges in (("elsewhere", departed.elsewhere), ("never", departed.never)):
                    kept[why] |= {(of.topic, of.partition, at) for low, high in ranges for at in range(low, high + 1)}
        assert kept == {"elsewhere": oracle.elsewhere, "never": oracle.never}

    def _check_subscriptions(self) -> None:
        """Subscriptions, the depth, and how far the sources are read."""
        state, oracle = self.shard.state, self.oracle
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

    def _check_remembered(self) -> None:
        """Messages that are remembered after they left, and those whose letters are pending."""
        state, oracle = self.shard.state, self.oracle
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

    def _check_leaks(self) -> None:
        """The first held message, and that nothing is kept of segments that are gone."""
        state, oracle = self.shard.state, self.oracle
        there = oracle.in_state(*STATES.values())
        first = state.first_occupied()
        assert (None if first is None else self.shard.bookmark_of(first)) == (there[0].bookmark if there else None)
        for _, columns in self.shard.matching._filters.values():
            assert columns.keys() <= state.segments.keys(), "a leak"
        for source in state.sources:
            standings = [*source._standings, *source._rewound]
            assert all(one.place // segments.SIZE in state.segments for one in standings), "a leak"


def bookmarks(claim: Claim) -> list[Bookmark]:
    return [(claim.topic, claim.partition, offset) for offset in range(claim.first, claim.last + 1)]


def singly(outcomes: Iterable[Outcome]) -> list[tuple[Bookmark, str]]:
    outcomes = list(outcomes)
    assert all(one.first <= one.last for one in outcomes), "an answer about nothing"
    return [
        ((one.topic, one.partition, offset), str(one.result))
        for one in outcomes
        for offset in range(one.first, one.last + 1)
    ]


def pairs(one: HandOver) -> list[tuple[Bookmark, Bookmark]]:
    return [
        ((one.topic, one.partition, one.first + n), (one.to_topic, one.to_partition, one.to_first + n))
        for n in range(one.count)
    ]
