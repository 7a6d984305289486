"""Deliveries: messages handed to a subscription, to be read and settled by the application."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final

from lapse.protocol.bookmark import Bookmark
from lapse_client.delivery.lot import Lot
from lapse_client.error import AlreadySettled
from lapse_client.kafka.headers import Headers
from lapse_client.publisher.publication import Headers as OwnHeaders
from lapse_client.publisher.record_publisher import Payload
from lapse_client.session.shard import Shard
from lapse_client.subscriber.retry import Retry
from lapse_client.subscriber.settler import Settling
from lapse_client.transaction.transaction import Transaction

_FOREVER: Final = float("inf")


class Delivery:
    """A message under a lease. As a context manager it acknowledges at the end, and cancels after an exception.

    An exception `Retry` cancels with its delay, and is not raised again.

    Attributes:
        lot: the messages that were handed out together with it.
        at: its index in the lot.
        lease_ends_ms: end of the lease by the broker's clock, ms since the epoch; infinite without a lease.
        settled_as: how it was settled, such as `acknowledge`; empty while it is not settled.
    """

    __slots__ = ("_processing", "at", "lease_ends_ms", "lot", "settled_as")

    def __init__(self, lot: Lot, at: int) -> None:
        self.lot = lot
        self.at = at
        self.lease_ends_ms = lot.lease_ends_ms
        self.settled_as = ""

    def __repr__(self) -> str:
        return f"<delivery {self.bookmark}#{self.delivery_count} from {self.queue}>"

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self.lot.shard.entity

    @property
    def shard(self) -> Shard:
        """The shard that delivered the message, and that gets its settlement."""
        return self.lot.shard

    @property
    def is_barrier(self) -> bool:
        """Whether the message is a barrier, which has no lease, so that settling it does nothing."""
        return self.lot.is_barrier

    @property
    def place(self) -> bytes:
        """The bookmark as bytes, in the form of commands."""
        return b"%b:%d" % (self.lot.source, self.lot.offsets[self.at])

    @property
    def token(self) -> bytes:
        """The fencing token for settlements: `count@epoch`, or `count`; empty without a lease."""
        return self.lot.token_of(self.at)

    @property
    def bookmark(self) -> Bookmark:
        """The position of the message in its underlying topic."""
        name, _, partition = self.lot.source.decode().rpartition(":")
        return Bookmark(name, int(partition or 0), self.lot.offsets[self.at])

    @property
    def key(self) -> bytes | None:
        """The message's key, untouched."""
        lot = self.lot
        bounds = lot.key_bounds
        if bounds is None:
            records = lot.records
            return lot.key(self.at) if records is None else records[self.at].key()
        at = self.at  # one call less for each message
        return lot.data[bounds[at] : bounds[at + 1]]

    @property
    def value(self) -> bytes | None:
        """The message's value, untouched."""
        lot = self.lot
        bounds = lot.value_bounds
        if bounds is None:
            records = lot.records
            return lot.value(self.at) if records is None else records[self.at].value()
        at = self.at
        return lot.data[bounds[at] : bounds[at + 1]]

    @property
    def payload(self) -> Any:
        """The deserialized value; the value itself if the subscriber has no deserializer."""
        return self.value

    @property
    def headers(self) -> Headers:
        """The message's own headers in order, repeated names included."""
        return self.lot.headers(self.at)

    @property
    def delivery_count(self) -> int:
        """How often the message was delivered, this delivery included. It is the fencing token."""
        return self.lot.delivery_counts[self.at]

    @property
    def lease_until_ms(self) -> int | None:
        """End of the lease, ms since the epoch; None for at-most-once deliveries and barriers."""
        return None if self.lease_ends_ms == _FOREVER else int(self.lease_ends_ms)

    @property
    def expires_at_ms(self) -> int | None:
        """The message's deadline, ms since the epoch; None without one."""
        return self.lot.deadline_ms(self.at)

    @property
    def timestamp_ms(self) -> int:
        """The message's arrival, ms since the epoch."""
        return self.lot.timestamp_ms(self.at)

    def acknowledge(self) -> None:
        """Acknowledge the message, so that it leaves the queue. Acknowledgments are sent in batches, in the background.

        Raises:
            AlreadySettled: it was settled before.
        """
        self.lot.settler.acknowledge((self,))

    def cancel(self, delay_ms: int | None = None) -> None:
        """Return the message to its original place in the queue.

        Args:
            delay_ms: delay before its next delivery, in ms; 0 = no delay; None = the delay of the message's header
                `lapse-retry-delay-ms`, or of the queue's `retry`.

        Raises:
            AlreadySettled: it was settled before.
        """
        self.lot.settler.command("cancel", (self,), delay_ms=delay_ms)

    def expire(self, fault: str = "") -> None:
        """Expire the message now: it leaves the queue and becomes a dead letter.

        Args:
            fault: what is wrong with the message, for its dead letter and its event. 500 characters are kept.

        Raises:
            AlreadySettled: it was settled before.
        """
        self.lot.settler.command("expire", (self,), fault=fault)

    def renew(self, lease_ms: int | None = None) -> None:
        """Renew the lease. `lease_until_ms` changes when the shard has answered.

        Args:
            lease_ms: length of the lease from now, in ms; None = the queue's lease period.

        Raises:
            AlreadySettled: it was settled before.
        """
        self.lot.settler.command("renew", (self,), lease_ms=lease_ms)

    def reply(self, value: Any, key: Payload = None, *, headers: OwnHeaders | None = None) -> Bookmark:
        """Reply to a request, and wait until Kafka has the reply. Reply first, and then acknowledge.

        The reply goes to the queue or topic in the request's header `reply_to`, with the request's `correlation_id` and
        deadline. It settles nothing. If there are several replies to a request, the first one counts.

        Args:
            value: the payload: bytes, text (sent as UTF-8), or an object that the subscriber's serializer takes.
            key: the record's key: bytes, or text (sent as UTF-8).
            headers: further headers.

        Returns:
            The reply's bookmark.

        Raises:
            InvalidPublication: the message asks for no reply, or a header is not valid; nothing was sent.
            UnknownEntity: the queue or topic in `reply_to` does not exist.
            PublishFailed: Kafka did not accept the reply.
        """
        return self.lot.settler.reply(self, value, key, headers)

    def transaction(self) -> Transaction:
        """Return a transaction that commits outputs and the acknowledgment of this delivery together (X9).

        Open it with `with`, or with `async with`. See `Transaction`, and docs/exactly-once.md for what it promises.

        Raises:
            InvalidPublication: the delivery has no lease, because it is at most once, or a barrier.
        """
        return self.lot.settler.transaction((self,))

    def check_unsettled(self) -> None:
        """Raise an error if the delivery is settled.

        Raises:
            AlreadySettled: it was settled before.
        """
        if self.settled_as:
            raise AlreadySettled(self.bookmark, self.settled_as)

    def mark(self, how: Settling) -> None:
        """Mark the delivery as settled by an action. A renewal does not settle it.

        Raises:
            AlreadySettled: it was settled before.
        """
        self.check_unsettled()
        if how != "renew":
            self.settled_as = how

    def __enter__(self) -> Delivery:
        if (tracing := self.lot.settler.tracing) is not None:
            self._processing = tracing.processing(self)
            self._processing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self.lot.settler.tracing is None:
            return self._settle(kind, error)
        try:
            return self._settle(kind, error)
        finally:
            failed = not isinstance(error, Retry)  # a `Retry` is not a failure
            self._processing.__exit__(*((kind, error, traceback) if failed else (None, None, None)))

    def _settle(self, kind: type[BaseException] | None, error: BaseException | None) -> bool:
        """Settle a delivery that the application has not settled. Return whether the exception ends here."""
        if self.settled_as:
            return False
        if isinstance(error, Retry):
            self.cancel(error.delay_ms)
            return True
        if kind is None:
            self.acknowledge()
        else:
            self.cancel()
        return False

    async def __aenter__(self) -> Delivery:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, error, traceback)
