"""Message ids that were seen within a window, so that a repeat is dropped (X6, C43).

By source, and by the records' own timestamps: reading the log again decides the same. The ids of one batch are kept,
journaled and forgotten together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from lapse.core.letter import MESSAGE_ID as MESSAGE_ID
from lapse.core.letter import is_letter
from lapse.core.portions import Portions, emptying

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


class Repeats:
    """The ids that a shard remembers."""

    def __init__(self) -> None:
        self.chunks: dict[int, Chunk] = {}
        self.next_number = 0
        self._seen: dict[tuple[int, str], tuple[int, int]] = {}

    def add(self, number: int, chunk: Chunk) -> None:
        """Remember ids."""
        self.chunks[number] = chunk
        self.next_number = max(self.next_number, number + 1)
        for name, at_ms in chunk.ids:
            self._seen[chunk.source, name] = at_ms, number

    def emptying(self) -> Portions[None]:
        """Let go of all ids."""
        yield from emptying(self._seen, self.chunks)

    def forget(self, number: int) -> None:
        """Forget a chunk; what was seen again in a later one stays."""
        chunk = self.chunks.pop(number, None)
        if chunk is None:
            return
        for message_id, _ in chunk.ids:
            if self._seen.get((chunk.source, message_id), (0, -1))[1] == number:
                del self._seen[chunk.source, message_id]

    def outdated(self, source: int, now_ms: int, window_ms: int) -> Iterator[int]:
        """Numbers of chunks of a source of which nothing can be repeated any more, oldest first."""
        for number, chunk in self.chunks.items():
            if chunk.source == source:
                if chunk.newest_ms + window_ms > now_ms:
                    break
                yield number

    def seen_ms(self, source: int, message_id: str) -> int | None:
        """Timestamp of the last message of a source with an id, ms since the epoch; None if none is remembered."""
        seen = self._seen.get((source, message_id))
        return None if seen is None else seen[0]


class Batch:
    """The ids of one batch of one source, while it is looked through.

    Args:
        repeats: the ids that are remembered.
        source: number of the source.
        window_ms: how long an id counts, ms.
    """

    __slots__ = ("_repeats", "_source", "_window_ms", "fresh", "newest_ms")

    def __init__(self, repeats: Repeats, source: int, window_ms: int) -> None:
        self._repeats = repeats
        self._source = source
        self._window_ms = window_ms
        self.fresh: dict[str, int] = {}
        """New ids, each with its timestamp, ms since the epoch."""
        self.newest_ms = 0
        """Latest timestamp of a message with an id, ms since the epoch."""

    def is_repeat(self, message_id: str, at_ms: int) -> bool:
        """Whether a message with this id came before, within the window."""
        self.newest_ms = max(self.newest_ms, at_ms)
        before_ms = self.fresh.get(message_id)
        if before_ms is None:
            before_ms = self._repeats.seen_ms(self._source, message_id)
        return before_ms is not None and at_ms - before_ms < self._window_ms

    def occupy(self, message_id: str, at_ms: int) -> None:
        """Note that a message with this id came; not of one that is dead-lettered on arrival (C43)."""
        self.fresh[message_id] = at_ms

    def chunk(self) -> Chunk:
        """What is to be remembered of the batch."""
        return Chunk(self._source, self.newest_ms, tuple(self.fresh.items()))


def chunk_of(source: int, newest_ms: int, ids: Sequence[Sequence[str | int]]) -> Chunk:
    """A chunk from what the journal holds."""
    return Chunk(source, newest_ms, tuple((str(message_id), int(at_ms)) for message_id, at_ms in ids))


def name_of(raw: bytes) -> str:
    """An id as it is kept."""
    if len(raw) <= _LONGEST and raw.isascii():
        text = raw.decode()
        if text.isprintable() and not _WRITTEN_LONGER & set(text) and not text.startswith(_DIGEST):
            return text
    return _DIGEST + blake2b(raw, digest_size=16).hexdigest()


def id_of(headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    """The message id that headers state: the first that is not empty; None without one.

    A dead letter has none: the one that it bears belonged to the message, which may have died in several queues (C54).
    """
    found = next((value for name, value in headers if name == MESSAGE_ID and value), None)
    return None if found is not None and is_letter(headers) else found
