"""A queue at work."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from lapse.config import QueueConfig
from lapse.core.queue.journal import restore
from lapse.core.queue.segment_spill import Segments
from lapse.protocol import topic as names
from lapse.runtime.journal.changelog import Changelog
from lapse.runtime.journal.spill import Spill
from lapse.runtime.journal.spill_file import SpillFile
from lapse.runtime.queue.forwarding import Forwarding
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.unwritten import noted_of, read_written
from lapse.runtime.shard.entity import Entity
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.shard.runner import Unwritten
from lapse.runtime.shard.services import Services
from lapse.runtime.topics.wanted import Role
from lapse.runtime.tp import TP


class QueueEntity(Entity):
    """The queue's agent, table and shards at this worker.

    Args:
        name: the queue.
        config: its settings.
        partitions: how many shards it has.
        services: what the worker shares.
        forward: topic that it forwards to; None = it does not (Q21).
    """

    config: QueueConfig

    def __init__(
        self,
        name: str,
        config: QueueConfig,
        partitions: int,
        services: Services,
        forward: str | None = None,
    ) -> None:
        super().__init__(name, config, partitions, services)
        self._forward = forward
        self._spill_files: dict[int, SpillFile[int]] = {}

    @property
    def targets(self) -> dict[str, Role]:
        """Topics of the user's that the queue names, and what for; that to which it forwards as well (C81)."""
        return {**super().targets, **({} if self._forward is None else {self._forward: Role.FORWARDED})}

    def _takes_up(self) -> bool:
        found = None if self._forward is None else self.shapes.get(self._forward)
        machines = [runner.machine for runner in self.runners.values() if isinstance(runner.machine, QueueMachine)]
        if found is not None and any(machine.forwards_over != found.partitions for machine in machines):
            return True
        return super()._takes_up()

    def records(self) -> MutableMapping[bytes, bytes]:
        """Something empty that takes what a changelog partition holds; on disk, if that is where state may be."""
        return Spill(self._directory) if self.config.state == "disk" else {}

    async def release(self, partition: int) -> None:
        """Give a shard up, and its spill store."""
        await super().release(partition)
        spill_store = self._spill_files.pop(partition, None)
        if spill_store is not None:
            spill_store.close()

    @property
    def _directory(self) -> Path:
        assert self.app is not None
        return Path(str(self.app.conf.tabledir))

    def _segments(self, partition: int) -> Segments:
        if self.config.state == "memory":
            return Segments()
        spill_store = self._spill_files[partition] = SpillFile(self._directory)
        return Segments(spill_store, self.config.state_memory << 20)

    def unwritten(self, machine: Machine, noted: dict[str, Any] | None) -> Unwritten | None:
        """What finds deliveries that the owner before journaled and did not write (C55)."""
        since = noted_of(noted)
        if since is None:
            return None
        assert isinstance(machine, QueueMachine)
        partition, reader, topics = machine.shard.settings.partition, self.services.aside_reader, self.deliveries
        return lambda now_ms: machine.unwritten(since, lambda: read_written(reader, since, topics, partition), now_ms)

    def machine(self, partition: int, epoch: int, changelog: Changelog, positions: dict[TP, int]) -> QueueMachine:
        """Build a shard from its changelog."""
        settings = self.config.settings(self.name, partition, self.partitions)
        restored = restore(changelog.items(), self._segments(partition))
        for tp, offset in positions.items():
            if tp.topic != names.commands(self.name):
                source = restored.state.sources[restored.state.sources.number(tp.topic, tp.partition)]
                source.next_offset = max(source.next_offset, offset)
        output = QueueOutput(self.name, partition, epoch, settings.dead_letter_topic, self.letter_partitions())
        payloads = PayloadWindow(self.services.log_reader, self.config.payload_window << 20, self.services.aside_reader)
        target = self.config.publish_target(self.name)
        found = None if self._forward is None else self.shapes.get(self._forward)
        return QueueMachine(
            settings,
            restored,
            epoch,
            payloads,
            output,
            target,
            self.config.ordering == "total",
            self.rule(epoch, changelog),
            None if self._forward is None or found is None else Forwarding(self.name, self._forward, found.partitions),
            self.services.clock.now_ms,
        )
