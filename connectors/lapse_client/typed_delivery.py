"""Deliveries whose payloads were read by the subscriber's deserializer; what does not fit leaves as a dead letter."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from lapse_client.delivery import Delivery
from lapse_client.error import InvalidPayload
from lapse_client.lot import Lot
from lapse_client.serde import DeserializerLike, read

log = logging.getLogger("lapse_client")


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


def typed(deserializer: DeserializerLike, deliveries: Iterable[Delivery]) -> list[Delivery]:
    """Deliveries with their payloads; what does not fit is expired with its fault, and not among them.

    A message that was delivered at most once is gone already, so its fault is only logged.
    """
    fitting: list[Delivery] = []
    for delivery in deliveries:
        payload = None
        try:
            payload = read(deserializer, delivery.value, delivery.bookmark.topic)
        except InvalidPayload as error:
            if not delivery.is_barrier:
                _refuse(delivery, str(error))
                continue
            log.warning("the barrier %s of %s has no payload: %s", delivery.bookmark, delivery.queue, error)
        fitting.append(TypedDelivery(delivery.lot, delivery.at, payload))
    return fitting


def _refuse(delivery: Delivery, fault: str) -> None:
    if delivery.lease_until_ms is None:
        log.warning("%s of %s was delivered at most once and is lost: %s", delivery.bookmark, delivery.queue, fault)
        delivery.acknowledge()
        return
    log.warning("%s of %s goes to the dead letters: %s", delivery.bookmark, delivery.queue, fault)
    delivery.expire(fault)
