"""Lots: messages of one partition that were handed out together, under one lease, and are decoded on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message

from lapse.core.generation import position_of
from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.protocol import header
from lapse.protocol.packed_delivery import PackedDelivery, Part
from lapse_client.kafka.headers import Headers, headers_of
from lapse_client.session.shard import Shard
from lapse_client.subscriber.settler import Settler

_BARRIER: Final = b"barrier"
_FOREVER: Final = float("inf")

_OWN: Final = frozenset(
    {
        header.KIND,
        header.SUBSCRIPTION,
        header.COMMAND_ID,
        header.EPOCH,
        header.BOOKMARK,
        header.LEASE_UNTIL_MS,
        header.DELIVERY_COUNT,
        header.TIMESTAMP_MS,
        header.LIFETIMES,
        EXPIRES_AT_MS,
    }
)
"""Headers that the shard sets on a delivery. They are attributes of `Delivery`, not among its headers."""


_UNKNOWN: Final = float("-inf")

_OBJECT_BYTES: Final = 1024
"""About how many bytes the objects of a lot take beside its payload."""


def landed_ms(message: Message, fields: Mapping[str, bytes]) -> float:
    """Return when a delivery reached Kafka, ms since the epoch; minus infinity if deadlines are not checked.

    They are not checked if the queue ignores lifetimes (L6), or if the topic lacks the broker's timestamps.
    """
    kind, stamp_ms = message.timestamp()
    ignored = fields.get(header.LIFETIMES) == header.LIFETIMES_IGNORED
    return _UNKNOWN if ignored or kind != TIMESTAMP_LOG_APPEND_TIME else stamp_ms


def overdue_indexes(deadlines_ms: Sequence[int], landed: float) -> Collection[int]:
    """Return the indexes of the deadlines that had passed at an instant."""
    if not len(deadlines_ms) or min(deadlines_ms) > landed:
        return ()
    return frozenset(at for at, deadline_ms in enumerate(deadlines_ms) if deadline_ms <= landed)


class Lot(ABC):
    """Messages that were handed out together. A `Delivery` names one of them by its index.

    Attributes:
        settler: sends the settlements.
        shard: the shard that handed them out, and that gets their settlements.
        source: their underlying partition, `topic:partition`.
        offsets: the offset of each message, in the order of delivery.
        delivery_counts: the delivery count of each message.
        lease_ends_ms: end of their leases by the broker's clock, ms since the epoch; infinite without a lease.
        token: their common fencing token, `count@epoch` or `count`, empty without a lease; None if their counts
            differ.
        is_barrier: whether the only message is a barrier.
        barrier_bytes: about how much memory that barrier takes; 0 if it is none.
        is_renewed: whether one of their leases was renewed, and so does not end at `lease_ends_ms`.
        overdue: indexes of messages that had expired when their delivery reached Kafka. They are skipped (L10).
        data: bytes with their keys and values, if these are one behind the other.
        key_bounds: where the keys begin in `data`, and where the last one ends; None to ask `key`.
        value_bounds: the same for values and `value`.
        records: the record of each message, if they were read one by one; None to ask `key` and `value`.
    """

    __slots__ = (
        "_epoch",
        "delivery_counts",
        "is_renewed",
        "lease_ends_ms",
        "offsets",
        "overdue",
        "settler",
        "shard",
        "source",
        "token",
    )

    is_barrier = False
    barrier_bytes = 0
    data: bytes = b""
    key_bounds: Sequence[int] | None = None
    value_bounds: Sequence[int] | None = None
    records: Sequence[Message] | None = None

    def __init__(
        self,
        settler: Settler,
        shard: Shard,
        source: bytes,
        offsets: Sequence[int],
        delivery_counts: Sequence[int],
        *,
        lease: bytes | None,
        epoch: bytes | None,
        alike: bool = True,
    ) -> None:
        self.settler = settler
        self.shard = shard
        self.source = source
        self.offsets = offsets
        self.delivery_counts = delivery_counts
        self.lease_ends_ms: float = _FOREVER if lease is None else int(lease)
        self._epoch = epoch
        self.token = self._fencing_token(delivery_counts[0]) if alike else None
        self.is_renewed = False
        self.overdue: Collection[int] = ()

    def __len__(self) -> int:
        return len(self.offsets)

    def left_count(self, first: int = 0) -> int:
        """Return how many messages from an index on can be handed out."""
        return len(self) - first - sum(at >= first for at in self.overdue)

    def token_of(self, at: int) -> bytes:
        """Return the fencing token of a message."""
        return self._fencing_token(self.delivery_counts[at]) if self.token is None else self.token

    def _fencing_token(self, count: int) -> bytes:
        if not count:
            return b""
        return b"%d" % count if self._epoch is None else b"%d@%b" % (count, self._epoch)

    @abstractmethod
    def key(self, at: int) -> bytes | None:
        """Return the key of a message, unchanged."""

    @abstractmethod
    def value(self, at: int) -> bytes | None:
        """Return the value of a message, unchanged."""

    @abstractmethod
    def headers(self, at: int) -> Headers:
        """Return a message's own headers in order, repeated names included."""

    @abstractmethod
    def timestamp_ms(self, at: int) -> int:
        """Return the arrival of a message, ms since the epoch."""

    @abstractmethod
    def deadline_ms(self, at: int) -> int | None:
        """Return the deadline of a message, ms since the epoch; None without one."""


