"""Growing: how the shards of a queue at one worker become more, as its topics have got partitions (C81).

The rule is in `lapse.core.shard.growth`. Here is what it needs: what the journals of the other shards say, how many
partitions the topics of lapse's own have, and when a shard has to be taken over anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Final

from lapse.core.shard import growth
from lapse.core.shard.growth import Growth
from lapse.runtime.journal.changelog import Changelog
from lapse.runtime.journal.store import JournalStore
from lapse.runtime.shard.services import Services

logger = logging.getLogger(__name__)

KEY: Final = b"\x00g"
"""Key of the record in a shard's journal."""

_TRIES: Final = 60
_FEW_TRIES: Final = 6
_PAUSE_S: Final = 0.5


class _Noted(dict[bytes, bytes]):
    """Of a journal, what it says of growth."""

    def __setitem__(self, key: bytes, value: bytes) -> None:
        if key == KEY:
            super().__setitem__(key, value)


class Growing:
    """What one worker knows of the shards of a queue.

    Args:
        name: the queue.
        services: what the worker shares.
    """

    def __init__(self, name: str, services: Services) -> None:
        self._name = name
        self._services = services
        self._own: dict[int, Growth] = {}
        self._others: dict[int, Changelog] = {}
        self._warned: set[int] = set()
        self._reading = asyncio.Lock()

    def born(self, shard: int, shards: int) -> list[tuple[bytes, bytes | None]]:
        """What the journal of a shard begins with."""
        return [(KEY, growth.born(shard, shards).encode())] if shards > 1 else []

    def waits(self, shard: int) -> bool:
        """Whether a shard that is here reads nothing yet."""
        return shard in self._own and self._own[shard].waits

    def outgrown(self, shard: int, shards: int) -> bool:
        """Whether a shard that is here was taken over when there were fewer."""
        return shard in self._own and self._own[shard].shards != shards

    def is_drained(self, shard: int, first_held: int | None) -> bool:
        """Whether a shard that holds others back has settled what it had, and has not noted it yet."""
        until = self._own[shard].until if shard in self._own else None
        return until is not None and (first_held is None or first_held >= until)

    async def size(self, own: Collection[str], shards: int, least: int = 0, *, certain: bool = False) -> int:
        """How many shards the queue has by now: as many as each of its own topics has partitions.

        Args:
            own: these topics.
            shards: how many it had.
            least: so many may be there; a broker may know later than another one.
            certain: they are there, and are waited for longer.

        Raises:
            RuntimeError: they are certain, and the topics have fewer.
        """
        count = shards
        for _ in range(_TRIES if certain else _FEW_TRIES):
            shapes = await self._services.topic_ids.shapes(own)
            count = min((shapes[topic].partitions if topic in shapes else 0 for topic in own), default=0)
            if count >= max(shards, least):
                return count
            if least <= shards:
                return shards
            await asyncio.sleep(_PAUSE_S)
        if certain:
            raise RuntimeError(f"{self._name}: it has {least} shards, and its topics have fewer partitions")
        return max(shards, count)  # somebody is giving it more, and has not finished

    def note(self, changelog: Changelog) -> Growth | None:
        """What the journal of a shard says."""
        value = changelog.latest.get(KEY)
        return None if value is None else Growth.decode(value)

    async def opened(
        self, store: JournalStore, shard: int, shards: int, places: Iterable[str]
    ) -> dict[str, int] | None:
        """Where a new shard begins to read; None = it has to wait for others."""
        older: list[Growth | None] = []
        async with self._reading:
            for other in range(shard):
                into = self._others.setdefault(other, Changelog(_Noted()))
                await store.owner.changelog_reader.read(store.changelog_topic, other, into)
                if not into.next_offset:
                    continue
                older.append(note := self.note(into))
                if other == 0 and note is not None and note.created and note.shards == shards:
                    break  # the queue has had as many ever since
        found = growth.begins(shards, older, places)
        if found is None and shard not in self._warned:
            self._warned.add(shard)
            logger.warning(
                "%s, partition %d: reads nothing before the older shards have settled what they had when there were "
                "fewer of them, so that keys keep their order",
                self._name,
                shard,
            )
        return found

    async def take_over(
        self,
        store: JournalStore,
        shard: int,
        shards: int,
        changelog: Changelog,
        known: dict[str, Any],
        places: Iterable[str],
    ) -> bool:
        """See where a shard begins to read; returns whether it has to wait.

        Args:
            store: of the journal.
            shard: which one.
            shards: how many there are.
            changelog: its journal.
            known: how far it has read; what an older shard has read of its partitions is added.
            places: the partitions that are its own, as `topic:partition`.
        """
        own = self.note(changelog)
        if own is not None and own.waits:
            begin = await self.opened(store, shard, shards, places)
            if begin is None:
                self._own[shard] = own
                return True
            if shard in self._warned:
                self._warned.discard(shard)
                logger.warning("%s, partition %d: the older shards are done, and it begins to read", self._name, shard)
            own = replace(own, shards=shards, waits=False, read=begin)
        if own is not None:
            mine = set(places)
            for place, offset in own.read.items():
                if place in mine:
                    known.setdefault(place, offset)
            self._own[shard] = own
        else:
            self._own.pop(shard, None)
        return False

    async def taken_over(
        self, store: JournalStore, shard: int, epoch: int, shards: int, changelog: Changelog, known: dict[str, Any],
        first_held: int | None, next_place: int,
    ) -> None:  # fmt: skip
        """Note in a shard's journal what it is, before it runs.

        Args:
            store: of the journal.
            shard: which one.
            epoch: it has begun.
            shards: how many there are.
            changelog: its journal.
            known: how far it has read.
            first_held: the place of its first message; None = it has none.
            next_place: the place of the next one that arrives.
        """
        before = self.note(changelog)
        read = {place: offset for place, offset in known.items() if ":" in place}
        after = growth.taken_over(self._own.get(shard), shards, read, first_held, next_place)
        self._own[shard] = after
        if after != (Growth(1) if before is None else before):
            await store.commit(shard, epoch, [], [(KEY, after.encode())])
