"""The protocol of settlers, which send an application's settlements of its deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from lapse.protocol.bookmark import Bookmark
from lapse_client.publisher.publication import Headers
from lapse_client.tracing import Tracing
from lapse_client.transaction.transaction import Transaction

Settling = Literal["acknowledge", "cancel", "expire", "renew"]


class Settler(Protocol):
    """Sends settlements. The deliveries are objects of `lapse_client.delivery.delivery`.

    Attributes:
        tracing: makes the spans of processing and settling; None = no spans.
    """

    tracing: Tracing | None

    def acknowledge(self, deliveries: Sequence[Any]) -> None:
        """Acknowledge deliveries; the acknowledgments are sent in batches."""

    def command(
        self,
        how: Settling,
        deliveries: Sequence[Any],
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        fault: str = "",
    ) -> object:
        """Settle deliveries with a command that is sent at once."""

    def reply(
        self, request: Any, value: str | bytes | None, key: str | bytes | None, headers: Headers | None
    ) -> Bookmark:
        """Send a reply to a delivery, and wait until Kafka has it."""

    def transaction(self, deliveries: Sequence[Any]) -> Transaction:
        """Return a transaction over deliveries."""
