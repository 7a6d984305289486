"""Buffers acknowledgments per shard, so that they are sent together (X3)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from operator import attrgetter

from lapse_client import fork
from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import Lot
from lapse_client.kafka.clock import elapsed_ms
from lapse_client.session.shard import Shard
from lapse_client.subscriber.settlement import SettlementBatch

_lot_of: Callable[[Delivery], Lot] = attrgetter("lot")


class Acknowledgments:
    """The acknowledgments that are not sent yet. Every method may be called from any thread.

    Args:
        shards: the shards of the subscription.
        enough: returns how many acknowledgments of a shard are worth a command.
        send: sends a shard's ranges of bookmarks, with the number of their messages by end of lease;
            called by the thread that adds or flushes them.
        held_back: delays reports to the application until the end of a block, because the thread holds a lock.

    Attributes:
        lock: held while deliveries are marked as settled, and while the ends of their leases change.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        enough: Callable[[Shard], int],
        send: Callable[[Shard, list[str], Mapping[float, int]], None],
        held_back: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._held_back = held_back
        self._shards = shards
        self._enough = enough
        self._send = send
        self._make_locks()
        fork.note(self)
        self._batches = [SettlementBatch() for _ in shards]
        self._leases: list[Counter[float]] = [Counter() for _ in shards]
        self._since_ms = [0.0] * len(shards)
        self._closed = False

    def _make_locks(self) -> None:
        self.lock = threading.Lock()
        self._sending = threading.RLock()
        """Held from taking a batch until it is sent, so that `close` cannot overtake it. It is taken before `lock`."""

    def forked(self) -> None:
        """Accept no more in a child process, which could not send them."""
        self._make_locks()
        self._closed = True

    def grow(self, count: int) -> None:
        """Add room for `count` new shards. Called before they join the subscription."""
        with self.lock:
            self._batches += [SettlementBatch() for _ in range(count)]
            self._leases += [Counter() for _ in range(count)]
            self._since_ms += [0.0] * count

    def close(self) -> None:
        """Send all acknowledgments, and accept no more. Those that another thread is about to send go first."""
        with self.lock:
            self._closed = True
        self.flush_all()

    def add(self, deliveries: Sequence[Delivery]) -> bool:
        """Add acknowledgments of deliveries, and mark these as settled. Send those of a shard once they are enough.

        Returns:
            False after `close`: nothing was added or marked.

        Raises:
            AlreadySettled: a delivery was settled before. The deliveries in front of it are added.
        """
        touched: set[Shard] = set()
        try:
            with self.lock:
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
        """Add consecutive deliveries of one lot. The loop runs for each message, so it is kept short."""
        batch, leases = self._batches[lot.shard.index], self._leases[lot.shard.index]
        if not batch.size:
            self._since_ms[lot.shard.index] = elapsed_ms()
        if lot.token is None or lot.is_renewed or lot.is_barrier:
            for delivery in deliveries:
                delivery.mark("acknowledge")
                if not lot.is_barrier:
                    batch.add(lot.source, delivery.token, lot.offsets[delivery.at])
                    leases[delivery.lease_ends_ms] += 1
            return
        offsets: list[int] = []
        of_lot, put = lot.offsets, offsets.append
        try:
            for delivery in deliveries:
                if delivery.settled_as:
                    delivery.check_unsettled()
                delivery.settled_as = "acknowledge"
                put(of_lot[delivery.at])
        finally:
            if offsets:
                leases[lot.lease_ends_ms] += len(offsets)
                batch.extend(lot.source, lot.token, offsets)

    def flush(self, shard: Shard) -> None:
        """Send a shard's acknowledgments, even if they are few."""
        with self._held_back(), self._sending:
            with self.lock:
                batch = self._batches[shard.index]
                ranges = batch.take()
                leases = self._leases[shard.index]
                self._leases[shard.index] = Counter()
            if ranges:
                self._send(shard, ranges, leases)

    def flush_all(self) -> None:
        """Send the acknowledgments of all shards."""
        for shard in self._shards:
            self.flush(shard)

    def flush_older(self, age_ms: float) -> None:
        """Send the acknowledgments of each shard whose first one has waited for `age_ms`."""
        now_ms = elapsed_ms()
        for shard in self._shards:
            if self._batches[shard.index].size and now_ms - self._since_ms[shard.index] >= age_ms:
                self.flush(shard)
