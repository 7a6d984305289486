"""The objects that the entities of one worker share: connections, the broker's clock, the watch."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Any, Final

from lapse.runtime.event_loop_turns import OneByOne
from lapse.runtime.journal.changelog_reader import ChangelogReader
from lapse.runtime.kafka.metadata import NeededTopics
from lapse.runtime.kafka.producer import BatchProducer
from lapse.runtime.letters.letter_writer import LetterWriter
from lapse.runtime.shard.log_reader import LogReader
from lapse.runtime.shard.step_turns import StepTurns
from lapse.runtime.shard.waiting_sizes import WorkerBytes
from lapse.runtime.timers.clock import WorkerClock
from lapse.runtime.topics.topic_id import TopicIds
from lapse.runtime.watch import Watch

_PAYLOAD_BYTES: Final = 512 << 20
"""From so many bytes of payloads in all windows on, each source keeps a megabyte (X7)."""

_PRE_READS: Final = 32
"""How many changelog topics are read ahead. Each needs a connection of its own."""


class Services:
    """The objects that the entities of one worker share.

    Attributes:
        connection: aiokafka's settings: brokers and security.
        journal_producer: writes changelogs.
        output_producer: writes everything else.
        letters: writes dead letters with `output_producer`.
        changelog_reader: reads changelogs at take-over.
        log_reader: reads payloads back.
        aside_reader: reads for other purposes, so that `log_reader` keeps its positions.
        topic_ids: distinguishes topics with the same name.
        clock: the broker's clock.
        watch: notices a frozen process.
        stands_by: whether this worker follows the changelogs of shards at other workers.
        reads_ahead: whether changelogs are read while the group waits for a dead member.
        worker_name: the worker's name in claims of epochs, for people.
        one_by_one: separates the turns of shards that are taken over together.
        step_turns: limits how many shards begin a step in one turn of the loop.
        payloads: counts the payloads that all shards keep in memory.
        needed: topics of shards that are taken over.
        versions: by entity, the version of the definition that counts from the next take-over on; no entry if
            `lapse.toml` decides. A shard's claim names it (C66).
    """

    def __init__(
        self,
        brokers: str,
        security: dict[str, Any],
        max_skew_ms: int,
        session_s: float,
        admin: dict[str, Any],
        stands_by: bool = False,
    ) -> None:
        self.connection: dict[str, Any] = {"bootstrap_servers": brokers, **security}
        self.clock = WorkerClock(max_skew_ms)
        self.one_by_one = OneByOne()
        self.step_turns = StepTurns()
        self.payloads = WorkerBytes(_PAYLOAD_BYTES)
        self.needed = NeededTopics()
        self.versions: dict[str, int] = {}
        self.journal_producer = BatchProducer(brokers, security, self.clock.stamp_ms, self.needed)
        self.output_producer = BatchProducer(brokers, security, self.clock.stamp_ms, self.needed)
        self.letters = LetterWriter(self.output_producer)
        self.changelog_reader = ChangelogReader(brokers, security, self.needed)
        self.topic_ids = TopicIds(admin)
        self.log_reader = LogReader(brokers, security, self.topic_ids, self.needed)
        self.aside_reader = LogReader(brokers, security, self.topic_ids, self.needed)
        self.watch = Watch(session_s)
        self.stands_by = stands_by
        self.reads_ahead = True
        self._pre_reads_left = _PRE_READS
        self.worker_name = f"{socket.gethostname()}:{os.getpid()}"

    def may_pre_read(self) -> bool:
        """Return whether one more changelog topic may be read ahead, and count it."""
        self._pre_reads_left -= 1
        return self.reads_ahead and self._pre_reads_left >= 0

    async def topics(self) -> set[str]:
        """Return every topic that is on the cluster now."""
        return set(await self.topic_ids.listed())

    def forget(self, topics: Iterable[str]) -> None:
        """Stop asking brokers for the metadata of these topics."""
        topics = set(topics)
        self.needed.forget(topics)
        self.journal_producer.forget(topics)
        self.output_producer.forget(topics)
        for reader in (self.changelog_reader, self.log_reader, self.aside_reader):
            reader.forget(topics)

    async def start(self) -> None:
        """Connect the producers."""
        await self.journal_producer.start()
        await self.output_producer.start()

    async def stop(self) -> None:
        """Disconnect producers and readers."""
        await self.aside_reader.stop()
        await self.log_reader.stop()
        await self.output_producer.stop()
        await self.journal_producer.stop()
