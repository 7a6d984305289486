"""A feeder: reads the underlying topics of one shard with a consumer of its own, if Faust's assignment does not fit.

Faust assigns a worker the same partition number of every topic that it subscribed to at start. A shard of a queue in
total order needs all partitions. A queue over a pattern needs topics that are created later. An entity whose topic is
missing, or got more partitions, needs those that exist (C52, C81). For these, the shard's owner assigns itself the
shard's partitions: partition `q` belongs to shard `q % shards`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import KafkaException

from lapse.runtime.kafka.bounded_close import bounded_close
from lapse.runtime.kafka.offsets_asked import next_read
from lapse.runtime.shard.reader import Reader
from lapse.runtime.shard.runner import Runner
from lapse.runtime.shard.waiting_sizes import WorkerBytes
from lapse.runtime.topics.topic_id import TopicIds
from lapse.runtime.tp import TP
from lapse.runtime.watch import end_process

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_POLL_MS: Final = 100
_POLL_RECORDS: Final = 5_000


class Feeder:
    """Feeds one shard. Faust's consumer, to which it passes calls on, still reads the shard's commands.

    Args:
        settings: aiokafka's settings: brokers and security.
        topics: names of underlying topics.
        pattern: pattern of underlying topics, which matches whole names; None without one.
        shard: the shard's number.
        shards: the number of shards.
        commands: Faust's consumer.
        topic_ids: distinguishes topics with the same name.
        most: partitions from this number on are not read; None if all of the shard's are.
        own_commands: the partition of the shard's commands, if the feeder reads it too. Faust would not go back to the
            position of a shard that is taken over anew without a rebalance. None if Faust reads it.
        waits: whether to read no underlying partition, because the shard waits for older shards (C81).
    """

    def __init__(
        self,
        settings: dict[str, Any],
        topics: tuple[str, ...],
        pattern: re.Pattern[str] | None,
        shard: int,
        shards: int,
        commands: Reader,
        topic_ids: TopicIds,
        most: int | None = None,
        own_commands: TP | None = None,
        waits: bool = False,
    ) -> None:
        self._settings = {
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
            "max_partition_fetch_bytes": 4 << 20,
            "fetch_max_wait_ms": 100,
            "metadata_max_age_ms": int(_LOOK_EVERY_S * 1000),
            **settings,
        }
        self._topics = topics
        self._pattern = pattern
        self._shard = shard
        self._shards = shards
        self._commands = commands
        self._topic_ids = topic_ids
        self._most = most
        self._own_commands = own_commands
        self._waits = waits
        self._absent: set[TP] = set()
        self._consumer: AIOKafkaConsumer | None = None
        self._assigned: dict[TP, None] = {}
        self._next: dict[TP, int] = {}
        self._saturated: set[TP] = set()
        self._task: asyncio.Task[None] | None = None
        self._looked_at = 0.0

    async def connect(self) -> list[TP]:
        """Connect; return the partitions that belong to the shard now."""
        self._consumer = AIOKafkaConsumer(**self._settings)
        await self._consumer.start()
        return await self._partitions()

    def begin(self, runner: Runner, positions: Mapping[TP, int]) -> None:
        """Read from `positions` on, and read partitions that are added later from their beginning."""
        self._assign(positions)
        self._task = asyncio.create_task(self._run(runner), name=f"feeder {runner.entity}-{runner.partition}")

    def reads(self, tp: TP) -> bool:
        """Return whether the feeder reads this partition.

        Faust may still read topics that the settings no longer name.
        """
        return self._own_commands is not None or tp.topic in self._topics or tp in self._assigned

    @property
    def reads_all(self) -> bool:
        """Whether it reads every partition of the shard, also those that are added later."""
        return self._most is None

    async def stop(self) -> None:
        """Disconnect."""
        if self._task is not None:
            self._task.cancel()
        if self._consumer is not None:
            await bounded_close(self._consumer)

    async def _run(self, runner: Runner) -> None:
        try:
            while True:
                await self._look(runner)
                assert self._consumer is not None
                active = [TopicPartition(*tp) for tp in self._present if tp not in self._saturated]
                if not active:
                    await asyncio.sleep(_POLL_MS / 1000)
                    continue
                got = await self._consumer.getmany(*active, timeout_ms=_POLL_MS, max_records=_POLL_RECORDS)
                for tp, records in got.items():
                    runner.receive(TP(tp.topic, tp.partition), records)
                for part in runner.merging:
                    if part in self._present and part not in self._saturated:
                        runner.reached(part, next_read(self._consumer, TopicPartition(*part)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # crash-only
            end_process(f"{runner.entity}, partition {runner.partition}: reading its topics: {error}", error)

    async def _look(self, runner: Runner) -> None:
        """Add topics and partitions that were created meanwhile (Q2)."""
        if time.monotonic() - self._looked_at < _LOOK_EVERY_S:
            return
        try:
            there = await self._partitions(once=True)
        except KafkaException as error:  # reading goes on, and the next look may succeed
            logger.debug("%s, partition %d: cannot look for its topics: %s", runner.entity, runner.partition, error)
            return
        if self._own_commands is not None:
            there.append(self._own_commands)
        gone = self._present.keys() - set(there)
        new = [tp for tp in there if tp not in self._present]
        if not (gone or new):
            return
        # The consumer would log missing topics ten times a second (C52).
        self._absent |= gone
        ids = await self._topic_ids.of(tp.topic for tp in new)
        begin: dict[TP, int] = {}
        for tp in new:
            # Leave out a topic that was created again. The log watch then has the shard taken over anew.
            if tp.topic not in ids or runner.topics.is_another(tp.topic, ids[tp.topic]):
                continue
            if tp in self._absent:
                self._absent.discard(tp)
                begin[tp] = self._next[tp]
            else:
                begin[tp] = runner.adopt(tp, ids[tp.topic])
            logger.info("%s, partition %d: takes in %s:%d", runner.entity, runner.partition, tp.topic, tp.partition)
        if gone or begin:
            self._assign(begin)

    @property
    def _present(self) -> dict[TP, None]:
        """The assigned partitions that exist."""
        return self._assigned if not self._absent else {tp: None for tp in self._assigned if tp not in self._absent}

    async def _partitions(self, *, once: bool = False) -> list[TP]:
        """Return the partitions that belong to the shard; for `once` see `TopicIds.shapes`."""
        self._looked_at = time.monotonic()
        if self._waits:
            return []
        shapes = await self._topic_ids.shapes(self._topics, once=once)
        there = {name: shape.partitions for name, shape in shapes.items()}
        if self._pattern is not None:
            # All shards of a worker that look for topics share the result.
            listed = await self._topic_ids.listed(_LOOK_EVERY_S / 2)
            there |= {name: partitions for name, partitions in listed.items() if self._pattern.fullmatch(name)}
        most = math.inf if self._most is None else self._most
        return [
            TP(name, number)
            for name in sorted(there)
            for number in range(self._shard, there[name], self._shards)
            if number < most
        ]

    def _assign(self, positions: Mapping[TP, int]) -> None:
        assert self._consumer is not None
        self._next.update(positions)
        self._assigned.update(dict.fromkeys(positions))
        # A new assignment loses the positions of the old one.
        present = self._present
        self._consumer.assign([TopicPartition(*tp) for tp in present])
        for tp in present:
            self._consumer.seek(TopicPartition(*tp), self._next[tp])

    # Calls of the runner

    @property
    def waiting(self) -> WorkerBytes:
        """How many bytes wait for all shards of the worker."""
        return self._commands.waiting

    def received(self, reader: object, tp: TP, offset: int) -> None:
        """Note that the shard has received everything below `offset`, and reads on from there."""
        if tp in self._assigned:
            self._next[tp] = offset
        else:
            self._commands.received(reader, tp, offset)

    def finished(self, reader: object, offsets: Mapping[TP, int]) -> None:
        """Pass on what the shard has made durable.

        Only commands are committed, since the journal has the other positions.
        """
        sources = self._assigned.keys() - {self._own_commands}
        self._commands.finished(reader, {tp: offset for tp, offset in offsets.items() if tp not in sources})

    def saturate(self, reader: object, tp: TP) -> None:
        """Leave a partition out of the fetch, because the shard cannot keep up with it."""
        if tp in self._assigned:
            self._saturated.add(tp)
        else:
            self._commands.saturate(reader, tp)

    def fetch_caught_up(self, reader: object, tp: TP | None = None) -> None:
        """Fetch one partition, or all, because the shard has caught up."""
        if tp is None:
            self._saturated.clear()
            self._commands.fetch_caught_up(reader)
        elif tp in self._assigned:
            self._saturated.discard(tp)
        else:
            self._commands.fetch_caught_up(reader, tp)

    def forget(self, reader: object) -> None:
        """Forget the shard, which is given up."""
        self._commands.forget(reader)

    async def next_offset(self, tp: TP) -> int:
        """Return the offset that will be read next, behind transaction markers that were read; -1 if unknown."""
        if tp not in self._assigned:
            return await self._commands.next_offset(tp)
        if tp in self._absent:
            return -1
        assert self._consumer is not None
        return next_read(self._consumer, TopicPartition(*tp))
