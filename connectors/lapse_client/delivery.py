"""Deliveries: messages handed to this subscription, and what the application does with them."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Literal, Protocol

from confluent_kafka import Message

from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.protocol import header, reference
from lapse.protocol.bookmark import Bookmark
from lapse_client.error import AlreadySettled
from lapse_client.headers import Headers, headers_of
from lapse_client.shard import Shard

Settling = Literal["acknowledge", "cancel", "expire", "renew"]

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
        EXPIRES_AT_MS,
    }
)
"""Headers that the delivery sets; they are attributes here."""

_BARRIER: Final = b"barrier"
_FOREVER: Final = float("inf")


class Settler(Protocol):
    """Who passes settlements on."""

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Done with these; sent in batches."""

    def command(
        self, how: Settling, deliveries: Sequence[Delivery], *, delay_ms: int | None, lease_ms: int | None
    ) -> object:
        """Settle these otherwise, at once."""


class Delivery:
    """A message under a lease. As a context manager it acknowledges, and on an exception cancels.

    Attributes:
        is_barrier: whether it is a barrier: it has no lease, and settling it does nothing.
        place: the bookmark as it is on the wire.
        token: which delivery it is, as settlements say it: `count@epoch`, or `count`; empty for none.
        shard: where it came from, and where its settlement goes.
        lease_ends_ms: when the lease is over by the broker's clock, ms since the epoch; infinite without a lease.
        settled_as: how it was settled; empty while it is not.
    """

    __slots__ = (
        "_message",
        "_own",
        "_settler",
        "_stamp",
        "_until",
        "is_barrier",
        "lease_ends_ms",
        "place",
        "settled_as",
        "shard",
        "token",
    )

    def __init__(self, settler: Settler, shard: Shard, message: Message, fields: dict[str, bytes]) -> None:
        get = fields.get
        lease = get(header.LEASE_UNTIL_MS)
        self._settler = settler
        self._message = message
        self._stamp = get(header.TIMESTAMP_MS)
        self._until = get(EXPIRES_AT_MS)
        self.shard = shard
        self.settled_as = ""
        self.lease_ends_ms: float = _FOREVER if lease is None else int(lease)
        self.place = get(header.BOOKMARK, b"::-1")
        count, epoch = get(header.DELIVERY_COUNT, b""), get(header.EPOCH)
        self.token = count if epoch is None or not count else b"%b@%b" % (count, epoch)
        kind = get(header.KIND)
        self.is_barrier = kind == _BARRIER
        # The library would keep all headers with the message: a prefetched delivery then weighs a kilobyte more, and
        # a dozen more objects for the garbage collector to visit, which halves the throughput.
        own = None
        if kind == reference.KIND or not _OWN.issuperset(
            fields
        ):  # by reference, the fields are not the message's headers
            own = [item for item in headers_of(message) if item[0] not in _OWN]
        self._own = own or None
        message.set_headers([])

    def __repr__(self) -> str:
        return f"<delivery {self.bookmark}#{self.delivery_count} from {self.queue}>"

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self.shard.entity

    @property
    def bookmark(self) -> Bookmark:
        """Where the message stands in its underlying topic."""
        name, partition, offset = self.place.decode().rsplit(":", 2)
        return Bookmark(name, int(partition), int(offset))

    @property
    def key(self) -> bytes | None:
        """The message's key, untouched."""
        return self._message.key()

    @property
    def value(self) -> bytes | None:
        """The message's value, untouched."""
        return self._message.value()

    @property
    def headers(self) -> Headers:
        """The message's own headers in order, repeated names included."""
        return list(self._own or ())

    @property
    def delivery_count(self) -> int:
        """How often the message was delivered, this time included; the fencing token."""
        return int(self.token.partition(b"@")[0] or 0)

    @property
    def lease_until_ms(self) -> int | None:
        """When the lease is over, ms since the epoch; None for at-most-once deliveries and barriers."""
        return None if self.lease_ends_ms == _FOREVER else int(self.lease_ends_ms)

    @property
    def expires_at_ms(self) -> int | None:
        """The message's deadline, ms since the epoch; None without one."""
        return None if self._until is None else int(self._until)

    @property
    def timestamp_ms(self) -> int:
        """The message's arrival, ms since the epoch."""
        return self._message.timestamp()[1] if self._stamp is None else int(self._stamp)

    def acknowledge(self) -> None:
        """Done: the message leaves the queue. Sent in batches, in the background.

        Raises:
            AlreadySettled: it was settled before.
        """
        self._settler.acknowledge((self,))

    def cancel(self, delay_ms: int | None = None) -> None:
        """Back to the queue, to its original place.

        Args:
            delay_ms: how long it stays undeliverable, in ms; None = not at all.

        Raises:
            AlreadySettled: it was settled before.
        """
        self._settler.command("cancel", (self,), delay_ms=delay_ms, lease_ms=None)

    def expire(self) -> None:
        """Out of the queue now, to the dead letters.

        Raises:
            AlreadySettled: it was settled before.
        """
        self._settler.command("expire", (self,), delay_ms=None, lease_ms=None)

    def renew(self, lease_ms: int | None = None) -> None:
        """Ask for a longer lease; `lease_until_ms` changes when the shard has answered.

        Args:
            lease_ms: how long from now, in ms; None = the queue's lease period.

        Raises:
            AlreadySettled: it was settled before.
        """
        self._settler.command("renew", (self,), delay_ms=None, lease_ms=lease_ms)

    def check_unsettled(self) -> None:
        """Do nothing for a delivery that may still be settled.

        Raises:
            AlreadySettled: it was settled before.
        """
        if self.settled_as:
            raise AlreadySettled(self.bookmark, self.settled_as)

    def mark(self, how: Settling) -> None:
        """Note how it is being settled.

        Raises:
            AlreadySettled: it was settled before.
        """
        self.check_unsettled()
        if how != "renew":
            self.settled_as = how

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.settled_as:
            return
        if kind is None:
            self.acknowledge()
        else:
            self.cancel()

    async def __aenter__(self) -> Delivery:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)
