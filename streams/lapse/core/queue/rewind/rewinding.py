"""Rewinding: brings back messages that have left from the records that Kafka still has (Q22, C61 to C63).

A rewind reads the log of each source once, a part in each step, up to the shard's read position at the command. Each
part is compared with the shard's state, and live messages stay as they are. Nothing else happens in the shard until
the rewind is done, so all of it takes effect as of its command. The journal holds its progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.generation import MOST_GENERATIONS, offset_of, position_of
from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.arrival import Arrivals, classify_records
from lapse.core.queue.arrival.entrance import Entrance
from lapse.core.queue.arrival.repeats import find_repeats, without_offsets
from lapse.core.queue.change import Change, ChangeKind, join_places
from lapse.core.queue.decision import Decisions
from lapse.core.queue.inquiry.view import RecordView
from lapse.core.queue.life.message_state import THERE
from lapse.core.queue.rewind.rewinds import MOST_LIVE, Rewind, Span
from lapse.core.queue.step import Step
from lapse.core.record import Record, RewoundRecord
from lapse.core.repeats import Repeats, chunk_of
from lapse.protocol.header import TRANSFER

Matches = Callable[[RecordView], bool]
"""Returns whether a record matches a rewind's filter and its user's row filter."""

REWOUND: Final = "rewound"
LEFT_OUT: Final = (
    *("live", "elsewhere", "repeated", "dead_on_arrival", "not_here", "no_match", "expired"),
    "invalid_lifetime",
)
"""Why records were not brought back, as the answer to a rewind counts them."""

UNREAD: Final = "unread"
"""The records that a rewind which was stopped has not looked at. Others do not have this count."""

COUNTS: Final = (REWOUND, *LEFT_OUT)


class RewindRequest(NamedTuple):
    """The request of a rewind command.

    Attributes:
        id: id of the command.
        at_ms: the command's instant, ms since the epoch.
        command: the command's offset.
        firsts: by number of the source, the offset of the first record.
        filter: the expression that records must match, for people and for the journal; empty = all match.
        keeps_lifetimes: whether lifetimes still count from the records' arrival.
        handed_over: whether to bring back messages that were handed over or forwarded, too.
        dry_run: whether to count only.
        ends: by number of the source, the first offset that is younger than the command, if it was taken in.
    """

    id: str
    at_ms: int
    command: int
    firsts: Mapping[int, int]
    filter: str = ""
    keeps_lifetimes: bool = False
    handed_over: bool = False
    dry_run: bool = False
    ends: Mapping[int, int] = MappingProxyType({})


class Rewinding:
    """Carries out rewinds, a part at a time."""

    def __init__(self, decisions: Decisions, entrance: Entrance) -> None:
        self._decisions = decisions
        self._entrance = entrance
        self._state = decisions.state
        self._settings = decisions.settings
        self._repeats = Repeats()
        """Message ids that the current rewind has read, with which it recognizes repeats as arrival did."""

    def begin(self, request: RewindRequest, step: Step) -> Rewind:
        """Begin a rewind. A dry run is not journaled.

        Raises:
            ValueError: a partition has reached the greatest number of rewinds.
        """
        spans: dict[int, Span] = {}
        for number, first in request.firsts.items():
            source = self._state.sources[number]
            if source.generation >= MOST_GENERATIONS:
                raise ValueError(f"{source.topic}:{source.partition} was rewound {MOST_GENERATIONS:,} times")
            stop = min(source.next_offset, request.ends.get(number, source.next_offset))
            if first < stop:
                spans[number] = Span(source.generation + 1, first, first, stop)
        rewind = Rewind(
            request.id,
            self._state.rewinds.next_number,
            request.at_ms,
            request.command,
            request.filter,
            request.keeps_lifetimes,
            request.handed_over,
            spans,
            dict.fromkeys(COUNTS, 0),
        )
        self.resume()
        if not request.dry_run:
            self._write(rewind, step)
        return rewind

    def resume(self) -> None:
        """Continue a rewind, perhaps in another worker. Message ids before its cursor must be read again."""
        self._repeats = Repeats()

    @property
    def window_ms(self) -> int:
        """How far back records must be read to recognize a repeat, ms (X6)."""
        return self._settings.dedup_window_ms

    def remember(self, number: int, records: Sequence[Record]) -> None:
        """Remember the ids of records before a rewind's start, since later records may repeat them (X6)."""
        self._replay_arrival(number, records)

    def bring_back_part(
        self,
        rewind: Rewind,
        records: Sequence[tuple[int, Sequence[Record]]],
        cursors: Mapping[int, int],
        matches: Matches | None,
        step: Step,
        *,
        dry_run: bool = False,
    ) -> None:
        """Bring back those of the next records whose messages have left.

        Args:
            rewind: the rewind.
            records: runs of records, each with the number of its source, in the order in which they get places.
            cursors: by number of the source, the offset at which the next part begins.
            matches: returns whether a record is selected; None = all are.
            step: receives the decisions.
            dry_run: whether to count only.
        """
        live = {number: self._find_live(number, rewind.spans[number], cursor) for number, cursor in cursors.items()}
        for number, some in records:
            self._bring_back(rewind, number, some, live[number], matches, step, dry_run)
        for number, cursor in cursors.items():
            rewind.spans[number].cursor = cursor
        if all(span.cursor >= span.stop for span in rewind.spans.values()):
            self._end(rewind)
        if not dry_run:
            self._write(rewind, step)

    def stop(self, rewind: Rewind, step: Step, *, dry_run: bool = False) -> None:
        """End a rewind before its end, because its filter costs too much (X7). What it has done stays."""
        rewind.counts[UNREAD] = sum(span.stop - span.cursor for span in rewind.spans.values())
        self._end(rewind)
        if not dry_run:
            self._write(rewind, step)

    @staticmethod
    def _end(rewind: Rewind) -> None:
        rewind.done = True
        # A source of which nothing came back keeps its generation, so settlements of its messages are not stale.
        rewind.spans = {number: span for number, span in rewind.spans.items() if span.brought}

    def _bring_back(
        self,
        rewind: Rewind,
        number: int,
        records: Sequence[Record],
        live: NDArray[np.int64],
        matches: Matches | None,
        step: Step,
        dry_run: bool,
    ) -> None:
        source, span, counts = self._state.sources[number], rewind.spans[number], rewind.counts
        arrivals = self._replay_arrival(number, records, rewind.at_ms)
        counts["repeated"] += arrivals.repeated
        counts["dead_on_arrival"] += arrivals.dead
        counts["not_here"] += len(records) - len(arrivals.offsets) - arrivals.repeated - arrivals.dead
        offsets = np.array(arrivals.offsets, np.int64)
        # A message that died on arrival counts as live while its letter is refused.
        offsets = self._leave_out(offsets, np.isin(offsets, live), counts, "live")
        for departed in self._state.rewinds.departed_in(number, records[0].offset, records[-1].offset):
            offsets = self._leave_out(offsets, departed.never.mask(offsets), counts, "not_here")
            if not rewind.handed_over:
                offsets = self._leave_out(offsets, departed.elsewhere.mask(offsets), counts, "elsewhere")
        wanted = set(offsets.tolist())
        chosen = [record for record in records if record.offset in wanted]
        if matches is not None:
            parse, before = self._settings.parse, len(chosen)
            chosen = [one for one in chosen if matches(RecordView(source.topic, source.partition, one, parse))]
            counts["no_match"] += before - len(chosen)
        reborn = [
            _rewound_record(record, span.generation, None if rewind.keeps_lifetimes else rewind.at_ms)
            for record in chosen
        ]
        expiration = self._settings.expiration_of(source.topic)
        found = classify_records(reborn, self._settings.name, expiration, rewind.at_ms)
        late = _expired_offsets(found, rewind.at_ms if self._settings.expiration.enabled else -1)
        counts["expired"] += len(late)
        if found.invalid:  # a rewind that an older version began has no such count
            counts["invalid_lifetime"] = counts.get("invalid_lifetime", 0) + len(found.invalid)
        gone = late | {offset for offset, _ in found.invalid}
        counts[REWOUND] += len(reborn) - len(gone)
        span.brought += len(reborn) - len(gone)
        if not dry_run and len(gone) < len(reborn):
            records_of = {position_of(record.offset, span.generation): record for record in chosen}
            self._entrance.bring_back(number, without_offsets(found, gone), records_of, rewind.id, rewind.at_ms, step)

    def _replay_arrival(self, number: int, records: Sequence[Record], now_ms: int = NEVER) -> _ArrivalOutcome:
        """Compute from records which of them became messages when they arrived.

        Args:
            number: number of their source.
            records: the records.
            now_ms: the instant of the rewind, ms since the epoch. Later deadlines had not passed at the arrival either.
        """
        source = self._state.sources[number]
        expiration = self._settings.expiration_of(source.topic)
        arrivals = classify_records(records, self._settings.name, expiration, now_ms)
        dead = len(arrivals.invalid) + len(arrivals.expired)
        repeated: set[int] = set()
        if self.window_ms and (arrivals.identified or self._repeats.chunks):
            found = find_repeats(self._repeats, number, arrivals, self.window_ms)
            reached_ms = self._repeats.reach(number, found.newest_ms)
            for outdated in list(self._repeats.outdated(number, reached_ms, self.window_ms)):
                self._repeats.forget(outdated)
            if found.ids:
                chunk = chunk_of(number, reached_ms, found.ids)
                self._repeats.add(self._repeats.next_number, chunk)
            repeated = found.repeats
            dead -= sum(offset in repeated for offset, _ in (*arrivals.invalid, *arrivals.expired))
        offsets = sorted({*arrivals.offsets, *(one.offset for one in arrivals.scheduled)} - repeated)
        return _ArrivalOutcome(offsets, len(repeated), dead)

    def _find_live(self, number: int, span: Span, behind: int) -> NDArray[np.int64]:
        """Return the offsets of live messages, in any generation. Dying messages are included (C62).

        A message is included even if Kafka no longer has its record, as happens during a lease (C80).

        Args:
            number: number of the source.
            span: the source's part of the rewind, examined from its cursor on; live messages are noted in it.
            behind: the offset after the last one examined.
        """
        source, first, last = self._state.sources[number], span.cursor, behind - 1
        if first > last:
            return np.empty(0, np.int64)
        found: list[int] = []
        for generation in range(span.generation):
            low, high = position_of(first, generation), position_of(last, generation)
            for piece in list(source.find(low, high)):
                if piece.place < 0:
                    continue
                for segment, slot, stop in list(self._state.spans([(piece.place, piece.last - piece.first + 1)])):
                    there = np.flatnonzero(THERE[segment.state[slot:stop]])
                    found += (there + offset_of(piece.first)).tolist()
                    self._state.segments.make_room()
                    break
            found += (offset_of(one) for one in self._state.scheduled.between(number, low, high))
        dying = (offset_of(position) for of, position in self._state.pending if of == number)
        found += (offset for offset in dying if first <= offset <= last)
        live = np.unique(np.array(found, np.int64))
        for at, count in join_places(live):
            if len(span.live) < MOST_LIVE:
                span.live.add(at, at + count - 1)
        return live

    @staticmethod
    def _leave_out(
        offsets: NDArray[np.int64], those: NDArray[np.bool_], counts: dict[str, int], why: str
    ) -> NDArray[np.int64]:
        counts[why] += int(np.count_nonzero(those))
        return offsets[~those]

    def _write(self, rewind: Rewind, step: Step) -> None:
        self._decisions.apply_change(Change(ChangeKind.REWIND, holder=rewind.number, facts=rewind.facts()), step)
        for number in self._state.rewinds.outdated() if rewind.done else ():
            self._decisions.apply_change(Change(ChangeKind.REWIND, holder=number), step)


class _ArrivalOutcome(NamedTuple):
    """The outcome of records' arrival: offsets of those that became messages, and the number of others."""

    offsets: list[int]
    repeated: int
    dead: int


def _rewound_record(record: Record, generation: int, at_ms: int | None) -> RewoundRecord:
    """Return the record of a message to bring back, with `at_ms` as its arrival; None = its own timestamp."""
    headers = record.headers
    if any(name == TRANSFER for name, _ in headers):  # the transfer that put it here was confirmed before
        headers = [one for one in headers if one[0] != TRANSFER]
    stamp_ms = record.timestamp if at_ms is None else at_ms
    return RewoundRecord(position_of(record.offset, generation), stamp_ms, record.key, record.value, headers)


def _expired_offsets(arrivals: Arrivals, now_ms: int) -> set[int]:
    """Return the offsets of messages that would expire at once; `now_ms` < 0 = deadlines do not count."""
    late = {offset for offset, _ in arrivals.expired}
    if now_ms >= 0:
        coming = zip(arrivals.offsets, arrivals.deadlines_ms, strict=True)
        late |= {offset for offset, deadline_ms in coming if deadline_ms <= now_ms}
        late |= {one.offset for one in arrivals.scheduled if one.deadline_ms <= now_ms}
    return late
