"""Batch transport: the records of a partition go to its shards at once, without an event of Faust's for each.

Faust spends four asyncio tasks, two queues and a stream on every message. Three more things are put right here:

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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

import faust
from aiokafka.errors import ConsumerStoppedError, IllegalStateError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from lapse.runtime.kafka.consumer_thread import ConsumerThread
from lapse.runtime.kafka.tenure import Tenures

_POLL_S: Final = 1.0
_AT_ONCE: Final = 100
"""The records of so many partitions are handed over without a turn for others."""


class Readers:
    """How far the shards are that read one partition; the one that is furthest behind decides."""

    __slots__ = ("finished", "received", "saturated")

    def __init__(self) -> None:
        self.received: dict[object, int] = {}
        self.finished: dict[object, int] = {}
        self.saturated: set[object] = set()


class BatchConsumer(driver.Consumer):
    """Faust's aiokafka consumer; it hands whole batches to the shards."""

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
        self.tenures = Tenures()
        self._steady: set[TP] = set()
        """Partitions that go on being read while the group rebalances."""
        self.balanced_count = 0
        """How often it became known what this worker reads."""
        self.goes_on = False
        """Whether shards go on working while the group rebalances: it knows this member still."""
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

    async def subscribe(self, topics: Iterable[str]) -> None:
        """As Faust's; a worker that has nothing to serve yet is in no group."""
        if topics := set(topics):
            await super().subscribe(topics)

    async def leave(self) -> None:
        """Read nothing any more, and leave the group: what has the same names later is for others (C4)."""
        self.stop_flow()
        thread: Any = self._thread
        await thread.leave()

    async def _drain_messages(self, fetcher: Any) -> None:
        """Faust's loop, as one that hands over what comes: the records of a partition are one call.

        Faust makes an event of each message, and has it pass two tasks, two queues and a stream.
        """
        try:
            while not (self.should_stop or fetcher.should_stop):
                await self.take_in(_POLL_S)
                await asyncio.sleep(0)
        except (asyncio.CancelledError, ConsumerStoppedError):
            if not self.app.should_stop:
                raise

    async def take_in(self, timeout_s: float) -> None:
        """Fetch, and hand the records of each partition to the shards that read it.

        Args:
            timeout_s: how long to wait for records, s.
        """
        if self._to_seek and self.flow_active:
            await self._seek_shards(self._to_seek)
        turn = self.tenures.turn
        records, active = await self._wait_next_records(timeout_s)
        thread: Any = self._thread
        app: Any = self.app
        taken = thread.taken
        if records is None or self.should_stop:
            return
        if not self.flow_active:
            await self.perform_seek()
            self._handed = taken
            return
        for number, (tp, batch) in enumerate(records.items(), 1):
            # Between two partitions others run: the flow may have stopped, the group rebalanced.
            if not await self._flows():
                return
            if batch and not self.tenures.covers(tp, turn):
                # The fetch began before the rebalance and ended after it: perhaps behind the seek that follows one. The
                # consumer stands behind what is dropped here, so it has to be told again where the shards are.
                self._to_seek.add(tp)
            elif batch and (active is None or tp in active):
                app.reading.hand_over(tp, batch)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        self._handed = taken

    async def _flows(self) -> bool:
        """Whether what comes may be handed over. Where the application holds it up, wait until it goes on, or stops."""
        if self.flow_active and not self.app.flow_control.is_active():
            await self.wait_first(self.app.flow_control.acquire(), self.suspend_flow.wait())
        return self.flow_active

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """The group rebalances: what is read is read on, unless the group has given it to others."""
        thread: Any = self._thread
        self.goes_on = self.flow_active and thread.is_member
        if self.goes_on:
            self._steady = self.assignment() - self._paused_partitions
            await self._on_partitions_revoked(revoked)
        else:
            self._steady = set()
            self.tenures.begin_all()
            await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """As Faust's; what comes is paused until its shards are restored."""
        self._steady &= assigned
        came = assigned - self._steady
        self.tenures.begin(came)
        self._paused_partitions.update(came)
        await super().on_partitions_assigned(assigned, generation_id)
        self.balanced_count += 1

    @property
    def is_balanced(self) -> bool:
        """Whether the group was balanced since the topics were chosen that are read."""
        thread: Any = self._thread
        return bool(thread.is_balanced)

    async def rejoin(self) -> None:
        """Have the group balanced once more: what this worker has given up waits for somebody."""
        thread: Any = self._thread
        await thread.call_thread(thread.rejoin)

    async def look_again(self) -> None:
        """Learn now how many partitions the topics have; the group is balanced anew if that has changed."""
        thread: Any = self._thread
        await thread.call_thread(thread.look_again)

    def subscribed(self) -> set[str]:
        """The topics that this worker reads."""
        thread: Any = self._thread
        return set(thread._ensure_consumer().subscription())

    def _get_active_partitions(self) -> set[TP]:
        active = self._partitions_in_use()
        return active - self.saturated - self._held.keys() if self.saturated or self._held else active

    def _partitions_in_use(self) -> set[TP]:
        """What Faust calls active; without its look at the type of each."""
        known: set[TP] | None = self._active_partitions
        return super()._get_active_partitions() if known is None else known

    def pause_partitions(self, tps: Iterable[TP]) -> None:
        """As Faust's, but for what is read on; spelled out because `_get_active_partitions` hands out a copy here."""
        tps = set(tps) - self._steady
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
        tps = list(tps)
        self.tenures.begin(tps)
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
        await self._seek_shards(self._readers.keys() - self._steady)

    async def _seek_shards(self, tps: Iterable[TP]) -> None:
        """Read these partitions from where the shards are that read them."""
        known = ((tp, self._readers[tp].received) for tp in tps if tp in self._readers)
        offsets = {tp: min(received.values()) for tp, received in known if received}
        self._to_seek -= set(tps)
        thread: Any = self._thread
        try:
            await thread.seek_all(offsets)
        except (AssertionError, IllegalStateError):
            return  # aiokafka has this assigned no more: the group rebalances once more, and seeks at the end of that

    async def _commit_offsets(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        """As Faust's, which draws a table of all partitions for its log. `_commit` leaves out what is not assigned."""
        done: bool = await self._commit(offsets)
        self._committed_offset.update(offsets)
        self.app.monitor.on_tp_commit(dict(offsets))
        return done

    async def verify_all_partitions_active(self) -> None:
        """Nothing: Faust would look at partition after partition, every few seconds, to log which had no news."""

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        if topics is not None:
            return iter([tp for tp in self._readers if tp in topics or tp.topic in topics])
        changed, self._to_commit = self._to_commit, set()
        return iter([tp for tp in changed if tp in self._readers])

    def _new_offset(self, tp: TP) -> int | None:
        readers = self._readers.get(tp)
        return min(readers.finished.values()) if readers is not None and readers.finished else None

    def behind(self) -> dict[str, int]:
        """How many records of each topic are in the log, as the last fetch said, and not yet durable in a shard.

        The end of a transaction takes an offset, too, and counts as a record.
        """
        found: Counter[str] = Counter()
        for tp in self.assignment() & self._readers.keys():
            finished = self._new_offset(tp)
            with contextlib.suppress(AssertionError):  # aiokafka has let it go meanwhile
                if finished is not None:
                    found[tp.topic] += max(0, (self.highwater(tp) or 0) - finished)
        return {topic: count for topic, count in sorted(found.items()) if count}

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


def install(app: faust.App) -> None:
    """Have an application read by this transport: Faust has no setting for its class, the URL names the driver only."""
    app._transport = BatchTransport(app.conf.broker_consumer, app)
