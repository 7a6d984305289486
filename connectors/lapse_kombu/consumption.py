"""The consumers of kombu, on subscriptions or transient queues."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from lapse_client import Delivery, QueueSubscriber
from lapse_kombu.task_message import TaskMessage
from lapse_kombu.transient import Transient
from lapse_kombu.unsettled import INTAKE_S, Unsettled


class Consumption:
    """Receives from a queue for one consumer tag.

    Args:
        queue: kombu's name of the queue.
        subscriber: the started subscriber.
        backlog: the subscriber's `max_backlog`.
        callback: called with each message.
        unsettled: keeps leases.
        no_ack: whether messages are acknowledged as they are handed out.
    """

    def __init__(
        self,
        queue: str,
        subscriber: QueueSubscriber,
        backlog: int,
        callback: Callable[[Any], object],
        unsettled: Unsettled,
        *,
        no_ack: bool,
    ) -> None:
        self.queue = queue
        self._unsettled = unsettled
        self._waiting: deque[Delivery] = deque()
        self._lock = threading.Lock()
        self._ended = False
        self.subscribe(subscriber, backlog)
        self.callback = callback
        self.no_ack = no_ack

    def subscribe(self, subscriber: QueueSubscriber, backlog: int) -> None:
        """Receive from another subscriber from now on."""
        with self._lock:
            self.subscriber = subscriber
            self.backlog = backlog

    def take(self, most: int, timeout_s: float) -> list[Delivery]:
        """Return one delivery, waiting for it. What came with it, at most `most` in all, waits here for the next calls.

        If the consumer fails on one, the others so remain here. Their leases are kept, and nobody else would get them.
        """
        if first := self._first_reserved():
            return first
        subscriber = self.subscriber
        came = subscriber.subscription.take(most, timeout_s)
        with self._lock:
            if not self._ended:
                self._unsettled.reserve(came, subscriber)  # until it is held, or settled
                self._waiting.extend(came[1:])
                return came[:1]
        for delivery in came:  # another thread has cancelled the consumer meanwhile
            self._unsettled.give_back(delivery)
        return []

    def hand_out(self, convert: Callable[..., TaskMessage | None], most: int, timeout_s: float) -> bool:
        """Call the consumer with up to `most` messages that have come together, waiting for the first one.

        Args:
            convert: converts a delivery to a message; None = it is none of kombu.
            most: the greatest number of messages.
            timeout_s: how long to wait for the first one, in seconds.

        Returns:
            Whether there was any.
        """
        handed_out = 0
        while handed_out < most and (self._waiting or not handed_out):
            if not (came := self.take(most, timeout_s)):
                break
            handed_out += 1
            message = convert(self.queue, came[0], self.subscriber, no_ack=self.no_ack)
            if message is not None:
                self.callback(message)
        return handed_out > 0

    def reserve(self) -> None:
        """Have leases kept of what has come and may not be handed out yet. May be called from any thread."""
        with self._lock:
            if not self._ended and (came := self.subscriber.subscription.take(self.backlog, 0.0)):
                self._unsettled.reserve(came, self.subscriber)
                self._waiting.extend(came)

    def give_back(self) -> None:
        """Return what was never handed out, and reserve no more."""
        with self._lock:
            self._ended = True
        if self._waiting:
            self.subscriber.subscription.end_intake(INTAKE_S)
        while self._waiting:
            self._unsettled.give_back(self._waiting.popleft())

    def _first_reserved(self) -> list[Delivery]:
        """Return the first delivery that waited whose lease still holds: others may have those before it."""
        while self._waiting:
            delivery = self._waiting.popleft()
            if delivery.lease_ends_ms > self.subscriber.subscription.session.clock.past_ms():
                return [delivery]
            self._unsettled.give_back(delivery)
        return []


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

    def hand_out(
        self, convert: Callable[[str, dict[str, Any]], TaskMessage | None], most: int, timeout_s: float
    ) -> bool:
        """Call the consumer with up to `most` messages, as `Consumption.hand_out` does.

        If the consumer fails on one, the others are kept.
        """
        heard = deque(self._transient.take(self.queue, most, timeout_s))
        is_any = bool(heard)
        try:
            while heard:
                if (message := convert(self.queue, heard.popleft())) is not None:
                    self.callback(message)
        finally:
            self._transient.put_back(self.queue, heard)
        return is_any
