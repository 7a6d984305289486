"""The buffer of prefetched messages. A `Delivery` is made only when the application takes one."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final

from lapse_client.delivery.arrivals import Waiting
from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import Lot
from lapse_client.session.shard import Shard

_AHEAD: Final = 2_000
"""How many messages may wait in the buffer before `await_room` waits, unless more are taken at once."""


_MOST_BARRIERS: Final = 1_000
_MOST_BARRIER_BYTES: Final = 8 << 20
"""How many messages more than the backlog, and barriers of how many bytes, may wait before nothing more is read."""


class Prefetched(Waiting[Delivery]):
    """A buffer of lots, in the order of their arrival.

    Args:
        past_ms: returns an instant that the broker's clock has passed, ms since the epoch.
        forget: called with a shard, and the number of its messages that were dropped because their leases are over.
        delivery: the class of the deliveries that the application gets.
    """

    def __init__(
        self,
        past_ms: Callable[[], float],
        forget: Callable[[Shard, int], None],
        delivery: type[Delivery] = Delivery,
    ) -> None:
        super().__init__()
        self._past_ms = past_ms
        self._forget = forget
        self._delivery = delivery
        self._back: deque[Delivery] = deque()
        """Deliveries that were taken and put back. They are handed out first."""
        self._lots: deque[Lot] = deque()
        self._at = 0
        """Index of the next message of the first lot."""
        self._room = threading.Condition(self._lock)
        self._ahead = _AHEAD
        self._held = 0
        """How many messages the lots still have."""
        self._barrier_bytes = 0
        self._withholding = False
        self._sweep_at = _AHEAD
        """How many messages the lots must have until those whose leases are over are dropped."""

    def __len__(self) -> int:
        lots = tuple(self._lots)  # other threads may take lots meanwhile
        first = lots[0].left_count(self._at) - lots[0].left_count() if lots else 0
        return sum(lot.left_count() for lot in lots) + first + len(self._back)

    def is_full(self, backlog: int) -> bool:
        """Return whether so many barriers wait that nothing more should be read; not after the end.

        Barriers take no room in the backlog (Q12), so shards send them whatever the application has taken.

        Args:
            backlog: how many other messages may be here.
        """
        most_wait = self._held > backlog + _MOST_BARRIERS or self._barrier_bytes > _MOST_BARRIER_BYTES
        return most_wait and not self._ended

    def put(self, lots: list[Lot]) -> None:
        """Add lots in order; none of them is empty. After the end they are dropped, unless they are withheld.

        A message that had expired when its delivery reached Kafka is skipped when it would be taken (L10). Messages
        whose leases are over are handed out again. So if nobody takes any, they are dropped here, now and then.
        """
        if not lots:
            return
        with self._lock:
            if self._ended and not self._withholding:
                return
            self._lots.extend(lots)
            self._held += sum(map(len, lots))
            self._barrier_bytes += sum(lot.barrier_bytes for lot in lots)
            if self._held > self._sweep_at:
                self._drop_late()
                self._sweep_at = max(_AHEAD, 2 * self._held)
            self._wake(2 if len(lots) > 1 else len(lots[0]))
        self._notify()

    def await_room(self, timeout_s: float) -> bool:
        """Wait until the buffer is short enough for more lots, or until the end; return whether it is.

        Who reads lots only then keeps few messages in memory. That saves time, too: the garbage collector looks at each
        message that is there.
        """
        with self._room:
            return self._room.wait_for(lambda: self._held <= self._ahead or self._ended, timeout_s)

    def end(self, error: BaseException | None = None) -> None:
        """Mark the end of the items, as `Waiting.end` does. Nobody waits for room any more."""
        super().end(error)
        with self._room:
            self._room.notify_all()

    def withhold(self) -> None:
        """Hand out nothing more. What is here, and what still comes, is kept for `withheld`."""
        with self._lock:
            self._withholding = True
        self.end()

    def withheld(self, wanted: Callable[[Lot], bool]) -> list[Delivery]:
        """Remove what is withheld of the wanted lots. Return what of it has a lease that still holds."""
        if not self._withholding:
            return []
        with self._lock:
            past_ms = self._past_ms()
            back, lots = self._remove(wanted)
        return [one for one in back if past_ms < one.lease_ends_ms] + [
            self._delivery(lot, at)
            for lot, first in lots
            if past_ms < lot.lease_ends_ms
            for at in range(first, len(lot))
            if at not in lot.overdue
        ]

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Add deliveries that were taken before; after the end they are dropped, unless they are withheld."""
        with self._lock:
            if self._ended and not self._withholding:
                return
            self._back.extend(deliveries)
            self._wake(len(deliveries))
        self._notify()

    def pop(self) -> Delivery | None:
        """Remove and return the first delivery whose lease still holds, if there is one; never waits."""
        with self._lock:
            return next(iter(self._pop_some(1)), None)

    def drop(self, unwanted: Callable[[Lot], bool]) -> Counter[float]:
        """Drop unwanted lots, and return how many messages were dropped, by end of lease. Barriers are not counted."""
        dropped: Counter[float] = Counter()
        with self._lock:
            back, lots = self._remove(unwanted)
        for delivery in back:
            dropped[delivery.lease_ends_ms] += not delivery.is_barrier
        for lot, first in lots:
            dropped[lot.lease_ends_ms] += 0 if lot.is_barrier else lot.left_count(first)
        return dropped

    def _drop_late(self) -> None:
        """Drop messages whose leases are over."""
        past_ms = self._past_ms()
        back, lots = self._remove(lambda lot: lot.lease_ends_ms <= past_ms)
        dropped = Counter(delivery.shard for delivery in back)
        for lot, first in lots:
            dropped[lot.shard] += lot.left_count(first)
        for shard, count in dropped.items():
            self._forget(shard, count)

    def _remove(self, unwanted: Callable[[Lot], bool]) -> tuple[list[Delivery], list[tuple[Lot, int]]]:
        """Remove unwanted lots. Return what was put back of them, and each with the index of its next message."""
        back, lots, at = self._back, self._lots, self._at
        self._back, self._lots = deque(), deque()
        gone: list[Delivery] = []
        for delivery in back:
            (gone if unwanted(delivery.lot) else self._back).append(delivery)
        removed: list[tuple[Lot, int]] = []
        for lot in lots:
            if unwanted(lot):
                removed.append((lot, at))
                self._at = self._at if self._lots else 0
            else:
                self._lots.append(lot)
            at = 0
        self._held = sum(map(len, self._lots)) - self._at
        self._barrier_bytes = sum(lot.barrier_bytes for lot in self._lots)
        self._room.notify_all()
        return gone, removed

    def _pop_some(self, most: int) -> list[Delivery]:
        taken: list[Delivery] = []
        if self._withholding:
            return taken
        self._ahead = max(self._ahead, most)
        while self._back and len(taken) < most:
            delivery = self._back.popleft()
            if delivery.lease_ends_ms <= self._past_ms():
                self._forget(delivery.shard, 1)
            else:
                taken.append(delivery)
        while self._lots and len(taken) < most:
            lot, first = self._lots[0], self._at
            if lot.lease_ends_ms <= self._past_ms():
                self._forget(lot.shard, lot.left_count(first))
                stop = len(lot)
            else:
                stop = min(len(lot), first + most - len(taken))
                there: Sequence[int] = range(first, stop)
                if lot.overdue:
                    there = [at for at in there if at not in lot.overdue]
                taken += map(self._delivery, repeat(lot), there)
            self._held -= stop - first
            self._at = stop
            if stop == len(lot):
                self._barrier_bytes -= lot.barrier_bytes
                self._lots.popleft()
                self._at = 0
        if self._held <= self._ahead:
            self._room.notify_all()
        return taken
