"""aiokafka's fetching, adapted to thousands of partitions: fewer bytes, fewer objects, shorter waits."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.consumer import consumer, fetcher
from aiokafka.protocol.fetch import FetchRequest

from lapse.runtime.kafka.checksum import CheckedRecords
from lapse.runtime.kafka.fetch_session import FetchSession
from lapse.runtime.kafka.fetched import FetchedPartition, FetchedRecords, TakenBytes

_CROWDED_WAIT_MS: Final = 20

_MANY: Final = 8
"""For fewer partitions a session with a broker would save nothing."""


_LONGEST_WAIT_MS: Final = 2_000
"""The longest wait of a fetch if nothing happens in many partitions, ms: 1 ms for each of them, up to this. A broker
looks at all of them for each fetch. A new record ends the wait at once."""


class SwiftFetcher(fetcher.Fetcher):
    """A fetcher that waits less while it leaves out a partition whose last records are not taken yet.

    There is one fetch at a time to a broker. If it waited half a second for a command, the next records of a busy topic
    would be delayed by as much.

    With many partitions a fetch names only what has changed, and each turn costs little.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.taken = 0
        """How often records were taken. The consumer's position is behind all of them."""
        self._bytes = TakenBytes()
        self._asked_for: set[Any] = set()
        self._sessions: dict[int, FetchSession] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._led_by: Any = None
        """The metadata from which the leaders were taken."""
        self._assigned: Any = None
        self._nodes: set[int | None] = set()
        """The brokers that lead assigned partitions; None stands for a missing leader."""
        self._first = 0
        """Counts requests without a session. Each names another partition first: a broker fills answers in order."""
        self._awaited: dict[TopicPartition, Any] = {}
        """The futures of paused partitions that will wake the fetcher."""
        super().__init__(*args, **kwargs)

    async def fetched_records(
        self,
        partitions: Iterable[Any],
        timeout: float = 0,  # noqa: ASYNC109  # signature of aiokafka
        max_records: int | None = None,
    ) -> Any:
        """Do the same as aiokafka's, and note which partitions are taken: Faust never takes changelogs.

        aiokafka waits with `asyncio.wait`, which costs a future, three callbacks and two sets more.
        """
        self._asked_for.update(partitions)
        self._bytes.count = 0
        until = time.monotonic() + timeout
        records = await super().fetched_records(partitions, 0, max_records)
        while not records and time.monotonic() < until and await self._comes(until - time.monotonic()):
            records = await super().fetched_records(partitions, 0, max_records)
        self.taken += 1
        if self._bytes.count:
            for tp in self._records.keys() & records.keys():
                self._records.move_to_end(tp)  # others that had to wait come first
        return records

    async def _comes(self, timeout_s: float) -> bool:
        """Wait until records come, or an error; return False at the timeout, or once the fetcher is closed."""
        waiter = self._create_fetch_waiter()
        came = True

        def give_up() -> None:
            nonlocal came
            came = False
            self._notify(waiter)

        timer = asyncio.get_running_loop().call_later(timeout_s, give_up)
        try:
            await waiter
        finally:
            timer.cancel()
            waiter.cancel()  # the fetcher forgets it
        return came and not self._closed

    async def _proc_fetch_request(self, *args: Any) -> Any:
        """Do the same as aiokafka's, and wake who waits for records. Otherwise the task that sends fetches does so."""
        are_new = await super()._proc_fetch_request(*args)
        if are_new:
            for fetched in self._records.values():
                fetched.taken = self._bytes
            for waiter in self._fetch_waiters:
                self._notify(waiter)
        return are_new

    @property
    def _fetch_max_wait_ms(self) -> int:
        crowded = not self._asked_for.isdisjoint(self._records)
        return min(_CROWDED_WAIT_MS, self._longest_wait_ms) if crowded else self._longest_wait_ms

    @_fetch_max_wait_ms.setter
    def _fetch_max_wait_ms(self, longest_ms: int) -> None:
        self._longest_wait_ms = longest_ms

    def _get_actions_per_node(self, assignment: Any) -> Any:
        """Return, like aiokafka's, what to fetch from which broker, what to look up before, and what to wait for.

        A paused partition wakes the fetcher when it is resumed. aiokafka waits for all of them anew each time.
        """
        records, in_flight, leaders = self._records, self._in_flight, self._known_leaders(assignment)
        fetchable: defaultdict[int, dict[TopicPartition, int]] = defaultdict(dict)
        awaiting_reset: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        backoffs: defaultdict[int | None, list[float]] = defaultdict(list)
        unknown = False
        states = assignment._tp_state
        if self._nodes <= in_flight:  # no broker is free for a request
            states = {tp: states[tp] for tp in records if tp in states}
        for tp, state in states.items():
            node = leaders.get(tp)
            if tp in records:
                backoff = records[tp].calculate_backoff()
                if backoff:
                    backoffs[node].append(backoff)
            elif node in in_flight:
                continue
            elif node is None or node == -1:
                unknown = True
            elif state._position is None:
                awaiting_reset[node].append(tp)
            elif state._paused:
                self._wake_at(tp, state.resume_fut)
            else:
                fetchable[node][tp] = state._position
        requests = [
            (node, self._request(node, wanted))
            for node, wanted in fetchable.items()
            if node not in backoffs and node not in awaiting_reset
        ]
        wait_s = min(map(max, backoffs.values())) if backoffs else self._fetcher_timeout
        return requests, awaiting_reset, wait_s, unknown, []

    def _request(self, node: int, wanted: dict[TopicPartition, int]) -> FetchRequest:
        session = self._sessions.get(node)
        if session is None and len(wanted) >= _MANY:
            session = self._sessions[node] = FetchSession()
        wait_ms = self._fetch_max_wait_ms
        if session is not None:
            if wait_ms == self._longest_wait_ms and session.stands_at(wanted):
                wait_ms = max(wait_ms, min(len(wanted), _LONGEST_WAIT_MS))
            return session.request(
                wanted,
                max_wait_time=wait_ms,
                min_bytes=self._fetch_min_bytes,
                max_bytes=self._fetch_max_bytes,
                isolation_level=self._isolation_level,
                max_partition_bytes=self._max_partition_fetch_bytes,
            )
        by_topic: dict[str, list[tuple[int, int, int]]] = {}
        self._first += 1
        first, items = self._first % len(wanted), list(wanted.items())
        for (topic, partition), offset in items[first:] + items[:first]:
            by_topic.setdefault(topic, []).append((partition, offset, self._max_partition_fetch_bytes))
        limits = (wait_ms, self._fetch_min_bytes, self._fetch_max_bytes, self._isolation_level)
        return FetchRequest(*limits, list(by_topic.items()))

    def _known_leaders(self, assignment: Any) -> dict[TopicPartition, int]:
        """Return the leader of each partition, computed once for each change of metadata or assignment."""
        topics = self._client.cluster._partitions
        if topics is not self._led_by or assignment.tps is not self._assigned:
            self._led_by, self._assigned = topics, assignment.tps
            self._leaders = {
                TopicPartition(topic, partition): one.leader
                for topic, partitions in topics.items()
                for partition, one in partitions.items()
            }
            self._nodes = {self._leaders.get(tp) for tp in assignment.tps}
        return self._leaders

    def _wake_at(self, tp: TopicPartition, resumed: Any) -> None:
        if self._awaited.get(tp) is not resumed:
            self._awaited[tp] = resumed
            resumed.add_done_callback(lambda _: self._wake(tp, resumed))

    def _wake(self, tp: TopicPartition, resumed: Any) -> None:
        if self._awaited.get(tp) is resumed:
            del self._awaited[tp]
        self._notify(self._wait_consume_future)


# This applies to all consumers of the process: shards, changelogs, payloads that are read back. None of the classes can
# be injected.
fetcher.PartitionRecords = FetchedRecords
fetcher.FetchResult = FetchedPartition
fetcher.MemoryRecords = CheckedRecords
consumer.Fetcher = SwiftFetcher
