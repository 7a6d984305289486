"""Deliveries whose payloads were read by the subscriber's deserializer; what does not fit leaves as a dead letter."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import Lot
from lapse_client.error import InvalidPayload
from lapse_client.payload.serde import DeserializerLike, read

log = logging.getLogger("lapse_client")


LATER_MS: Final = 1_000
"""How long a message waits whose deserializer failed for a reason of its own, such as a registry that is away."""


class TypedDelivery(Delivery):
    """A delivery whose payload was read.

    Args:
        lot: the messages that it came with.
        at: its index there.
        payload: what the deserializer made of the value; None where there is no value, or a barrier's does not fit.
    """

    __slots__ = ("_payload",)

    def __init__(self, lot: Lot, at: int, payload: Any) -> None:
        super().__init__(lot, at)
        self._payload = payload

    @property
    def payload(self) -> Any:
        """What the subscriber's deserializer made of the value."""
        return self._payload


def typed(
    deserializer: DeserializerLike, deliveries: Iterable[Delivery], kind: type[TypedDelivery] = TypedDelivery
) -> list[Delivery]:
    """Deliveries with their payloads; what does not fit is expired with its fault, and not among them.

    A message that was delivered at most once is gone already, so its fault is only logged. Where the deserializer fails
    for another reason, the message returns to the queue for a while.
    """
    fitting: list[Delivery] = []
    for delivery in deliveries:
        payload = None
        try:
            payload = read(deserializer, delivery.value, delivery.bookmark.topic)
        except Exception as error:  # noqa: BLE001  # whatever a library, or a user's function, raises
            if not delivery.is_barrier:
                _hold_back(delivery, error)
                continue
            log.warning("the barrier %s of %s has no payload: %s", delivery.bookmark, delivery.queue, error)
        fitting.append(kind(delivery.lot, delivery.at, payload))
    return fitting


def _hold_back(delivery: Delivery, error: Exception) -> None:
    where = (delivery.bookmark, delivery.queue)
    if delivery.lease_until_ms is None:
        log.warning("%s of %s was delivered at most once and is lost: %s", *where, error)
        delivery.acknowledge()
    elif isinstance(error, InvalidPayload):
        log.warning("%s of %s goes to the dead letters: %s", *where, error)
        delivery.expire(str(error))
    else:
        told = "the deserializer failed on %s of %s; the message comes again in %d ms"
        log.warning(told, *where, LATER_MS, exc_info=error)
        delivery.cancel(LATER_MS)
