"""Adds shards to a queue on this worker after its topics got more partitions (C81).

The rules are in `lapse.core.shard.growth`. This module collects the facts for them: the notes in the journals of the
other shards, the numbers of partitions of lapse's own topics, and which shards must be taken over anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from lapse.core.queue.journal.inherited import KINDS, Inherited, SourceKey, inherited
from lapse.core.shard import growth
from lapse.core.shard.changelog import Changelog
from lapse.core.shard.growth import Growth
from lapse.runtime.journal.store import JournalStore
from lapse.runtime.shard.services import Services
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)

KEY: Final = b"\x00g"
"""Key of the note in a shard's journal."""

_TRIES: Final = 60
_FEW_TRIES: Final = 6
_PAUSE_S: Final = 0.5


class _Nothing(dict[bytes, bytes]):
    """A mapping that keeps nothing, because only the growth note of another shard's journal is needed."""

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Keep nothing."""


class _Facts(dict[bytes, bytes]):
    """A mapping that keeps only what a new shard takes over from an older one."""

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Keep a record of one of these kinds."""
        if key[:1] in KINDS:
            super().__setitem__(key, value)


class Growing:
    """What one worker knows of the growth of a queue.

    Args:
        name: name of the queue.
        services: the objects that the worker's entities share.
    """

    def __init__(self, name: str, services: Services) -> None:
        self._name = name
        self._services = services
        self._own: dict[int, Growth] = {}
        self._waits_from: dict[int, dict[TP, int]] = {}
        self._others: dict[int, Changelog] = {}
        self._inherited: dict[int, list[Inherited]] = {}
        self._warned: set[int] = set()
        self._reading = asyncio.Lock()

    def first_records(self, shard: int, shards: int) -> list[tuple[bytes, bytes | None]]:
        """Return the first records of a new shard's journal."""
        return [(KEY, growth.new_shard_note(shard, shards).encode())] if shards > 1 else []

    def waits(self, shard: int) -> bool:
        """Return whether this worker's shard still waits for older shards before it reads."""
        return shard in self._own and self._own[shard].waits

    def waits_from(self, shard: int) -> Mapping[TP, int] | None:
        """Return from which offsets on a shard will read that waits, by partition; None = not known yet."""
        return self._waits_from.get(shard)

    def begun(self, shard: int) -> Mapping[str, int]:
        """Return the offsets from which this worker's shard has read what older shards have read before."""
        return self._own[shard].begun if shard in self._own else {}

    def has_new_shards(self, shard: int, shards: int) -> bool:
        """Return whether this worker's shard was taken over when the queue had fewer shards."""
        return shard in self._own and self._own[shard].shards != shards

    def is_drained(self, shard: int, first_occupied: int | None) -> bool:
        """Return whether a shard that makes others wait has settled its old messages, without having noted it yet."""
        until = self._own[shard].until if shard in self._own else None
        return until is not None and (first_occupied is None or first_occupied >= until)

    async def size(self, own: Collection[str], shards: int, least: int = 0, *, certain: bool = False) -> int:
        """Return the number of shards: as many as each of the queue's own topics has partitions.

        Args:
            own: these topics.
            shards: the number known so far.
            least: the number that should exist. One broker may know it later than another.
            certain: whether `least` shards certainly exist, so that a longer wait is worth while.

        Raises:
            RuntimeError: `least` is certain, and the topics have fewer partitions.
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
        return max(shards, count)  # partitions are being added just now

    def note(self, changelog: Changelog) -> Growth | None:
        """Return the growth note in a shard's journal; None if there is none."""
        value = changelog.runtime.get(KEY)
        return None if value is None else Growth.decode(value)

    async def opened(
        self, store: JournalStore, shard: int, shards: int, source_keys: Iterable[str]
    ) -> dict[str, int] | None:
        """Return the offsets from which a new shard reads; None if it must wait for the older shards first."""
        older: list[Growth | None] = []
        wanted = list(source_keys)
        topics = await self._topics(wanted)
        async with self._reading:
            for other in range(shard):
                into = self._others.setdefault(other, Changelog(_Nothing()))
                await store.owner.changelog_reader.read(store.changelog_topic, other, into)
                if not into.next_offset:
                    continue
                older.append(note := self.note(into))
                if other == 0 and note is not None and note.created and note.shards == shards:
                    break  # the queue began with this number
        found = growth.first_offsets(shards, older, wanted, topics)
        finals = growth.first_offsets(shards, [one and replace(one, until=None) for one in older], wanted, topics)
        self._waits_from.pop(shard, None)
        if finals is not None:
            at = [(*source_key.rpartition(":")[::2], offset) for source_key, offset in finals.items()]
            self._waits_from[shard] = {TP(topic, int(partition)): offset for topic, partition, offset in at}
        if found is None and shard not in self._warned:
            self._warned.add(shard)
            logger.warning(
                "%s, partition %d: waits until the older shards have settled the messages that they had when there "
                "were fewer shards, so that keys keep their order",
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
        source_keys: Sequence[str],
    ) -> bool:
        """Find the offsets from which a shard reads; return whether it must wait.

        Args:
            store: the store of the journal.
            shard: its number.
            shards: the number of shards.
            changelog: its journal.
            known: its read positions. Those of an older shard that read its partitions before are added.
            source_keys: its partitions, as `topic:partition`.
        """
        own = self.note(changelog)
        topics: dict[str, str] = {}
        if own is not None and (
            own.waits or any(source_key in own.read and source_key not in known for source_key in source_keys)
        ):
            topics = await self._topics(source_keys)
        if own is not None and own.waits:
            begin = await self.opened(store, shard, shards, source_keys)
            if begin is None:
                self._own[shard] = own
                return True
            if shard in self._warned:
                self._warned.discard(shard)
                logger.warning(
                    "%s, partition %d: the older shards have settled those messages; it begins to read",
                    self._name,
                    shard,
                )
            own = replace(own, shards=shards, waits=False, read=begin, topics=topics)
        self._inherited.pop(shard, None)
        if own is not None:
            begun = {
                source_key: own.read[source_key] if own.knows(source_key, topics) else 0
                for source_key in source_keys
                if source_key in own.read and source_key not in known
            }
            if begun:
                self._inherited[shard] = await self._inherit(store, shard, begun, topics)
            known.update(begun)
            self._own[shard] = own
        else:
            self._own.pop(shard, None)
        return False

    async def _inherit(
        self, store: JournalStore, shard: int, begun: Mapping[str, int], topics: Mapping[str, str]
    ) -> list[Inherited]:
        """Return what older shards know of a new shard's unread messages, without those of deleted topics.

        A crash repeats this until the journal of the new shard has it, together with its read positions.
        """
        found: list[Inherited] = []
        for other in range(shard):
            into = Changelog(_Facts())
            await store.owner.changelog_reader.read(store.changelog_topic, other, into)
            note, of = self.note(into), dict[SourceKey, int]()
            for source_key, offset in begun.items():
                if note is None or note.knows(source_key, topics):
                    topic, _, partition = source_key.rpartition(":")
                    of[topic, int(partition)] = offset
            found.append(inherited(into.items(), of))
        return found

    async def _topics(self, source_keys: Iterable[str]) -> dict[str, str]:
        """Return the present ids of topics with these partitions, each named `topic:partition`."""
        return await self._services.topic_ids.of({source_key.rpartition(":")[0] for source_key in source_keys})

    def inherited(self, shard: int) -> list[Inherited]:
        """Return, once, what a new shard takes over from older ones at the take-over under way."""
        return self._inherited.pop(shard, [])

    async def taken_over(
        self, store: JournalStore, shard: int, epoch: int, shards: int, changelog: Changelog, known: dict[str, Any],
        first_occupied: int | None, next_place: int,
    ) -> None:  # fmt: skip
        """Write the shard's growth note to its journal, if it changed, before the shard runs.

        Args:
            store: the store of the journal.
            shard: its number.
            epoch: the epoch that begins.
            shards: the number of shards.
            changelog: its journal.
            known: its read positions.
            first_occupied: place of its first message; None if it has none.
            next_place: place of the next message that arrives.
        """
        before = self.note(changelog)
        read = {source_key: offset for source_key, offset in known.items() if ":" in source_key}
        topics = {name: fact[0] for name, fact in known.items() if ":" not in name}
        after = growth.adopted_shard_note(self._own.get(shard), shards, read, topics, first_occupied, next_place)
        self._own[shard] = after
        if after != (Growth(1) if before is None else before):
            await store.commit(shard, epoch, [], [(KEY, after.encode())])
