"""Transactions: the outputs of a handler, and the acknowledgments of its messages, all or none (X9)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from lapse_client.error import InvalidPublication
from lapse_client.publisher.publication import BuiltHeaders, Headers, payload
from lapse_client.publisher.publication import headers as build_headers
from lapse_client.subscriber.retry import Retry

Payload = str | bytes | None


class Output(NamedTuple):
    """A record that a transaction publishes.

    Attributes:
        to: name of a topic or a queue. A queue's messages go to its `default_publish_target`.
        value: value of the record.
        key: key of the record.
        headers: headers of the record, its lifetime included.
    """

    to: str
    value: Payload
    key: Payload
    headers: BuiltHeaders


class Committing(Protocol):
    """Commits transactions. The deliveries are objects of `lapse_client.delivery.delivery`."""

    def commit(self, transaction: Transaction) -> bool:
        """Commit the outputs and acknowledge the deliveries; return whether the outputs were committed."""

    def give_up(self, transaction: Transaction, delay_ms: int | None) -> None:
        """Return the deliveries to their queues, after a delay in ms."""


class Transaction:
    """Outputs and the acknowledgment of deliveries in one Kafka transaction; for `with` or `async with`.

    ::

        with delivery.transaction() as tx:
            tx.produce("shipments", ship(delivery.value))

    Outputs are kept in memory until the block ends, and no transaction is open in Kafka before. An exception in the
    block drops them, and cancels the deliveries. The exception is raised again, unless it is `Retry`.

    Args:
        deliveries: the deliveries to acknowledge.
        work: commits the transaction.

    Attributes:
        deliveries: the deliveries to acknowledge.
        outputs: the outputs so far.
        repeated: set after the block: whether outputs for a delivery had been committed before, so that those of
            this block were dropped.
    """

    def __init__(self, deliveries: Sequence[Any], work: Committing) -> None:
        self.deliveries = deliveries
        self.outputs: list[Output] = []
        self.repeated = False
        self._work = work
        self._is_over = False

    def produce(
        self,
        to: str,
        value: Payload,
        key: Payload = None,
        *,
        ttl_ms: int | None = None,
        expires_at_ms: int | None = None,
        enqueue_at_ms: int | None = None,
        message_id: str | None = None,
        headers: Headers | None = None,  # as `Publisher.publish` has it
        delta: bool = False,
    ) -> None:
        """Add a record to the outputs; the arguments are those of `Publisher.publish`, without a serializer.

        Raises:
            InvalidPublication: a value is out of range, there are two lifetimes, a payload or key is neither text
                nor bytes, or the block has ended.
        """
        if self._is_over:
            raise InvalidPublication(f"{to}: the transaction is over, so this would be lost: produce within its block")
        if not isinstance(to, str):
            raise InvalidPublication(f"to = {to!r}: expected the name of a topic or queue")
        built = build_headers(
            value,
            headers,
            ttl_ms=ttl_ms,
            expires_at_ms=expires_at_ms,
            enqueue_at_ms=enqueue_at_ms,
            message_id=message_id,
            delta=delta,
        )
        self.outputs.append(Output(to, payload("value", value), payload("key", key), built))

    def __enter__(self) -> Transaction:
        for delivery in self.deliveries:
            delivery.check_unsettled()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._is_over = True
        if kind is None:
            self.repeated = not self._work.commit(self)
            return False
        self._work.give_up(self, error.delay_ms if isinstance(error, Retry) else None)
        return isinstance(error, Retry)

    async def __aenter__(self) -> Transaction:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        # A commit that has begun is completed, even if the caller is cancelled meanwhile.
        return await asyncio.shield(asyncio.to_thread(self.__exit__, kind, error, traceback))
