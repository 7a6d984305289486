"""A feeder: reads the underlying topics of one shard by itself, where Faust's assignment does not fit.

Faust gives a worker the same partition number of every topic that it subscribed to at start. A queue in total order
needs all partitions at one shard; one over a pattern of topics needs topics that are created later; and one whose topic
is missing, or has got more partitions, needs what it can have (C52, C81). For these, the shard's owner assigns itself
the partitions that are the shard's: partition `q` belongs to shard `q % shards`.
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
from lapse.runtime.shard.inbox import Reader
from lapse.runtime.shard.runner import Runner
from lapse.runtime.topics.topic_id import TopicIds
from lapse.runtime.tp import TP
from lapse.runtime.watch import end_process

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_POLL_MS: Final = 100
_POLL_RECORDS: Final = 5_000


class Feeder:
    """Feeds one shard, and stands before Faust's consumer, which still brings its commands.

    Args:
        settings: aiokafka's: brokers and security.
        topics: underlying topics by name.
        pattern: underlying topics by pattern; whole names match.
        shard: number of the shard.
        shards: how many the queue has.
        commands: Faust's consumer.
        topic_ids: tells topics apart that bear one name.
        most: partitions from this number on belong to no shard; None = all do.
        own_commands: where the shard's commands stand, if it reads those by itself, too: Faust does not go back to
            where a shard is that is taken over anew without a rebalance. None = Faust brings them.
        waits: it reads no underlying partition: the shard waits for others (C81).
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
        """Connect, and say which partitions are the shard's now."""
        self._consumer = AIOKafkaConsumer(**self._settings)
        await self._consumer.start()
        return await self._partitions()

    def begin(self, runner: Runner, positions: Mapping[TP, int]) -> None:
        """Read on from `positions`, and take in partitions that come later from their beginning."""
        self._assign(positions)
        self._task = asyncio.create_task(self._run(runner), name=f"feeder {runner.entity}-{runner.partition}")

    def reads(self, tp: TP) -> bool:
        """Whether it brings this partition, and not Faust, which may still read what the settings name no more."""
        return self._own_commands is not None or tp.topic in self._topics or tp in self._assigned

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
                        runner.reached(part, await self._consumer.position(TopicPartition(*part)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # crash-only
            end_process(f"{runner.entity}, partition {runner.partition}: reading its topics: {error}", error)

    async def _look(self, runner: Runner) -> None:
        """Take in topics and partitions that were created meanwhile (Q2)."""
        if time.monotonic() - self._looked_at < _LOOK_EVERY_S:
            return
        try:
            there = await self._partitions(once=True)
        except KafkaException as error:  # what is read goes on; the next look may find the brokers
            logger.debug("%s, partition %d: cannot look for its topics: %s", runner.entity, runner.partition, error)
            return
        if self._own_commands is not None:
            there.append(self._own_commands)
        gone = self._present.keys() - set(there)
        new = [tp for tp in there if tp not in self._present]
        if not (gone or new):
            return
        # Asked for what is gone, the consumer would complain ten times a second (C52).
        self._absent |= gone
        ids = await self._topic_ids.of(tp.topic for tp in new)
        begin: dict[TP, int] = {}
        for tp in new:
            # One that was created again is not what the shard knows; the log watch has the shard taken over anew.
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
        """What is read: what is assigned, as far as it is there."""
        return self._assigned if not self._absent else {tp: None for tp in self._assigned if tp not in self._absent}

    async def _partitions(self, *, once: bool = False) -> list[TP]:
        """The partitions that are the shard's; see `TopicIds.shapes`."""
        self._looked_at = time.monotonic()
        if self._waits:
            return []
        shapes = await self._topic_ids.shapes(self._topics, once=once)
        there = {name: shape.partitions for name, shape in shapes.items()}
        if self._pattern is not None:
            # All shards of a worker that look for topics share one look at the cluster.
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
        # A new assignment forgets the positions of the old one.
        present = self._present
        self._consumer.assign([TopicPartition(*tp) for tp in present])
        for tp in present:
            self._consumer.seek(TopicPartition(*tp), self._next[tp])

    # What a runner tells the consumer that feeds it

    def received(self, reader: object, tp: TP, offset: int) -> None:
        """The shard has, and wants to go on at, `offset`."""
        if tp in self._assigned:
            self._next[tp] = offset
        else:
            self._commands.received(reader, tp, offset)

    def finished(self, reader: object, offsets: Mapping[TP, int]) -> None:
        """What the shard has made durable; only the commands are committed, the rest is in the journal."""
        sources = self._assigned.keys() - {self._own_commands}
        self._commands.finished(reader, {tp: offset for tp, offset in offsets.items() if tp not in sources})

    def saturate(self, reader: object, tp: TP) -> None:
        """The shard cannot keep up: leave a partition out of the fetch."""
        if tp in self._assigned:
            self._saturated.add(tp)
        else:
            self._commands.saturate(reader, tp)

    def relieve(self, reader: object, tp: TP | None = None) -> None:
        """The shard has caught up, with one partition or with all."""
        if tp is None:
            self._saturated.clear()
            self._commands.relieve(reader)
        else:
            self._saturated.discard(tp)

    def forget(self, reader: object) -> None:
        """The shard belongs to another worker now."""
        self._commands.forget(reader)

    async def next_offset(self, tp: TP) -> int:
        """What will be read next, markers behind the last record counted as read."""
        if tp not in self._assigned:
            return await self._commands.next_offset(tp)
        if tp in self._absent:
            return -1
        assert self._consumer is not None
        return int(await self._consumer.position(TopicPartition(*tp)))
