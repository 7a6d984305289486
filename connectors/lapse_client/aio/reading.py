"""Readers of dead letters, events, records and the life of a message, for asyncio (X3, D2, Q19)."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from lapse.protocol.event import Event
from lapse_client.argument import check_instant
from lapse_client.letters import dead_letter
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.reading import event_reader
from lapse_client.reading.history import History
from lapse_client.reading.history import history as sync_history
from lapse_client.reading.replay import Replayed, paced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from lapse.protocol.bookmark import Bookmark
    from lapse_client.kafka.connection import Connection
    from lapse_client.kafka.topic_reader import PacedReader

_AT_ONCE: Final = 1_000

T = TypeVar("T")


class _Left(Exception):
    """Nobody waits for a search any more."""


class _Reader(Generic[T]):
    """Reads records of one kind in a thread, some at a time."""

    def __init__(self, opened: Callable[[], PacedReader[T]], follow: bool) -> None:
        self._opened = opened
        self._at_once = 1 if follow else _AT_ONCE

    async def __aiter__(self) -> AsyncIterator[T]:
        """Iterate over the records, in order per partition.

        Raises:
            UnknownEntity: there is no such topic.
            LapseError: the topic cannot be read.
        """
        records = await asyncio.to_thread(lambda: self._opened().paced())
        async for record in _in_turns(records, self._at_once):
            yield record


class DeadLetterReader(_Reader[DeadLetter]):
    """Reads dead letters from the beginning; see `lapse_client.DeadLetterReader`, whose arguments these are."""

    def __init__(
        self,
        name: str,
        *,
        connection: Connection | None = None,
        follow: bool = False,
        since_ms: int | None = None,
        entity: str = "",
    ) -> None:
        dead_letter.check_reader(name, since_ms, entity)

        def opened() -> dead_letter.DeadLetterReader:
            return dead_letter.DeadLetterReader(
                name, connection=connection, follow=follow, since_ms=since_ms, entity=entity
            )

        super().__init__(opened, follow)
        self._reader = opened

    async def at(self, place: Bookmark | str) -> DeadLetter:
        """Read one letter; see `lapse_client.DeadLetterReader.at`."""
        return await asyncio.to_thread(lambda: self._reader().at(place))


class EventReader(_Reader[Event]):
    """Reads the events of a queue or SOW topic; see `lapse_client.EventReader`, whose arguments these are."""

    def __init__(
        self,
        name: str,
        *,
        connection: Connection | None = None,
        follow: bool = False,
        since_ms: int | None = None,
        newer: bool = False,
        after: str | None = None,
    ) -> None:
        check_instant("since_ms", since_ms)
        event_reader.parse_reached(after)
        self._reader: event_reader.EventReader | None = None

        def opened() -> event_reader.EventReader:
            self._reader = event_reader.EventReader(
                name, connection=connection, follow=follow, since_ms=since_ms, newer=newer, after=after
            )
            return self._reader

        super().__init__(opened, follow)

    @property
    def reached(self) -> str:
        """How far the reader has come; see `lapse_client.EventReader`. With `follow`, up to the last event yielded."""
        return "" if self._reader is None else self._reader.reached


async def replay(
    start: Bookmark | str, *, connection: Connection | None = None, follow: bool = False
) -> AsyncIterator[Replayed]:
    """Yield the records of one partition from a bookmark on; see `lapse_client.replay`."""
    async for record in _in_turns(paced(start, connection=connection, follow=follow), 1 if follow else _AT_ONCE):
        yield record


async def history(
    bookmark: Bookmark | str, *, entity: str | None = None, connection: Connection | None = None
) -> History:
    """Find everything that happened to a message; see `lapse_client.history`. A cancelled search stops reading."""
    left = threading.Event()

    def go_on(*_: object) -> None:
        if left.is_set():
            raise _Left

    try:
        return await asyncio.to_thread(sync_history, bookmark, entity=entity, connection=connection, watcher=go_on)
    finally:
        left.set()


async def _in_turns(records: Iterator[T | None], at_once: int) -> AsyncIterator[T]:
    """Run an iterator in a thread, some records at a time, and close it at the end.

    A turn also stops when the iterator yields None, so that the thread can be stopped soon.
    """

    def turn() -> tuple[list[T], bool]:
        found: list[T] = []
        for one in records:
            if one is None:
                return found, False
            found.append(one)
            if len(found) == at_once:
                return found, False
        return found, True

    under_way: asyncio.Future[tuple[list[T], bool]] | None = None
    try:
        over = False
        while not over:
            under_way = asyncio.ensure_future(asyncio.to_thread(turn))
            found, over = await asyncio.shield(under_way)
            for one in found:
                yield one
    finally:
        if under_way is not None and not under_way.done():
            await asyncio.wait([under_way])
            under_way.exception()
        await asyncio.to_thread(cast("Generator[T | None]", records).close)
