"""Batch transport: one Faust event per partition batch instead of one per message.

Faust spends four asyncio tasks on every message; a batch costs that once. Changelog partitions stay on Faust's own
path. Three more things are put right here, for the partitions of shards:

- what is committed is what the shards have made durable, not what Faust counts as acknowledged;
- after a rebalance, reading goes on where the shards' journals say, not at the committed offset;
- what a shard cannot keep up with is left out of the fetch until it has caught up, and so is what a shard will read
  that is not restored yet: the others need not wait for it.

Any number of queues read one topic, so each of these is the answer of several shards: the one that is furthest behind
decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

import aiokafka
from aiokafka.errors import CommitFailedError, IllegalStateError
from aiokafka.structs import OffsetAndMetadata
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage

from lapse.runtime.kafka import fetcher  # noqa: F401  # every consumer of the process fetches as it says

FETCH_MAX_WAIT_MS: Final = 500

_COMMIT_S: Final = 2.0
"""After so long without success it is looked which topics there are; the next commit comes within a second."""


class Readers:
    """How far the shards are that read one partition; the one that is furthest behind decides."""

    __slots__ = ("finished", "received", "saturated")

    def __init__(self) -> None:
        self.received: dict[object, int] = {}
        self.finished: dict[object, int] = {}
        self.saturated: set[object] = set()


class ConsumerThread(driver.AIOKafkaConsumerThread):
    """Faust's consumer thread, reading committed records only (C41)."""

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        created = super()._create_worker_consumer(transport)
        # Faust passes these two as constants; aiokafka reads them when the consumer starts.
        created._isolation_level = "read_committed"
        created._fetch_max_wait_ms = FETCH_MAX_WAIT_MS
        return created

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        """Commit what is still assigned, of topics that are there.

        Faust crashes where nothing of it is: what is read changed (a queue was deleted) while it was about to commit.
        For a topic that was deleted aiokafka would try again for ever, and no other would be committed (C52). And Faust
        looks up the whole assignment for each partition.
        """
        assigned, asked = self.assignment(), self._ensure_consumer()
        known = asked._client.cluster.partitions_for_topic
        there = {
            driver.ensure_aiokafka_TP(tp): OffsetAndMetadata(offset, "")
            for tp, offset in offsets.items()
            if tp in assigned and known(tp.topic)
        }
        if not there:
            return False
        try:
            async with asyncio.timeout(_COMMIT_S):
                await asked.commit(there)
        except TimeoutError:
            await asked._client.force_metadata_update()
            return False
        except CommitFailedError:
            return False  # the group has rebalanced; what the shards have made durable is in their journals
        except Exception as error:  # noqa: BLE001  # crash-only, as Faust's
            await self.crash(error)
            return False
        self.tp_last_committed_at.update(dict.fromkeys(there, time.monotonic()))
        return True

    async def leave(self) -> None:
        """Leave the group."""
        await self.call_thread(self._ensure_consumer().unsubscribe)

    async def seek_all(self, offsets: Mapping[TP, int]) -> set[TP]:
        """Read on at these offsets, where the partitions are assigned; returns those that are."""

        async def seek() -> set[TP]:
            asked, assigned = self._ensure_consumer(), self.assignment()
            for tp in offsets.keys() & assigned:
                asked.seek(driver.ensure_aiokafka_TP(tp), offsets[tp])
                asked.resume(driver.ensure_aiokafka_TP(tp))
            return offsets.keys() & assigned

        done: set[TP] = await self.call_thread(seek)
        return done

    async def leave_out(self, tps: Iterable[TP]) -> None:
        """Fetch these partitions no more, until they are sought."""

        async def pause() -> None:
            asked = self._ensure_consumer()
            left_out = [driver.ensure_aiokafka_TP(tp) for tp in set(tps) & self.assignment()]
            asked.pause(*left_out)
            for tp in left_out:
                asked.seek(tp, 0)  # else it would be looked up what is committed

        await self.call_thread(pause)

    @property
    def taken(self) -> int:
        """How often records were taken."""
        fetching = None if self._consumer is None else self._consumer._fetcher
        return 0 if fetching is None else int(fetching.taken)

    async def stands_at(self, tp: TP) -> tuple[int, int]:
        """What will be read next from a partition, and how often records were taken by then.

        Raises:
            IllegalStateError: the partition is not assigned.
        """

        async def asked() -> tuple[int, int]:
            where = int(await self._ensure_consumer().position(tp))
            return where, self.taken  # in this order: what was taken meanwhile makes the answer void, not wrong

        found: tuple[int, int] = await self.call_thread(asked)
        return found