class SingleLot(Lot):
    """One message in a record of its own, or a barrier."""

    __slots__ = ("_deadline", "_message", "_own", "_stamp", "barrier_bytes", "is_barrier")

    def __init__(self, settler: Settler, shard: Shard, message: Message, fields: dict[str, bytes]) -> None:
        get = fields.get
        source, _, place = get(header.BOOKMARK, b"::-1").rpartition(b":")
        offset, _, generation = place.partition(b"~")
        offsets = (position_of(int(offset), int(generation or 0)),)
        counts = (int(get(header.DELIVERY_COUNT) or 0),)
        lease, epoch = get(header.LEASE_UNTIL_MS), get(header.EPOCH)
        super().__init__(settler, shard, source, offsets, counts, lease=lease, epoch=epoch)
        self.is_barrier = get(header.KIND) == _BARRIER
        self._message = message
        self._stamp = get(header.TIMESTAMP_MS)
        self._deadline = get(EXPIRES_AT_MS)
        # The library would keep all headers with the message. Each prefetched delivery would take a kilobyte more, and
        # a dozen more objects for the garbage collector, which halves the throughput.
        own = None if _OWN.issuperset(fields) else [item for item in headers_of(message) if item[0] not in _OWN]
        self._own = own or None
        message.set_headers([])
        self.barrier_bytes = self._size_bytes() if self.is_barrier else 0
        if self._deadline is not None and not self.is_barrier and int(self._deadline) <= landed_ms(message, fields):
            self.overdue = (0,)

    def _size_bytes(self) -> int:
        parts = [self._message.key(), self._message.value(), *chain.from_iterable(self._own or ())]
        return _OBJECT_BYTES + sum(map(len, filter(None, parts)))

    def key(self, at: int) -> bytes | None:
        """See `Lot`."""
        return self._message.key()

    def value(self, at: int) -> bytes | None:
        """See `Lot`."""
        return self._message.value()

    def headers(self, at: int) -> Headers:
        """See `Lot`."""
        return list(self._own or ())

    def timestamp_ms(self, at: int) -> int:
        """See `Lot`."""
        return self._message.timestamp()[1] if self._stamp is None else int(self._stamp)

    def deadline_ms(self, at: int) -> int | None:
        """See `Lot`."""
        return None if self._deadline is None else int(self._deadline)


class PackedLot(Lot):
    """Messages of a packed delivery. Its bytes stay in memory as long as one of its messages.

    Keys and values are read by the functions of the delivery, since each call in between would cost as much again.
    """

    __slots__ = ("_packed", "data", "key", "key_bounds", "value", "value_bounds")

    def __init__(
        self, settler: Settler, shard: Shard, packed: PackedDelivery, fields: dict[str, bytes], landed: float = _UNKNOWN
    ) -> None:
        super().__init__(
            settler,
            shard,
            f"{packed.topic}:{packed.partition}".encode(),
            packed.offsets,
            packed.delivery_counts,
            lease=fields.get(header.LEASE_UNTIL_MS),
            epoch=fields.get(header.EPOCH),
            alike=packed.counts_are_alike,
        )
        self._packed = packed
        self.key: Part = packed.key  # type: ignore[assignment]
        self.value: Part = packed.value  # type: ignore[assignment]
        self.data = packed.data
        self.key_bounds, self.value_bounds = packed.key_bounds, packed.value_bounds
        self.overdue = overdue_indexes(packed.deadlines_ms, landed)

    def headers(self, at: int) -> Headers:
        """See `Lot`."""
        return self._packed.headers(at)

    def timestamp_ms(self, at: int) -> int:
        """See `Lot`."""
        return self._packed.timestamps_ms[at]

    def deadline_ms(self, at: int) -> int | None:
        """See `Lot`."""
        return self._packed.deadline_ms(at)
