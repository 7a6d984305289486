"""Message ids that were seen within a window, so that a repeat is dropped (X6, C43).

By source, and by the records' own timestamps: reading the log again decides the same. The ids of one batch are kept,
journaled and forgotten together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from lapse.core.lifetime import NO_TIMESTAMP
from lapse.core.queue.arrival import Arrivals
from lapse.core.queue.change import Change, Verb

_LONGEST: Final = 40
"""A longer id, or one that JSON would write longer, is kept as its digest: those of a step share one RecordBatch."""

_DIGEST: Final = "#"
_WRITTEN_LONGER: Final = frozenset('"\\')


class Chunk(NamedTuple):
    """Ids of messages that came together.

    Attributes:
        source: number of the source.
        newest_ms: latest of their timestamps, ms since the epoch.
        ids: each with its timestamp.
    """

    source: int
    newest_ms: int
    ids: tuple[tuple[str, int], ...]


class Sifted(NamedTuple):
    """What a batch means for the ids.

    Attributes:
        repeats: offsets that repeat an earlier message.
        ids: new ones, each with its timestamp, ms since the epoch.
        newest_ms: latest timestamp of a message with an id, ms since the epoch.
    """

    repeats: set[int]
    ids: tuple[tuple[str, int], ...]
    newest_ms: int


class Repeats:
    """The ids that a shard remembers."""

    def __init__(self) -> None:
        self.chunks: dict[int, Chunk] = {}
        self.next_number = 0
        self._seen: dict[tuple[int, str], tuple[int, int]] = {}

    def apply(self, change: Change) -> None:
        """Carry out a change: remember the ids of a batch, or forget a chunk of them."""
        if change.verb is Verb.IDENTIFIED:
            self.add(change.offset, chunk_of(change.source, change.until_ms, change.facts["ids"]))
        else:
            self.forget(change.offset)

    def add(self, number: int, chunk: Chunk) -> None:
        """Remember ids."""
        self.chunks[number] = chunk
        self.next_number = max(self.next_number, number + 1)
        for name, at_ms in chunk.ids:
            self._seen[chunk.source, name] = at_ms, number

    def forget(self, number: int) -> None:
        """Forget a chunk; what was seen again in a later one stays."""
        chunk = self.chunks.pop(number, None)
        if chunk is None:
            return
        for name, _ in chunk.ids:
            if self._seen.get((chunk.source, name), (0, -1))[1] == number:
                del self._seen[chunk.source, name]

    def outdated(self, source: int, now_ms: int, window_ms: int) -> Iterator[int]:
        """Numbers of chunks of a source of which nothing can be repeated any more, oldest first."""
        for number, chunk in self.chunks.items():
            if chunk.source == source:
                if chunk.newest_ms + window_ms > now_ms:
                    break
                yield number

    def sift(self, source: int, arrivals: Arrivals, window_ms: int) -> Sifted:
        """Decide which messages of a batch repeat one of before, or of the same batch.

        One that is dead-lettered on arrival does not occupy its id (C43).
        """
        dead = {offset for offset, _ in (*arrivals.invalid, *arrivals.expired)}
        repeats: set[int] = set()
        fresh: dict[str, int] = {}
        newest_ms = now_ms = 0
        for offset, raw, timestamp_ms in arrivals.identified:
            now_ms = now_ms if timestamp_ms == NO_TIMESTAMP else timestamp_ms
            newest_ms = max(newest_ms, now_ms)
            name = _name(raw)
            before_ms = fresh.get(name)
            if before_ms is None and (source, name) in self._seen:
                before_ms = self._seen[source, name][0]
            if before_ms is not None and now_ms - before_ms < window_ms:
                repeats.add(offset)
            elif offset not in dead:
                fresh[name] = now_ms
        return Sifted(repeats, tuple(fresh.items()), newest_ms)


def without(arrivals: Arrivals, repeats: set[int]) -> Arrivals:
    """What is left of a batch."""
    kept = [at for at, offset in enumerate(arrivals.offsets) if offset not in repeats]
    return Arrivals(
        offsets=[arrivals.offsets[at] for at in kept],
        deadlines_ms=[arrivals.deadlines_ms[at] for at in kept],
        scheduled=[one for one in arrivals.scheduled if one[0] not in repeats],
        invalid=[one for one in arrivals.invalid if one[0] not in repeats],
        expired=[one for one in arrivals.expired if one[0] not in repeats],
    )


def chunk_of(source: int, newest_ms: int, ids: Sequence[Sequence[str | int]]) -> Chunk:
    """A chunk from what the journal holds."""
    return Chunk(source, newest_ms, tuple((str(name), int(at_ms)) for name, at_ms in ids))


def _name(raw: bytes) -> str:
    if len(raw) <= _LONGEST and raw.isascii():
        text = raw.decode()
        if text.isprintable() and not _WRITTEN_LONGER & set(text) and not text.startswith(_DIGEST):
            return text
    return _DIGEST + blake2b(raw, digest_size=16).hexdigest()
