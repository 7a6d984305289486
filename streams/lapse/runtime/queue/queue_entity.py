"""The entity of a queue on a worker."""

from __future__ import annotations

import logging
from collections.abc import Collection, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiokafka.errors import TopicAuthorizationFailedError

from lapse.config import Config, QueueConfig
from lapse.core.queue.journal.inherited import inherit
from lapse.core.queue.journal.restored import restoring
from lapse.core.queue.segments.spill import Segments
from lapse.core.shard.changelog import Changelog, Items
from lapse.protocol import topic as names
from lapse.runtime.event_loop_turns import in_turns
from lapse.runtime.journal.spill import Spill
from lapse.runtime.journal.spill_file import SpillFile
from lapse.runtime.kafka.fetched_rows import FetchedRows
from lapse.runtime.kafka.lean_service import table_directory
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.queue.forwarded_copies import found_in
from lapse.runtime.queue.forwarding import Forwarding
from lapse.runtime.queue.growing import Growing
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.unwritten import Noted, Written, parse_noted, read_written
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.shard.served_entity import Entity
from lapse.runtime.shard.services import Services
from lapse.runtime.shard.taken_over import Unwritten
from lapse.runtime.topics.wanted import Role
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)


class QueueEntity(Entity):
    """A queue's table and shards on this worker.

    Args:
        name: name of the queue.
        config: its settings.
        partitions: its number of shards.
        services: the objects that the worker's entities share.
        forward: topic to which it forwards; None if it does not (Q21).
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
        self.forward = forward
        self._spill_files: dict[int, SpillFile[int]] = {}
        self._growing = Growing(name, services)

    @property
    def targets(self) -> dict[str, Role]:
        """The user's topics that the queue names, with their roles, including the one to which it forwards (C81)."""
        return {**super().targets, **({} if self.forward is None else {self.forward: Role.FORWARDED})}

    def use_config(self, whole: Config) -> None:
        """Use the settings of this configuration.

        Where the queue forwards to may depend on another queue's settings.
        """
        super().use_config(whole)
        self.forward = whole.forward_topic(self.name)

    def _needs_take_over(self) -> bool:
        found = None if self.forward is None else self.shapes.get(self.forward)
        machines = [runner.machine for runner in self.runners.values() if isinstance(runner.machine, QueueMachine)]
        if found is not None and any(machine.forwarder.target_partitions != found.partitions for machine in machines):
            return True
        left_out = bool(self.added) and any(not feeder.reads_all for feeder in self._feeders.values())
        return left_out or super()._needs_take_over()

    # More shards (C81)

    def first_records(self, partition: int) -> Items:
        """Return the first records of a new shard's journal."""
        return [] if self.has_own_readers else self._growing.first_records(partition, self.partitions)

    async def look_at_size(self, least: int = 0, *, certain: bool = False) -> None:
        """Find out whether the queue has more shards by now; see `Growing.size`."""
        assert self.app is not None
        if self.has_own_readers:
            return
        changelog = self._store().changelog_topic
        own = [names.commands(self.name), names.events(self.name), *self.deliveries, changelog]
        count = await self._growing.size(own, self.partitions, least, certain=certain)
        if count != self.partitions:
            for producer in (self.services.output_producer, self.services.journal_producer):
                await producer.learn_size(own, count)
            self.partitions = count

    async def has_new_shards(self) -> bool:
        """Return whether shards must be taken over anew, because there are more or because a wait is over."""
        if self.has_own_readers:
            return False
        if self.added:
            await self.look_at_size()
        if self._is_open_now() or any(self._growing.has_new_shards(shard, self.partitions) for shard in self.runners):
            return True
        for shard, runner in list(self.runners.items()):
            assert isinstance(runner.machine, QueueMachine)
            if self._growing.is_drained(shard, runner.machine.shard.state.first_occupied()):
                return True
            if self._growing.waits(shard):
                opened = await self._growing.opened(self._store(), shard, self.partitions, self._source_keys(shard))
                if opened is not None:
                    return True
        return False

    async def renew(self) -> None:
        """Take over all shards of this worker anew. If there are more shards now, the group assigns the new ones."""
        grown = any(self._growing.has_new_shards(shard, self.partitions) for shard in self.runners)
        if grown:
            logger.warning("%s: has %d shards from now on", self.name, self.partitions)
        await super().renew()
        if self._is_open_now():
            self._store().early.clear()
            await self._consumer().rejoin()
        elif grown:
            await self._consumer().look_again()

    def _is_open_now(self) -> bool:
        """Whether shards can be taken over that were assigned before all topics of the queue had their partition."""
        return any(shard < self.partitions for shard in self._store().early)

    async def _waits(self, partition: int, changelog: Changelog, known: dict[str, Any]) -> bool:
        note = None if self.has_own_readers else self._growing.note(changelog)
        if note is not None and note.shards > self.partitions:
            await self.look_at_size(note.shards, certain=True)
        if self.has_own_readers:
            return False
        source_keys = self._source_keys(partition)
        return await self._growing.take_over(self._store(), partition, self.partitions, changelog, known, source_keys)

    async def _begins(
        self, partition: int, epoch: int, changelog: Changelog, machine: Machine, known: dict[str, Any]
    ) -> None:
        assert isinstance(machine, QueueMachine)
        state = machine.shard.state
        for tp in self._begun[partition][1]:
            state.sources.number(*tp)  # without room nothing is read, and acknowledgments may name messages (Q13)
        if not self.has_own_readers:
            await self._growing.taken_over(
                self._store(),
                partition,
                epoch,
                self.partitions,
                changelog,
                known,
                state.first_occupied(),
                state.next_place,
            )

    def _source_keys(self, partition: int) -> list[str]:
        """Return the partitions of a shard, as its journal names them."""
        shapes = [(topic, self.shapes.get(topic)) for topic in self.config.underlying(self.name)]
        return [
            f"{topic}:{number}"
            for topic, shape in shapes
            for number in range(partition, self.partitions if shape is None else shape.partitions, self.partitions)
        ]

    def records(self) -> MutableMapping[bytes, bytes]:
        """Return an empty mapping for a changelog partition, on disk if the state may be there."""
        return Spill(self._directory) if self.config.state == "disk" else {}

    async def release(self, partition: int) -> None:
        """Give a shard up, and close its spill store."""
        await super().release(partition)
        self._close_spill(partition)

    async def abandon(self, partition: int) -> None:
        """Undo a take-over that has begun, and close the spill store."""
        await super().abandon(partition)
        self._close_spill(partition)

    def _close_spill(self, partition: int) -> None:
        spill_store = self._spill_files.pop(partition, None)
        if spill_store is not None:
            spill_store.close()

    @property
    def _directory(self) -> Path:
        assert self.app is not None
        return table_directory(self.app)

    def _segments(self, partition: int) -> Segments:
        if self.config.state == "memory":
            return Segments()
        spill_store = self._spill_files[partition] = SpillFile(self._directory)
        return Segments(spill_store, self.config.state_memory << 20)

    def unwritten(self, machine: Machine, noted: dict[str, Any] | None) -> Unwritten | None:
        """Return a function that finds deliveries that were journaled but not written; see `Entity.unwritten` (C55).

        It looks for forwarded messages as well (C38).
        """
        since = parse_noted(noted)
        assert isinstance(machine, QueueMachine)
        queue, partition = machine, machine.shard.settings.partition

        async def find(now_ms: int) -> list[tuple[Output | Packed, int]]:
            await queue.forwarder.look(self._found_in)
            if since is None:
                return []
            return await queue.unwritten(since, lambda: self._read_written(since, partition), now_ms)

        return find

    async def _read_written(self, since: Noted, partition: int) -> Written:
        """Read which deliveries were written since a step; nothing is known of them if the worker may not read them."""
        try:
            return await read_written(self.services.aside_reader, since, self.deliveries, partition)
        except TopicAuthorizationFailedError:
            logger.warning(
                "%s, partition %d: may not read its deliveries, so messages of those that were not written stay leased "
                "until their leases end. Have Read granted on its deliveries topics",
                self.name,
                partition,
            )
            return Written()

    async def _found_in(self, target: str, since_ms: int, stems: Collection[bytes]) -> set[bytes] | None:
        """Look for forwarded messages in their target; return None if the worker may not read it."""
        shape = (await self.services.topic_ids.shapes([target])).get(target)
        tps = [TP(target, number) for number in range(0 if shape is None else shape.partitions)]
        try:
            return await found_in(self.services.aside_reader, tps, since_ms, stems)
        except TopicAuthorizationFailedError:
            logger.warning("%s: may not read %s, so messages are forwarded to it once more", self.name, target)
            return None

    async def machine(self, partition: int, epoch: int, changelog: Changelog, positions: dict[TP, int]) -> QueueMachine:
        """Build a shard from its changelog."""
        settings = self.config.settings(self.name, partition, self.partitions)
        settings = replace(settings, waits=self._growing.waits(partition))
        restored = await in_turns(restoring(changelog.items(), self._segments(partition)))
        begun = self._growing.begun(partition)
        for tp, offset in positions.items():
            if tp.topic != names.commands(self.name):
                source = restored.state.sources[restored.state.sources.number(tp.topic, tp.partition)]
                source.next_offset, source.is_read = max(source.next_offset, offset), True
                source.first_offset = begun.get(f"{tp.topic}:{tp.partition}", 0)
        for found_elsewhere in self._growing.inherited(partition):
            inherit(restored.state, found_elsewhere)
        output = QueueOutput(self.name, partition, epoch, settings.dead_letter_topic, self.letter_partitions())
        output.ignores_lifetimes = not settings.expiration.enabled
        services, window_bytes = self.services, self.config.payload_window << 20
        payloads = PayloadWindow(services.log_reader, window_bytes, services.aside_reader, services.payloads)
        FetchedRows.wanted.update(self.config.underlying(self.name))
        target = self.config.publish_target(self.name)
        found = None if self.forward is None else self.shapes.get(self.forward)
        machine = QueueMachine(
            settings,
            restored,
            epoch,
            payloads,
            output,
            target,
            self.config.ordering == "total" or bool(self.added),
            self.rule(epoch, changelog),
            None if self.forward is None or found is None else Forwarding(self.name, self.forward, found.partitions),
            self.services.clock.now_ms,
        )
        machine.unread_records.waits_from = lambda: self._growing.waits_from(partition)
        return machine
