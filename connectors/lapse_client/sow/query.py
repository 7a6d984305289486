"""One query of a SOW topic: it sends a command to every shard, and merges their results (S5).

A shard that is taken over forgets its queries. The client asks again, and skips records that it has handed over. With
an order, a shard's result is another one then, so it is kept until its end, and begins again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from typing import Final
from uuid import uuid4

from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse_client.delivery.arrivals import Arrivals
from lapse_client.error import LapseError, refusal
from lapse_client.session.channel import Channel
from lapse_client.session.shard import Shard
from lapse_client.sow.order import Order
from lapse_client.sow.record import SowRecord

_END: Final = "group-end"
_RESULT: Final = "sow"
_AT_ONCE: Final = 10_000
_MOST_KEPT: Final = 10_000
"""How many ordered results of a shard are kept until its last one has come. More are passed on as they come."""

_AGAIN: Final = SowRecord(kind="again")
"""Stands for the end of a shard's result at a take-over; the whole result follows."""


class SowQuery:
    """A running query.

    Args:
        channel: channel to the topic's shards.
        command: the query over all shards.
        timeout_s: how long to wait for the next result, in seconds.
    """

    def __init__(self, channel: Channel[SowRecord], command: Command, timeout_s: float) -> None:
        self.arrivals: Arrivals[tuple[int, SowRecord | None]] = Arrivals()
        self._channel = channel
        self._command = command
        self._timeout_s = timeout_s
        self._order = Order.parse(command.order_by) if command.order_by is not None else None
        self._ids: dict[str, Shard] = {}
        self._handed_over: list[set[bytes | None]] = [set() for _ in channel.shards]
        self._results: list[deque[SowRecord]] = [deque() for _ in channel.shards]
        self._running = set(range(len(channel.shards)))
        self._futures: list[Future[Answer]] = []
        self._most: int | None = None
        self._over = False

    def records(self) -> Iterator[SowRecord]:
        """Send the query, and yield the results as they come, or in the order of `order_by`.

        Raises:
            CommandFailed: a shard refused the query. The text shows the wrong part of an expression.
            AnswerTimeout: no result came within the timeout.
        """
        skip, top_n = self._command.skip or 0, self._command.top_n
        try:
            self._ask(None if top_n is None else top_n + skip)
            merged = self._stream() if self._order is None else self._merged(self._order)
            yield from islice(merged, skip, None if top_n is None else skip + top_n)
        finally:
            self._over = True
            for future in self._futures:
                future.cancel()
            self._channel.ours.difference_update([ident.encode() for ident in list(self._ids)])

    def received(self, records: list[SowRecord]) -> None:
        """Add results of this query. Called by the channel's thread."""
        arrived: list[tuple[int, SowRecord | None]] = []
        for record in records:
            shard = self._ids.get(record.command_id)
            if shard is not None and record.kind in (_RESULT, _END):
                arrived.append((shard.index, record if record.kind == _RESULT else None))
        if arrived:
            self.arrivals.put(arrived)

    def on_taken_over(self, shard: Shard) -> None:
        """Send the query again to a shard after its take-over. Called by the channel's thread."""
        if self._over or shard.index not in self._running:
            return
        for ident in [ident for ident, asked in list(self._ids.items()) if asked is shard]:
            del self._ids[ident]
            self._channel.ours.discard(ident.encode())
        self.arrivals.put([(shard.index, _AGAIN)])
        self._send(shard)

    def _ask(self, most: int | None) -> None:
        self._most = most
        for shard in self._channel.shards:
            self._send(shard)

    def _send(self, shard: Shard) -> None:
        ident = f"{uuid4().hex}-{shard.index}"
        self._ids[ident] = shard
        self._channel.ours.add(ident.encode())
        command = replace(self._command, id=ident, top_n=self._most, skip=None)
        future = self._channel.sender.send(shard, command)
        self._futures.append(future)
        future.add_done_callback(lambda done: self._answered(ident, shard, done))

    def _answered(self, ident: str, shard: Shard, future: Future[Answer]) -> None:
        if future.cancelled() or ident not in self._ids:
            return
        error = future.exception()
        if error is None and future.result().status != "ok":
            error = refusal(shard.entity, future.result())
        if error is not None:
            self.arrivals.end(error)
        else:  # comes after `group-end`, and replaces one that was missed
            self.arrivals.put([(shard.index, None)])

    def _stream(self) -> Iterator[SowRecord]:
        while True:
            for results in self._results:
                while results:
                    yield results.popleft()
            if not self._running:
                return
            self._pump()

    def _merged(self, order: Order) -> Iterator[SowRecord]:
        shards = [self._shard_records(index) for index in range(len(self._results))]
        return heapq.merge(*shards, key=order.key, reverse=order.descending)

    def _shard_records(self, index: int) -> Iterator[SowRecord]:
        results = self._results[index]
        while True:
            while results and (index not in self._running or len(results) > _MOST_KEPT):
                yield results.popleft()
            if index not in self._running:
                return
            self._pump()

    def _pump(self) -> None:
        with self._channel.backpressure.awaiting():  # another query's results may fill the buffers
            taken = self._taken()
        if not taken:
            raise LapseError("the query was cut short: its client was closed")
        for index, record in taken:
            if index not in self._running:
                continue  # its result is whole; the shard was asked again before that was known
            if record is None:
                self._running.discard(index)
            elif record is _AGAIN:
                if self._order is not None:
                    self._forget(index)
            elif record.key not in self._handed_over[index]:
                self._handed_over[index].add(record.key)
                self._results[index].append(record)

    def _forget(self, index: int) -> None:
        """Drop a shard's results that were not passed on, because they come again, perhaps in another order."""
        results = self._results[index]
        self._handed_over[index].difference_update(record.key for record in results)
        results.clear()

    def _taken(self) -> list[tuple[int, SowRecord | None]]:
        """Wait for results; return an empty list only after the client's close."""
        attendance = self._channel.sender.attendance
        first_s = attendance.first_wait_s(self._timeout_s)
        taken = self.arrivals.take(_AT_ONCE, self._channel.sender.patience(first_s))
        if not taken and not self.arrivals.ended:
            silent = [self._channel.shards[index] for index in sorted(self._running)]
            name = self._command.command
            if first_s < self._timeout_s:
                taken = self.arrivals.take(_AT_ONCE, attendance.check(silent, name, self._timeout_s))
            if not taken and not self.arrivals.ended:
                partitions = [shard.partition for shard in silent]
                raise attendance.why_silent(silent[0].entity, name, partitions, self._timeout_s)
        return taken
