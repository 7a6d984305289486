"""The owner of the shards whose journals a store keeps, as the store sees it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from lapse.runtime.journal.changelog import Changelog, Items
from lapse.runtime.journal.changelog_reader import ChangelogReader
from lapse.runtime.kafka.producer import BatchProducer
from lapse.runtime.timers.clock import WorkerClock


class ShardOwner(Protocol):
    """The entity of a table, which owns the shards whose journals the store keeps."""

    @property
    def journal_producer(self) -> BatchProducer:
        """Writes the changelog."""

    @property
    def changelog_reader(self) -> ChangelogReader:
        """Reads the changelog."""

    @property
    def stopped(self) -> AbstractSet[int]:
        """Shards of a deleted entity that have written their last record here (C4)."""

    @property
    def clock(self) -> WorkerClock:
        """The broker's clock, which every claim measures."""

    @property
    def worker_name(self) -> str:
        """The name that claims of epochs have."""

    @property
    def partitions(self) -> int:
        """How many shards there are."""

    @property
    def stands_by(self) -> bool:
        """Whether the changelogs of shards at other workers are followed."""

    def may_pre_read(self) -> bool:
        """Whether to read the changelog before the group assigns its shards: not if it does so at once."""

    async def topic_id(self, topic: str) -> str:
        """The id of a topic; empty if it does not exist."""

    async def last_epoch(self, partition: int) -> int:
        """The epoch of a shard's last delivery; 0 if there is none."""

    def born(self, partition: int) -> Items:
        """What a journal begins with, beside the first claim (C81)."""

    async def look_at_size(self, least: int = 0) -> None:
        """Learn whether there are more shards by now; `least` are known to be there."""

    def records(self) -> MutableMapping[bytes, bytes]:
        """An empty mapping for the contents of a changelog partition."""

    async def changelog_end(self, partition: int) -> int:
        """Where the changelog partition ends now."""

    async def exists(self) -> bool:
        """Whether there is a changelog to take over."""

    def hold(self, partition: int) -> None:
        """A shard will be taken over; its sources are not read until then."""

    def let_go(self, partition: int) -> None:
        """A shard that was to be taken over will not be."""

    async def prepare(self, partition: int, epoch: int) -> None:
        """An epoch is about to be claimed: tell the readers of deliveries before it is."""

    async def take_over(self, partition: int, epoch: int, changelog: Changelog) -> None:
        """A shard belongs to this worker from now on."""

    async def abandon(self, partition: int) -> None:
        """A shard whose take-over had begun belongs to another worker."""

    async def release(self, partition: int) -> None:
        """A shard belongs to another worker from now on."""

    def look_up(self, key: bytes) -> bytes | None:
        """The value of a table key now; None if there is none, or it has expired."""

    def look_through(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values of this worker's shards now."""
