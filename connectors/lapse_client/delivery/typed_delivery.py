"""Deliveries with deserialized payloads. A message whose payload does not fit becomes a dead letter."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import Lot
from lapse_client.error import InvalidPayload, UnresolvedSchema
from lapse_client.payload.serde import DeserializerLike, read

log = logging.getLogger("lapse_client")


LATER_MS: Final = 1_000
"""First delay of a message if the deserializer failed for another reason, such as an unreachable registry, in ms."""

MOST_LATER_MS: Final = 64_000
"""Longest such delay, in ms. It doubles with each delivery, because a queue may limit the number of deliveries."""


TRIES: Final = 5
"""The delivery at which a message dies whose schema is still unknown, or still cannot be read as the consumer's."""


class TypedDelivery(Delivery):
    """A delivery with a deserialized payload.

    Args:
        lot: the messages that were handed out together with it.
        at: its index in the lot.
        payload: the deserialized value; None without a value, or if a barrier's value does not fit.
    """

    __slots__ = ("_payload",)

    def __init__(self, lot: Lot, at: int, payload: Any) -> None:
        super().__init__(lot, at)
        self._payload = payload

    @property
    def payload(self) -> Any:
        """The deserialized value."""
        return self._payload


def typed(
    deserializer: DeserializerLike, deliveries: Iterable[Delivery], kind: type[TypedDelivery] = TypedDelivery
) -> list[Delivery]:
    """Return deliveries with deserialized payloads, without those whose payloads do not fit. These are expired.

    A message that was delivered at most once is gone already, so its fault is only logged. If the deserializer fails
    for another reason, the message is cancelled with a delay of `LATER_MS`, then of twice as long. So it is if only the
    schemas do not fit, up to delivery `TRIES`: a registry may lag behind, or another consumer may have the right one.
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
        made = kind(delivery.lot, delivery.at, payload)
        made.lease_ends_ms = delivery.lease_ends_ms  # it was renewed while an earlier transaction was in doubt
        fitting.append(made)
    return fitting


def _hold_back(delivery: Delivery, error: Exception) -> None:
    where = (delivery.bookmark, delivery.queue)
    if delivery.lease_until_ms is None:
        log.warning("%s of %s was delivered at most once and is lost: %s", *where, error)
        delivery.acknowledge()
    elif isinstance(error, InvalidPayload) and not (
        isinstance(error, UnresolvedSchema) and delivery.delivery_count < TRIES
    ):
        log.warning("%s of %s goes to the dead letters: %s", *where, error)
        delivery.expire(str(error))
    else:
        text = "the deserializer failed on %s of %s; the message comes again in %d ms"
        later_ms = min(LATER_MS << min(delivery.delivery_count - 1, 30), MOST_LATER_MS)
        log.warning(text, *where, later_ms, exc_info=error)
        delivery.cancel(later_ms)
