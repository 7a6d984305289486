"""Repeats: message ids that were seen within a window, so that repeats are dropped (X6, C43).

Ids are kept by source, with the records' own timestamps, so reading the log again gives the same result. The ids of
one batch are kept, journaled and forgotten together, as a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

from lapse.core.letter import MESSAGE_ID as MESSAGE_ID
from lapse.core.letter import is_letter
from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions, clear_in_portions

_LONGEST: Final = 40
"""Longer ids, and ids that JSON would escape, are kept as digests, so that a step's ids fit into one RecordBatch."""

_LEAP: Final = 8
"""A source that comes forward by more than this part of the window at once has leapt."""

_MOST_EXTENSIONS: Final = 4
"""How often in a row ids are kept for another window, because a source has come forward by leaps."""

_DIGEST: Final = "#"
_WRITTEN_LONGER: Final = frozenset('"\\')


class Chunk(NamedTuple):
    """The ids of a batch.

    Attributes:
        source: number of the source.
        newest_ms: how far the source had come with them, ms since the epoch: see `Repeats.reach`.
        ids: the ids, each with its timestamp, ms since the epoch.
    """

    source: int
    newest_ms: int
    ids: tuple[tuple[str, int], ...]


class Repeats:
    """The ids that a shard remembers."""

    def __init__(self) -> None:
        self.chunks: dict[int, Chunk] = {}
        self.next_number = 0
        self._seen: dict[tuple[int, str], tuple[int, ...]] = {}
        """By source and id: timestamp and chunk of each message that occupied the id, in turn, the earliest first."""
        self._reached_ms: dict[int, int] = {}
        self._progress: dict[int, _Progress] = {}
        self._numbers: dict[int, dict[int, None]] = {}
        """By source, the numbers of its chunks, oldest first: those of a silent source must not be passed each time."""

    def add(self, number: int, chunk: Chunk) -> None:
        """Remember a chunk under a number."""
        self.chunks[number] = chunk
        self._numbers.setdefault(chunk.source, {})[number] = None
        self.next_number = max(self.next_number, number + 1)
        self.reach(chunk.source, chunk.newest_ms)
        for name, at_ms in chunk.ids:
            self._seen[chunk.source, name] = (*self._seen.get((chunk.source, name), ()), at_ms, number)

    def release_memory(self) -> Portions[None]:
        """Free all ids, in portions."""
        self._numbers.clear()
        yield from clear_in_portions(self._seen, self.chunks)

    def forget(self, number: int) -> None:
        """Forget a chunk. Ids that another chunk has as well keep that one's timestamps."""
        chunk = self.chunks.pop(number, None)
        if chunk is None:
            return
        numbers = self._numbers[chunk.source]
        del numbers[number]
        if not numbers:
            del self._numbers[chunk.source]
        for message_id, _ in chunk.ids:
            seen = self._seen.pop((chunk.source, message_id), ())
            pairs = zip(seen[::2], seen[1::2], strict=True)
            left = tuple(value for pair in pairs if pair[1] != number for value in pair) if len(seen) > 2 else ()
            if left:
                self._seen[chunk.source, message_id] = left

    def reach(self, source: int, newest_ms: int, clock_ms: int = NEVER) -> int:
        """Note that a source was read up to a timestamp. Return how far it has come, ms since the epoch.

        That is its latest timestamp, or the broker's clock if a timestamp is ahead of it. It never goes back. So no
        producer whose clock is wrong makes the ids of others outdated (C6).
        """
        reached_ms = max(self._reached_ms.get(source, 0), min(newest_ms, clock_ms))
        self._reached_ms[source] = reached_ms
        return reached_ms

    def outdated(self, source: int, now_ms: int, window_ms: int) -> Iterator[int]:
        """Yield the numbers of a source's chunks that are outside the window, oldest first.

        The ids of a producer whose clock is behind are kept as long as others: see `_Progress`.
        """
        progress = self._progress.setdefault(source, _Progress(now_ms, now_ms))
        progress.note(now_ms, window_ms, self.next_number)
        for number in self._numbers.get(source, ()):
            if progress.counted_from_ms(number, self.chunks[number].newest_ms) + window_ms > now_ms:
                break
            yield number

    def seen_ms(self, source: int, message_id: str) -> Sequence[int]:
        """Return the timestamps of a source's messages that occupied an id and are remembered, ms since the epoch."""
        return self._seen.get((source, message_id), ())[::2]


