"""The owner of the shards whose journals a store keeps, as the store sees it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from lapse.core.shard.changelog import Changelog, Items
from lapse.runtime.journal.changelog_reader import ChangelogReader
from lapse.runtime.kafka.producer import BatchProducer
from lapse.runtime.timers.clock import WorkerClock


class ShardOwner(Protocol):
    """The entity of a table, which owns the shards whose journals the store keeps."""

    @property
    def journal_producer(self) -> BatchProducer:
        """The producer for the changelog."""

    @property
    def changelog_reader(self) -> ChangelogReader:
        """The reader of the changelog."""

    @property
    def stopped(self) -> AbstractSet[int]:
        """Shards of a deleted entity that have written their last record here (C4)."""

    @property
    def clock(self) -> WorkerClock:
        """The broker's clock, which every claim measures."""

    @property
    def worker_name(self) -> str:
        """The name in claims of epochs."""

    @property
    def partitions(self) -> int:
        """The number of shards."""

    @property
    def stands_by(self) -> bool:
        """Whether this worker follows the changelogs of shards at other workers."""

    @property
    def reads_ahead(self) -> bool:
        """Whether changelogs are read before shards are assigned."""

    def may_pre_read(self) -> bool:
        """Return whether to read the changelog before shards are assigned; False if that happens at once."""

    async def topic_id(self, topic: str) -> str:
        """The id of a topic; empty if it does not exist."""

    async def last_epoch(self, partition: int) -> int:
        """Return the epoch of a shard's last delivery; 0 if there is none."""

    def first_records(self, partition: int) -> Items:
        """Return the first records of a new journal, beside the first claim (C81)."""

    async def look_at_size(self, least: int = 0) -> None:
        """Find out whether the entity has more shards by now; at least `least` are known to exist."""

    def records(self) -> MutableMapping[bytes, bytes]:
        """Return an empty mapping for the contents of a changelog partition."""

    async def changelog_end(self, partition: int) -> int:
        """Return where the changelog partition ends now."""

    async def exists(self) -> bool:
        """Return whether the changelog and the entity's other topics exist."""

    async def reach(self, partition: int) -> None:
        """Wait until the leaders of all logs answer that a shard needs to be taken over."""

    def hold(self, partition: int) -> None:
        """Do not fetch the sources of a shard until it is taken over."""

    def rest(self, partition: int) -> None:
        """Fetch the sources of a shard only if others read them, because it is taken over later."""

    def let_go(self, partition: int) -> None:
        """Fetch again the sources of a shard that will not be taken over."""

    async def prepare(self, partition: int, epoch: int) -> None:
        """Tell the readers of deliveries that an epoch begins, before it is claimed."""

    async def take_over(self, partition: int, epoch: int, changelog: Changelog) -> None:
        """Build and start a shard, which this worker owns from now on."""

    async def abandon(self, partition: int) -> None:
        """Undo the take-over of a shard that this worker does not get."""

    async def release(self, partition: int) -> None:
        """Give up a shard."""

    def look_up(self, key: bytes) -> bytes | None:
        """Return the current value of a table key; None if there is none, or it has expired."""

    def look_through(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all current keys and values of this worker's shards."""
