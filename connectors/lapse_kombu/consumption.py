"""The consumers of kombu, on subscriptions or transient queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lapse_client import Delivery, QueueSubscriber
from lapse_kombu.transient import Transient


class Consumption:
    """Receives from a queue for one consumer tag.

    Args:
        queue: kombu's name of the queue.
        subscriber: the started subscriber.
        backlog: the subscriber's `max_backlog`.
        callback: called with each message.
        no_ack: whether messages are acknowledged as they are handed out.
    """

    def __init__(
        self, queue: str, subscriber: QueueSubscriber, backlog: int, callback: Callable[[Any], object], *, no_ack: bool
    ) -> None:
        self.queue = queue
        self.subscribe(subscriber, backlog)
        self.callback = callback
        self.no_ack = no_ack

    def subscribe(self, subscriber: QueueSubscriber, backlog: int) -> None:
        """Receive from another subscriber from now on."""
        self.subscriber = subscriber
        self.backlog = backlog

    def take(self, most: int, timeout_s: float) -> list[Delivery]:
        """Return up to `most` deliveries, waiting for the first one."""
        return self.subscriber.subscription.take(most, timeout_s)


class Listening:
    """Receives from a transient queue for one consumer tag, without acknowledgments.

    Args:
        queue: kombu's name of the queue.
        transient: transient queues of the connection.
        callback: called with each message.
    """

    def __init__(self, queue: str, transient: Transient, callback: Callable[[Any], object]) -> None:
        self.queue = queue
        self.callback = callback
        self._transient = transient

    def take(self, most: int, timeout_s: float) -> list[dict[str, Any]]:
        """Return up to `most` messages, waiting for the first one."""
        return self._transient.take(self.queue, most, timeout_s)
