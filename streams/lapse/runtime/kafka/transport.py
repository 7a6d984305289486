"""Batch transport: hands the records of a partition to its shards at once, without a Faust event for each.

Faust spends four asyncio tasks, two queues and a stream on every message. This transport differs in three more ways:

- It commits what the shards have made durable, not what Faust counts as acknowledged.
- After a rebalance, it reads from the positions in the shards' journals, not from the committed offsets.
- It does not fetch partitions with which a shard cannot keep up, or whose shard is not restored yet. So other shards
  need not wait for that.

Any number of queues may read one topic, so several shards decide about a partition: the one that is furthest behind
counts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, cast

import faust
from aiokafka.errors import ConsumerStoppedError, IllegalStateError, InconsistentGroupProtocolError
from faust.transport.conductor import Conductor
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from lapse.runtime.kafka.group.tenure import Tenures
from lapse.runtime.kafka.group_member import GroupMember
from lapse.runtime.shard.waiting_sizes import WorkerBytes
from lapse.runtime.watch import end_process

_POLL_S: Final = 1.0
_AT_ONCE: Final = 100
"""How many partitions' records are handed over before other tasks have a turn."""


class Readers:
    """The positions of the shards that read one partition. The one that is furthest behind counts."""

    __slots__ = ("finished", "received", "saturated")

    def __init__(self) -> None:
        self.received: dict[object, int] = {}
        self.finished: dict[object, int] = {}
        self.saturated: set[object] = set()