@dataclass(slots=True)
class _Progress:
    """How a source comes forward, and whether its stamps tell how late it is.

    At first, and after a leap, they do not: the first stamps may be those of a clock that is behind, and what an
    earlier owner of the shard had reached is not kept. So no ids are forgotten until the source has come a window
    further. These ids stay for another window. If it came there by leaps, as from one clock to the next, ids that were
    kept before stay as well, up to some times: a source that comes forward by leaps only does not keep all its ids.

    Attributes:
        last_ms: how far the source had come at the last look, ms since the epoch.
        unsure_since_ms: how far it had come when its stamps ceased to tell; None = they tell.
        kept_ms: the window of the kept chunks begins here, ms since the epoch.
        kept: numbers of those chunks.
        steady_ms: how far it has come since then without leaps, ms.
        extensions: how often in a row the kept chunks were kept longer.
    """

    last_ms: int
    unsure_since_ms: int | None
    kept_ms: int = 0
    kept: range = range(0)
    steady_ms: int = 0
    extensions: int = 0

    def note(self, now_ms: int, window_ms: int, next_number: int) -> None:
        """Note how far the source has come, and the number of the next chunk."""
        step_ms = now_ms - self.last_ms
        leaps = step_ms > window_ms // _LEAP
        self.steady_ms += 0 if leaps else step_ms
        if self.unsure_since_ms is not None and now_ms >= self.unsure_since_ms + window_ms:
            # The window of chunks that were kept before is over, if the source has come one further since then.
            extends = self.steady_ms < window_ms and self.extensions < _MOST_EXTENSIONS
            self.extensions = self.extensions + 1 if extends else 0
            first = self.kept.start if extends else self.kept.stop
            self.kept_ms, self.kept, self.unsure_since_ms = now_ms, range(first, next_number), None
            self.steady_ms = 0
        if self.unsure_since_ms is None and leaps:
            self.unsure_since_ms, self.steady_ms = now_ms, 0
        self.last_ms = now_ms

    def counted_from_ms(self, number: int, newest_ms: int) -> int:
        """Return the instant from which the window of a chunk counts, ms since the epoch; `NEVER` = not yet known."""
        if number in self.kept:
            return max(newest_ms, self.kept_ms)
        return newest_ms if self.unsure_since_ms is None or number < self.kept.start else NEVER


class Batch:
    """The ids of a batch of one source while it is examined.

    Args:
        repeats: the remembered ids.
        source: number of the source.
        window_ms: time within which an equal id is a repeat, ms.
    """

    __slots__ = ("_repeats", "_source", "_window_ms", "fresh", "newest_ms")

    def __init__(self, repeats: Repeats, source: int, window_ms: int) -> None:
        self._repeats = repeats
        self._source = source
        self._window_ms = window_ms
        self.fresh: dict[str, tuple[int, ...]] = {}
        """New ids, each with the timestamps of the messages that occupied it, ms since the epoch."""
        self.newest_ms = 0
        """Latest timestamp of a message with an id, ms since the epoch."""

    def is_repeat(self, message_id: str, at_ms: int) -> bool:
        """Return whether a message with this id came before, with a timestamp less than the window away (C43)."""
        self.newest_ms = max(self.newest_ms, at_ms)
        before_ms = (*self._repeats.seen_ms(self._source, message_id), *self.fresh.get(message_id, ()))
        return any(abs(at_ms - one_ms) < self._window_ms for one_ms in before_ms)

    def occupy(self, message_id: str, at_ms: int) -> None:
        """Note the id of a message. Do not call this for one that is dead-lettered on arrival (C43)."""
        self.fresh[message_id] = (*self.fresh.get(message_id, ()), at_ms)

    @property
    def ids(self) -> tuple[tuple[str, int], ...]:
        """The new ids, each with its timestamp, ms since the epoch."""
        return tuple((name, at_ms) for name, stamps_ms in self.fresh.items() for at_ms in stamps_ms)

    def chunk(self, newest_ms: int) -> Chunk:
        """Return the chunk to remember; `newest_ms` is how far the source has come, ms since the epoch."""
        return Chunk(self._source, newest_ms, self.ids)


def chunk_of(source: int, newest_ms: int, ids: Sequence[Sequence[str | int]]) -> Chunk:
    """Return the chunk of a journal record's values."""
    return Chunk(source, newest_ms, tuple((str(message_id), int(at_ms)) for message_id, at_ms in ids))


def name_of(raw: bytes) -> str:
    """Return the form of an id that is kept."""
    if len(raw) <= _LONGEST and raw.isascii():
        text = raw.decode()
        if text.isprintable() and not _WRITTEN_LONGER & set(text) and not text.startswith(_DIGEST):
            return text
    return _DIGEST + blake2b(raw, digest_size=16).hexdigest()


def id_of(headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    """Return the first non-empty message id of a record's headers; None without one.

    A dead letter has none. Its header belongs to the dead message, which may have died in several queues (C54).
    """
    found = next((value for name, value in headers if name == MESSAGE_ID and value), None)
    return None if found is not None and is_letter(headers) else found
