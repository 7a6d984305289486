"""Acknowledgments that wait to be sent together, per shard (X3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import Lot
from lapse_client.kafka.clock import elapsed_ms
from lapse_client.session.shard import Shard
from lapse_client.subscriber.settlement import SettlementBatch

_lot_of: Callable[[Delivery], Lot] = attrgetter("lot")


class Acknowledgments:
    """Collects from any thread; `send` is called with a shard, its ranges of bookmarks, and how many messages they are.

    Args:
        shards: of the subscription.
        enough: how many of a shard are worth a command.
        send: sends them; called by the thread that brought the last one, or that flushes.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        enough: Callable[[Shard], int],
        send: Callable[[Shard, list[str], int], None],
    ) -> None:
        self._shards = shards
        self._enough = enough
        self._send = send
        self._lock = threading.Lock()
        self._batches = [SettlementBatch() for _ in shards]
        self._since_ms = [0.0] * len(shards)
        self._closed = False

    def grow(self, count: int) -> None:
        """Make room for more shards, before they are among the subscription's."""
        with self._lock:
            self._batches += [SettlementBatch() for _ in range(count)]
            self._since_ms += [0.0] * count

    def close(self) -> None:
        """Send all, and take no more."""
        with self._lock:
            self._closed = True
        self.flush_all()

    def add(self, deliveries: Sequence[Delivery]) -> bool:
        """Collect; a shard's are sent as soon as they are enough.

        Returns:
            False after `close`: nothing was collected or marked.

        Raises:
            AlreadySettled: one was settled before; those in front of it are collected.
        """
        touched: set[Shard] = set()
        try:
            with self._lock:
                if self._closed:
                    return False
                for lot, some in groupby(deliveries, _lot_of):
                    if not lot.is_barrier:
                        touched.add(lot.shard)
                    self._add(lot, some)
        finally:
            for shard in touched:
                if self._batches[shard.index].size >= self._enough(shard):
                    self.flush(shard)
        return True

    def _add(self, lot: Lot, deliveries: Iterator[Delivery]) -> None:
        """Collect neighbours of one lot; once for each message, so kept short."""
        offsets: list[int] = []
        of_lot, token, put = lot.offsets, lot.token, offsets.append
        batch = self._batches[lot.shard.index]
        if not batch.size:
            self._since_ms[lot.shard.index] = elapsed_ms()
        try:
            for delivery in deliveries:
                if delivery.settled_as:
                    delivery.check_unsettled()
                delivery.settled_as = "acknowledge"
                if token is None:
                    batch.add(lot.source, lot.token_of(delivery.at), of_lot[delivery.at])
                else:
                    put(of_lot[delivery.at])
        finally:
            if offsets and token is not None and not lot.is_barrier:
                batch.extend(lot.source, token, offsets)

    def flush(self, shard: Shard) -> None:
        """Send a shard's acknowledgments, however few."""
        with self._lock:
            batch = self._batches[shard.index]
            count = batch.size
            ranges = batch.take()
        if count:
            self._send(shard, ranges, count)

    def flush_all(self) -> None:
        """Send all."""
        for shard in self._shards:
            self.flush(shard)

    def flush_older(self, age_ms: float) -> None:
        """Send those of shards where the first one has waited for `age_ms`."""
        now_ms = elapsed_ms()
        for shard in self._shards:
            if self._batches[shard.index].size and now_ms - self._since_ms[shard.index] >= age_ms:
                self.flush(shard)
