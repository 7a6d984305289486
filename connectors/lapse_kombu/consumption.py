"""One consumer of a queue: its subscription, and what becomes of it when kombu cancels the consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lapse_client import Delivery, QueueSubscriber


class Consumption:
    """Receives for one consumer tag.

    Args:
        queue: kombu's name of it.
        subscriber: started.
        callback: gets each message.
        no_ack: whether messages are acknowledged as they are handed out.
    """

    def __init__(
        self, queue: str, subscriber: QueueSubscriber, callback: Callable[[Any], object], *, no_ack: bool
    ) -> None:
        self.queue = queue
        self.subscriber = subscriber
        self.callback = callback
        self.no_ack = no_ack

    def take(self, most: int, timeout_s: float) -> list[Delivery]:
        """Return up to `most` deliveries, waiting for the first one."""
        return self.subscriber.subscription.take(most, timeout_s)
