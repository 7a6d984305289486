"""Transactions: what a handler publishes, and the acknowledgment of what it worked on, all or none (X9)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from lapse_client.error import InvalidPublication
from lapse_client.publisher.publication import BuiltHeaders, Headers, headers, payload
from lapse_client.subscriber.retry import Retry

Payload = str | bytes | None


class Output(NamedTuple):
    """A record that a transaction publishes.

    Attributes:
        to: a topic; or a queue, then it goes to the queue's `default_publish_target`.
        value: the payload.
        key: the record's key.
        headers: with its lifetime, if it has one.
    """

    to: str
    value: Payload
    key: Payload
    headers: BuiltHeaders


class Committing(Protocol):
    """Commits transactions; deliveries are those of `lapse_client.delivery.delivery`."""

    def commit(self, transaction: Transaction) -> bool:
        """Commit, and acknowledge; returns whether the outputs count."""

    def give_up(self, transaction: Transaction, delay_ms: int | None) -> None:
        """Return the deliveries to their queues."""


class Transaction:
    """Outputs and the acknowledgment of deliveries, in one Kafka transaction; a context manager of either kind.

    ::

        with delivery.transaction() as tx:
            tx.produce("shipments", ship(delivery.value))

    What is produced is kept until the block ends, and nothing is open in Kafka before. An exception in the block drops
    it, and cancels the deliveries; it is raised on, unless it is `Retry`.

    Args:
        deliveries: what is worked on.
        work: commits it.

    Attributes:
        deliveries: what is worked on.
        outputs: what was produced.
        repeated: after the block: somebody had committed outputs for a delivery before, so those of this block were
            dropped.
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
    ) -> None:
        """Publish a record with the transaction; the arguments are those of `Publisher.publish`.

        Raises:
            InvalidPublication: a value out of range, two lifetimes at once, a payload or key that is neither text nor
                bytes, or the block has ended.
        """
        if self._is_over:
            raise InvalidPublication(f"{to}: the transaction is over, so this would be lost: produce within its block")
        if not isinstance(to, str):
            raise InvalidPublication(f"to = {to!r}: expected the name of a topic or queue")
        built = _headers(headers, ttl_ms, expires_at_ms, enqueue_at_ms, message_id)
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


def _headers(
    own: Headers | None,
    ttl_ms: int | None,
    expires_at_ms: int | None,
    enqueue_at_ms: int | None,
    message_id: str | None,
) -> BuiltHeaders:
    return headers(own, ttl_ms=ttl_ms, expires_at_ms=expires_at_ms, enqueue_at_ms=enqueue_at_ms, message_id=message_id)