class BatchConsumer(driver.Consumer):
    """Faust's aiokafka consumer, handing over whole batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.saturated: set[TP] = set()
        self.relieved = asyncio.Event()
        self._readers: dict[TP, Readers] = {}
        self._handed = 0
        """As `taken` of the consumer thread: what was taken by then is with the shards, or was sought again."""
        self._held: dict[TP, set[object]] = {}
        """Partitions and the shards that will read them once they are restored."""
        self._to_commit: set[TP] = set()
        """Partitions in which more was made durable since the last commit."""
        self._to_seek: set[TP] = set()
        """Partitions that a shard reads which was restored after the flow began."""
        self.flows = asyncio.Event()
        """Whether what is read comes to the shards, or nobody is to wait for that any more."""

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def member(self) -> str:
        """Which member of the group this is; empty while it is none."""
        thread: Any = self._thread
        coordinator = None if thread is None or thread._consumer is None else thread._consumer._coordinator
        return "" if coordinator is None else str(getattr(coordinator, "member_id", ""))

    async def leave(self) -> None:
        """Read nothing any more, and leave the group: what has the same names later is for others (C4)."""
        self.stop_flow()
        thread: Any = self._thread
        await thread.leave()

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, ConsumerMessage]]:  # noqa: ASYNC109  # Faust's
        """Fetch, and yield one message per partition whose value is the list of its records."""
        generation = self.app.consumer_generation_id
        if self._to_seek and self.flow_active:
            await self._seek_shards(self._to_seek)
        records, active = await self._wait_next_records(timeout)
        thread: Any = self._thread
        taken = thread.taken
        if records is None or self.should_stop:
            return
        if not self.flow_active:
            await self.perform_seek()
            self._handed = taken
            return
        for tp, batch in records.items():
            # Between two partitions others run: the flow may have stopped, the group rebalanced.
            if not self.flow_active:
                return
            if self.app.consumer_generation_id != generation:
                # The fetch began before the rebalance and ended after it: perhaps behind the seek that follows one. The
                # consumer stands behind what is dropped here, so it has to be told again where the shards are.
                await self.perform_seek()
                self._handed = taken
                return
            if not batch:
                continue
            if self._is_changelog_tp(tp):
                for record in batch:
                    yield tp, self._to_message(tp, record)
            elif active is None or tp in active or tp in self._buffered_partitions:
                yield tp, self._to_batch(tp, batch, generation)
        self._handed = taken

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:
        """As Faust's, of a record without topic and partition."""
        return ConsumerMessage(
            tp.topic,
            tp.partition,
            record.offset,
            record.timestamp / 1000.0,
            record.timestamp_type,
            record.headers,
            record.key,
            record.value,
            None,
            0,
            0,
            tp,
            generation_id=self.app.consumer_generation_id,
        )

    def _to_batch(self, tp: TP, records: list[Any], generation: int) -> ConsumerMessage:
        last = records[-1]
        return ConsumerMessage(
            tp.topic,
            tp.partition,
            last.offset,
            last.timestamp / 1000.0,
            last.timestamp_type,
            (),  # type: ignore[arg-type]  # Faust's annotation knows no empty tuple
            None,
            records,  # type: ignore[arg-type]  # the point of this class: all records of the batch
            None,
            0,
            0,
            tp,
            generation_id=generation,
        )

    def _get_active_partitions(self) -> set[TP]:
        active = self._partitions_in_use()
        return active - self.saturated - self._held.keys() if self.saturated or self._held else active

    def _partitions_in_use(self) -> set[TP]:
        """What Faust calls active; without its look at the type of each."""
        known: set[TP] | None = self._active_partitions
        return super()._get_active_partitions() if known is None else known

    def pause_partitions(self, tps: Iterable[TP]) -> None:
        """As Faust's; spelled out because `_get_active_partitions` hands out a copy here."""
        self._partitions_in_use().difference_update(tps)
        self._paused_partitions.update(tps)

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """As Faust's; see `pause_partitions`."""
        self._partitions_in_use().update(tps)
        self._paused_partitions.difference_update(tps)
        self.relieved.set()

    async def _wait_next_records(self, timeout: float) -> Any:  # noqa: ASYNC109  # Faust's signature
        if not self.flow_active:
            await self.wait(self.can_resume_flow)  # type: ignore[arg-type]  # Faust's own
        waiting = self.saturated or self._held
        if not self._get_active_partitions():
            # Faust would sleep a whole second with nothing to fetch. That is so after each rebalance, too: the flow
            # begins a moment before the partitions are resumed, also where it was waited for here (C90).
            self.relieved.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.relieved.wait(), timeout)
            return {}, set()
        return await super()._wait_next_records(timeout if not waiting else min(timeout, 0.02))

    def received(self, reader: object, tp: TP, offset: int) -> None:
        """A shard has, and wants to go on at, `offset`."""
        self._readers.setdefault(tp, Readers()).received[reader] = offset

    def finished(self, reader: object, offsets: Mapping[TP, int]) -> None:
        """What a shard has made durable: everything before these offsets."""
        for tp, offset in offsets.items():
            self._readers.setdefault(tp, Readers()).finished[reader] = offset
        self._to_commit.update(offsets)

    def saturate(self, reader: object, tp: TP) -> None:
        """A shard cannot keep up: leave the partition out of the fetch."""
        self._readers.setdefault(tp, Readers()).saturated.add(reader)
        self.saturated.add(tp)

    def relieve(self, reader: object, tp: TP | None = None) -> None:
        """A shard has caught up, with one partition or with all: fetch it again, unless others are behind."""
        for one in self.saturated.copy() if tp is None else self.saturated & {tp}:
            saturated = self._readers[one].saturated
            saturated.discard(reader)
            if not saturated:
                self.saturated.discard(one)
                self.relieved.set()

    def hold(self, reader: object, tps: Iterable[TP]) -> None:
        """Leave partitions out of the fetch until every shard that reads them is restored.

        Until every one: what was fetched for others before could come to the last one as if it were what it misses.
        """
        for tp in tps:
            self._held.setdefault(tp, set()).add(reader)

    def let_go(self, reader: object, tps: Iterable[TP]) -> None:
        """Fetch partitions from where their shards are, once no other shard is waited for."""
        for tp in self._held.keys() & set(tps):
            self._held[tp].discard(reader)
            if not self._held[tp]:
                del self._held[tp]
                self._to_seek.add(tp)
                self.relieved.set()

    async def leave_out(self, tps: Iterable[TP]) -> None:
        """Fetch these partitions no more, and none that are held: a request that names thousands is dear."""
        thread: Any = self._thread
        await thread.leave_out(self._held.keys() | set(tps))

    def resume_flow(self) -> None:
        """As Faust's."""
        super().resume_flow()
        self.flows.set()

    def forget(self, reader: object) -> None:
        """A shard belongs to another worker now."""
        self.relieve(reader)
        for tp, readers in list(self._readers.items()):
            readers.received.pop(reader, None)
            if readers.finished.pop(reader, None) is not None:
                self._to_commit.add(tp)
            if not readers.received:
                del self._readers[tp]

    async def perform_seek(self) -> None:
        """Go on where the shards are. Those that are not restored yet are held, and sought when they are.

        What is committed is of no use, and Faust would ask for it partition by partition.
        """
        await self._seek_shards(self._readers)

    async def _seek_shards(self, tps: Iterable[TP]) -> None:
        """Read these partitions from where the shards are that read them."""
        known = ((tp, self._readers[tp].received) for tp in tps if tp in self._readers)
        offsets = {tp: min(received.values()) for tp, received in known if received}
        self._to_seek -= set(tps)
        thread: Any = self._thread
        try:
            sought = await thread.seek_all(offsets)
        except (AssertionError, IllegalStateError):
            return  # aiokafka has this assigned no more: the group rebalances once more, and seeks at the end of that
        self._read_offset.update(dict.fromkeys(sought))

    def _is_changelog_tp(self, tp: TP) -> bool:
        """As Faust's, which makes a set of all changelogs each time."""
        tables: Any = self.app.tables
        return tp.topic in tables._changelogs

    async def _commit_offsets(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        """As Faust's, which draws a table of all partitions for its log. `_commit` leaves out what is not assigned."""
        done: bool = await self._commit(offsets)
        self._committed_offset.update(offsets)
        self.app.monitor.on_tp_commit(dict(offsets))
        return done

    async def verify_all_partitions_active(self) -> None:
        """Nothing: Faust would look at partition after partition, every few seconds, to log which had no news."""

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """Nothing: gaps are counted by the shards."""

    def ack(self, message: Any) -> bool:
        """Nothing to count: a shard says itself what is finished."""
        message.acked = True
        self._unacked_messages.discard(message)
        return True

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        if topics is not None:
            return iter([tp for tp in self._readers if tp in topics or tp.topic in topics])
        changed, self._to_commit = self._to_commit, set()
        return iter([tp for tp in changed if tp in self._readers])

    def _new_offset(self, tp: TP) -> int | None:
        readers = self._readers.get(tp)
        return min(readers.finished.values()) if readers is not None and readers.finished else None

    async def next_offset(self, tp: TP) -> int:
        """What the consumer will read next from a partition, markers behind its last record counted as read.

        Returns:
            -1 while that is not known: the group rebalances, and nothing is assigned; or records were taken that are
            not handed over yet, and may be dropped and read again.
        """
        if tp in self._to_seek or tp in self._held:
            return -1
        thread: Any = self._thread
        try:
            where, taken = await thread.stands_at(tp)
        except IllegalStateError:
            return -1
        return where if taken <= self._handed else -1


class BatchTransport(driver.Transport):
    """Faust's aiokafka transport with the batch consumer."""

    Consumer: ClassVar[type[BatchConsumer]] = BatchConsumer
