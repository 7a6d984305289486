"""Messages that were handed to kombu and are not settled yet. Their leases are renewed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from kombu.transport import virtual

from lapse_client import Delivery, LapseError, QueueSubscriber

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
"""How often the leases are checked, in seconds."""

_SHARE: Final = 0.4
"""The part of a lease after which it is renewed."""


INTAKE_S: Final = 1.0
"""How long to wait, in seconds, until shards confirm that they deliver no more to a subscriber."""


@dataclass
class Held:
    """A delivery that kombu works on.

    Attributes:
        delivery: the delivery.
        subscriber: the subscriber that received it.
        lease_s: length of its lease when it was handed out, in seconds; 0 = no lease.
        renewed_s: when the lease began, in seconds of the monotonic clock.
    """

    delivery: Delivery
    subscriber: QueueSubscriber
    lease_s: float
    renewed_s: float

    def is_due(self, now_s: float) -> bool:
        """Return whether the lease should be renewed."""
        return 0 < self.lease_s * _SHARE <= now_s - self.renewed_s


class Unsettled(virtual.QoS):
    """The channel's unsettled messages by delivery tag, and their limit.

    A thread renews the leases of messages as long as the process lives. If the process dies, its heartbeats stop, and
    the queue hands the messages to other subscriptions.

    Args:
        channel: the channel.
        prefetch_count: most unsettled messages; 0 = no limit.
    """

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        self._held: dict[str, Held] = {}
        self._reserved: dict[int, Held] = {}
        """The deliveries that have come and are not handed out, by their `id`."""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._renewing: threading.Thread | None = None

    def can_consume(self) -> bool:
        """Return whether one more message may be handed out."""
        return not self.prefetch_count or len(self._held) < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """Return how many more messages may be handed out; None = any number."""
        return max(0, self.prefetch_count - len(self._held)) if self.prefetch_count else None

    def hold(self, tag: str, delivery: Delivery, subscriber: QueueSubscriber) -> None:
        """Register a delivery under its tag until it is settled."""
        with self._lock:
            known = id(delivery) in self._reserved
            self._held[tag] = self._reserved.pop(id(delivery)) if known else _begun(delivery, subscriber)
            if self._renewing is None and not self._closed.is_set():
                self._renewing = threading.Thread(target=self._renew, name="lapse kombu leases", daemon=True)
                self._renewing.start()

    def reserve(self, deliveries: Iterable[Delivery], subscriber: QueueSubscriber) -> None:
        """Keep the leases of deliveries that wait until more may be handed out."""
        with self._lock:
            self._reserved.update((id(delivery), _begun(delivery, subscriber)) for delivery in deliveries)

    def give_back(self, delivery: Delivery) -> None:
        """Return a delivery that was not handed out to its queue."""
        self.settle_now(delivery, delivery.cancel, 0)

    def settle_now(self, delivery: Delivery, settle: Callable[..., object], *arguments: object) -> None:
        """Settle a delivery that kombu does not work on. If it was reserved, its lease is no longer kept."""
        settle(*arguments)
        with self._lock:
            reserved = self._reserved.pop(id(delivery), None)
        if reserved is not None:
            self.channel.settled(reserved.subscriber)

    def append(self, message: Any, delivery_tag: str) -> None:
        """Do nothing: `Channel` registers each delivery itself."""

    def get(self, delivery_tag: str) -> Delivery:
        """Return the delivery of a tag."""
        return self._held[delivery_tag].delivery

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        if (held := self._release(delivery_tag)) is not None:
            held.delivery.acknowledge()
            self.channel.settled(held.subscriber)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return a message to its queue at once, or without `requeue` expire it to the dead letters."""
        if (held := self._release(delivery_tag)) is not None:
            if requeue:
                held.delivery.cancel(0)
            else:
                held.delivery.expire("rejected by its consumer")
            self.channel.settled(held.subscriber)

    def has(self, subscriber: QueueSubscriber) -> bool:
        """Return whether unsettled messages of a subscriber are registered."""
        with self._lock:
            return any(held.subscriber is subscriber for held in self._all())

    def restore_unacked(self) -> None:
        """Return all unsettled messages to their queues."""
        for tag in list(self._held):
            self.reject(tag, requeue=True)

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Do nothing: closing the subscribers returns their messages."""

    def close(self) -> None:
        """Stop renewing leases."""
        self._closed.set()

    def _release(self, tag: str) -> Held | None:
        with self._lock:
            return self._held.pop(tag, None)

    def _all(self) -> list[Held]:
        return [*self._held.values(), *self._reserved.values()]

    def _renew(self) -> None:
        while not self._closed.wait(_LOOK_S):
            self.channel.reserve()
            now = time.monotonic()
            with self._lock:
                due = [held for held in self._all() if held.is_due(now)]
            for subscriber in {id(held.subscriber): held.subscriber for held in due}.values():
                self._renew_some(subscriber, [held for held in due if held.subscriber is subscriber], now)

    def _renew_some(self, subscriber: QueueSubscriber, due: Iterable[Held], now_s: float) -> None:
        for held in due:
            held.renewed_s = now_s
            try:
                held.delivery.renew()
            except LapseError as error:  # settled or closed meanwhile
                logger.debug("%s is not renewed: %s", held.delivery.bookmark, error)


def _begun(delivery: Delivery, subscriber: QueueSubscriber) -> Held:
    now_ms = subscriber.subscription.session.clock.past_ms()
    lease_ms = 0 if delivery.lease_until_ms is None else delivery.lease_until_ms - now_ms
    return Held(delivery, subscriber, max(0, lease_ms) / 1000, time.monotonic())
