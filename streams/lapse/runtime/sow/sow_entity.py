"""The entity of a SOW topic on a worker."""

from __future__ import annotations

from lapse.config import SowConfig
from lapse.core.shard.changelog import Changelog
from lapse.core.sow.shard import SowShard
from lapse.runtime.event_loop_turns import in_turns
from lapse.runtime.kafka.fetched_rows import FetchedRows
from lapse.runtime.shard.served_entity import Entity
from lapse.runtime.shard.services import Services
from lapse.runtime.sow.machine import SowMachine
from lapse.runtime.sow.output import SowOutput
from lapse.runtime.sow.settings import settings as settings_of
from lapse.runtime.tp import TP


class SowEntity(Entity):
    """A SOW topic's table and shards on this worker.

    Args:
        name: name of the SOW topic.
        config: its settings.
        partitions: its number of shards.
        services: the objects that the worker's entities share.
        max_record_bytes: the greatest size of a record.
    """

    config: SowConfig

    def __init__(
        self,
        name: str,
        config: SowConfig,
        partitions: int,
        services: Services,
        max_record_bytes: int,
    ) -> None:
        super().__init__(name, config, partitions, services)
        self._max_record_bytes = max_record_bytes
        self._read = partitions

    def _needs_take_over(self) -> bool:
        return self.partitions_read > self._read or super()._needs_take_over()

    async def machine(self, partition: int, epoch: int, changelog: Changelog, positions: dict[TP, int]) -> SowMachine:
        """Build a shard from its changelog."""
        letters = self.config.dead_letter_topic(self.name)
        self._read = self.partitions_read
        added = self._read > self.partitions
        settings = settings_of(self.config, self.name, partition, self.partitions, self._max_record_bytes, added)
        if not settings.several:  # otherwise each record is handled by itself
            FetchedRows.wanted.update(self.config.underlying(self.name))
        shard = SowShard(settings)
        await in_turns(shard.restoring(changelog.latest.items()))
        output = SowOutput(self.name, partition, epoch, letters, self.letter_partitions())
        services = self.services
        return SowMachine(shard, output, services.aside_reader.one, self.rule(epoch, changelog), services.clock.now_ms)