class BatchConsumer(driver.Consumer):
    """Faust's aiokafka consumer, which hands whole batches to the shards."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.saturated: set[TP] = set()
        self.waiting = WorkerBytes()
        self.relieved = asyncio.Event()
        self._readers: dict[TP, Readers] = {}
        self._handed = 0
        """Like `taken` of the group's member: records taken by then are with the shards, or will be read again."""
        self._held: dict[TP, set[object]] = {}
        """Partitions that are not fetched, and the shards that will read them once they are restored."""
        self._resting: dict[TP, set[object]] = {}
        """Partitions of shards that are taken over later, and these shards. Others may read them meanwhile."""
        self._to_commit: set[TP] = set()
        """Partitions of which more was made durable since the last commit."""
        self._to_seek: set[TP] = set()
        """Partitions of shards that were restored after the flow began, and whose positions must be set."""
        self.tenures = Tenures()
        self._steady: set[TP] = set()
        """Partitions that are still read during a rebalance."""
        self.balanced_count = 0
        """How often the worker got an assignment."""
        self.goes_on = False
        """Whether shards go on working during the rebalance, because the group still knows this member."""
        self.flows = asyncio.Event()
        """Set while records are handed to the shards, or once nobody shall wait for that."""

    def _new_consumer_thread(self) -> GroupMember:
        return GroupMember(self, loop=self.loop, beacon=self.beacon)

    @property
    def _group(self) -> GroupMember:
        """The member of the group that fetches for this consumer. Faust makes it when the consumer is made."""
        return cast("GroupMember", self._thread)

    @property
    def member(self) -> str:
        """This worker's member id; empty while it is in no group."""
        return self._group.member_id

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe like Faust's. A worker without topics stays outside the group."""
        if topics := set(topics):
            await super().subscribe(topics)

    async def leave(self) -> None:
        """Stop reading, and leave the group. Later topics with the same names belong to others (C4)."""
        self.stop_flow()
        self._group.leave()

    async def _drain_messages(self, fetcher: Any) -> None:
        """Replace Faust's loop: hand over the records of a partition in one call.

        Faust makes an event of each message, which passes two tasks, two queues and a stream.
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
            self._seek_shards(self._to_seek)
        turn = self.tenures.turn
        records, active = await self._wait_next_records(timeout_s)
        app: Any = self.app
        taken = self._group.taken
        if records is None or self.should_stop:
            return
        if not self.flow_active:
            await self.perform_seek()
            self._handed = taken
            return
        for number, (tp, batch) in enumerate(records.items(), 1):
            # Other tasks run between two partitions: the flow may have stopped, or a rebalance begun.
            if not await self._flows():
                return
            if batch and not self.tenures.covers(tp, turn):
                # The fetch began before the rebalance and ended after it, perhaps behind the following seek. The
                # consumer's position is behind the dropped records, so the shards' positions must be set again.
                self._to_seek.add(tp)
            elif batch and (active is None or tp in active):
                app.reading.hand_over(tp, batch)
            if not number % _AT_ONCE:
                await asyncio.sleep(0)
        self._handed = taken

    async def _flows(self) -> bool:
        """Return whether records may be handed over.

        If the application holds them back, wait until it goes on or stops.
        """
        if self.flow_active and not self.app.flow_control.is_active():
            await self.wait_first(self.app.flow_control.acquire(), self.suspend_flow.wait())
        return self.flow_active

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Go on reading during a rebalance, unless this worker is no longer a member."""
        self.goes_on = self.flow_active and self._group.is_member
        if self.goes_on:
            self._steady = self.assignment() - self._paused_partitions
            await self._on_partitions_revoked(revoked)
        else:
            self._steady = set()
            self.tenures.begin_all()
            await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Do the same as Faust's; new partitions are paused until their shards are restored."""
        self._steady &= assigned
        came = assigned - self._steady
        self.tenures.begin(came)
        self._paused_partitions.update(came)
        await super().on_partitions_assigned(assigned, generation_id)
        self.balanced_count += 1

    @property
    def is_balanced(self) -> bool:
        """Whether the group has rebalanced since the last change of the subscription."""
        return self._group.is_balanced

    async def end_if_refused(self) -> None:
        """End the process if the group refuses this worker. Without partitions nothing else would notice."""
        while True:
            error = self._group.refusal
            if error is not None:
                break
            await asyncio.sleep(_POLL_S)
        why = f"the consumer group {self.app.conf.id} refuses this worker: {error}"
        if isinstance(error, InconsistentGroupProtocolError):
            why += ". Another program uses this name (app_id) for its consumers: take another name there"
        end_process(why, error)

    async def rejoin(self) -> None:
        """Start another rebalance, so that other workers get what this one has given up."""
        self._group.rejoin()

    async def look_again(self) -> None:
        """Ask now for the topics' numbers of partitions. A change starts a rebalance."""
        await self._group.look_again()

    def subscribed(self) -> set[str]:
        """Return the topics that this worker reads."""
        return self._group.topics()

    def _get_active_partitions(self) -> set[TP]:
        active = self._partitions_in_use()
        if not (self.saturated or self._held or self._resting):
            return active
        unread = {tp for tp in self._resting if tp not in self._readers or not self._readers[tp].received}
        return active - self.saturated - self._held.keys() - unread

    def _partitions_in_use(self) -> set[TP]:
        """Return the partitions that Faust calls active, without its check of each type."""
        known: set[TP] | None = self._active_partitions
        return super()._get_active_partitions() if known is None else known

    def pause_partitions(self, tps: Iterable[TP]) -> None:
        """Pause partitions like Faust's, except steady ones.

        Faust's code would change the copy of `_get_active_partitions`.
        """
        tps = set(tps) - self._steady
        self._partitions_in_use().difference_update(tps)
        self._paused_partitions.update(tps)

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Resume partitions like Faust's; see `pause_partitions`."""
        self._partitions_in_use().update(tps)
        self._paused_partitions.difference_update(tps)
        self.relieved.set()

    async def _wait_next_records(self, timeout: float) -> Any:  # noqa: ASYNC109  # signature of Faust
        if not self.flow_active:
            await self.wait(self.can_resume_flow)  # type: ignore[arg-type]  # Faust's type
        waiting = self.saturated or self._held or self._resting
        if not self._get_active_partitions():
            # Faust would sleep for a second with nothing to fetch. That also happens after each rebalance, since the
            # flow begins a moment before the partitions are resumed, also if it was waited for here (C90).
            self.relieved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self.relieved.wait()
            return {}, set()
        return await super()._wait_next_records(timeout if not waiting else min(timeout, 0.02))

    def received(self, reader: object, tp: TP, offset: int) -> None:
        """Note that a shard has received everything below `offset`, and reads on from there."""
        self._readers.setdefault(tp, Readers()).received[reader] = offset

    def finished(self, reader: object, offsets: Mapping[TP, int]) -> None:
        """Note that a shard has made everything before these offsets durable."""
        for tp, offset in offsets.items():
            self._readers.setdefault(tp, Readers()).finished[reader] = offset
        self._to_commit.update(offsets)

    def saturate(self, reader: object, tp: TP) -> None:
        """Leave a partition out of the fetch, because a shard cannot keep up with it."""
        self._readers.setdefault(tp, Readers()).saturated.add(reader)
        self.saturated.add(tp)

    def fetch_caught_up(self, reader: object, tp: TP | None = None) -> None:
        """Fetch one partition or all for a shard that has caught up, unless other shards are behind."""
        for one in self.saturated.copy() if tp is None else self.saturated & {tp}:
            saturated = self._readers[one].saturated
            saturated.discard(reader)
            if not saturated:
                self.saturated.discard(one)
                self.relieved.set()

    def hold(self, reader: object, tps: Iterable[TP]) -> None:
        """Leave partitions out of the fetch until every shard that reads them is restored.

        With an earlier fetch, the last of these shards could take records for others as those that it lacks.
        """
        tps = list(tps)
        self._end_rest(reader, tps)
        self.tenures.begin(tps)
        for tp in tps:
            self._held.setdefault(tp, set()).add(reader)

    def rest(self, reader: object, tps: Iterable[TP]) -> None:
        """Leave partitions out of the fetch unless other shards read them, because one is taken over later (C52)."""
        for tp in tps:
            self._resting.setdefault(tp, set()).add(reader)

    def _end_rest(self, reader: object, tps: Iterable[TP]) -> None:
        for tp in self._resting.keys() & set(tps):
            self._resting[tp].discard(reader)
            if not self._resting[tp]:
                del self._resting[tp]

    def let_go(self, reader: object, tps: Iterable[TP]) -> None:
        """Fetch partitions from their shards' positions, once no other shard is waited for."""
        tps = list(tps)
        self._end_rest(reader, tps)
        for tp in self._held.keys() & set(tps):
            self._held[tp].discard(reader)
            if not self._held[tp]:
                del self._held[tp]
                self._to_seek.add(tp)
                self.relieved.set()

    async def leave_out(self, tps: Iterable[TP]) -> None:
        """Do not fetch these partitions, nor held ones, because a request with thousands of names is expensive."""
        self._group.leave_out(self._held.keys() | set(tps))

    def resume_flow(self) -> None:
        """Resume the flow like Faust's."""
        super().resume_flow()
        self.flows.set()

    def forget(self, reader: object) -> None:
        """Forget a shard that is given up."""
        self.fetch_caught_up(reader)
        for tp, readers in list(self._readers.items()):
            readers.received.pop(reader, None)
            if readers.finished.pop(reader, None) is not None:
                self._to_commit.add(tp)
            if not readers.received:
                del self._readers[tp]

    async def perform_seek(self) -> None:
        """Set the positions of the shards. Those that are not restored yet are held, and set when they are.

        The committed offsets are not used, and Faust would ask for them partition by partition.
        """
        self._seek_shards(self._readers.keys() - self._steady)

    def _seek_shards(self, tps: Iterable[TP]) -> None:
        """Read these partitions from the positions of the shards that read them."""
        known = ((tp, self._readers[tp].received) for tp in tps if tp in self._readers)
        offsets = {tp: min(received.values()) for tp, received in known if received}
        self._to_seek -= set(tps)
        with contextlib.suppress(AssertionError, IllegalStateError):  # not assigned: another rebalance ends with a seek
            self._group.seek_all(offsets)

    async def _commit_offsets(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        """Commit like Faust's, without its table of all partitions for the log; return whether something was committed.

        `_commit` skips partitions that are not assigned.
        """
        done: bool = await self._commit(offsets)
        self._committed_offset.update(offsets)
        self.app.monitor.on_tp_commit(dict(offsets))
        return done

    async def verify_all_partitions_active(self) -> None:
        """Do nothing. Faust would check partition after partition every few seconds, to log which had no records."""

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        if topics is not None:
            return iter([tp for tp in self._readers if tp in topics or tp.topic in topics])
        changed, self._to_commit = self._to_commit, set()
        return iter([tp for tp in changed if tp in self._readers])

    def _new_offset(self, tp: TP) -> int | None:
        readers = self._readers.get(tp)
        return min(readers.finished.values()) if readers is not None and readers.finished else None

    def behind(self) -> dict[str, int]:
        """Return how many records of each topic are in the log, as of the last fetch, and not yet durable in a shard.

        Transaction markers have offsets, too, and count as records.
        """
        found: Counter[str] = Counter()
        for tp in self.assignment() & self._readers.keys():
            finished = self._new_offset(tp)
            with contextlib.suppress(AssertionError):  # not assigned any more
                if finished is not None:
                    found[tp.topic] += max(0, (self.highwater(tp) or 0) - finished)
        return {topic: count for topic, count in sorted(found.items()) if count}

    async def next_offset(self, tp: TP) -> int:
        """Return the offset that the consumer reads next in a partition, behind transaction markers that were read.

        Returns:
            -1 while that is unknown: during a rebalance nothing is assigned, or records were taken but not handed over,
                and may be dropped and read again.
        """
        if self._moves(tp):
            return -1
        try:
            where, taken = self._group.stands_at(tp)
        except IllegalStateError:
            return -1
        return where if taken <= self._handed and not self._moves(tp) else -1

    def _moves(self, tp: TP) -> bool:
        """Return whether the position of a partition is about to be set."""
        return tp in self._to_seek or tp in self._held


class QuietConductor(Conductor):
    """Faust's conductor, without a handler for each partition: batches do not pass it (C90)."""

    async def on_partitions_assigned(self, assigned: set[TP]) -> None:
        """Do nothing. Faust's makes the handlers, in one turn of the loop."""

    def _update_callback_map(self) -> None:
        """Do nothing, as above."""


class BatchTransport(driver.Transport):
    """Faust's aiokafka transport with the batch consumer."""

    Consumer: ClassVar[type[BatchConsumer]] = BatchConsumer
    Conductor: ClassVar[type[Any]] = QuietConductor


def install(app: faust.App) -> None:
    """Let an application read by this transport. Faust has no setting for that, since the URL names only the driver."""
    app._transport = BatchTransport(app.conf.broker_consumer, app)
