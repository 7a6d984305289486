"""Worlds with messages, for the examples of the contract's sources."""

from lapse.core.lifetime import Expiration
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim
from unit.core.queue.world import World

ON = Expiration(enabled=True)
MINUTE_MS = 60_000


def world(**settings) -> World:
    settings.setdefault("lease_ms", 100)
    settings.setdefault("max_lease_ms", 1_000)
    settings.setdefault("dead_letter_topic", "dlq.orders")
    return World(QueueSettings(name="orders", **settings))


def with_messages(count: int = 1, said: dict | None = None, **settings) -> World:
    one = world(**settings)
    for _ in range(count):
        one.publish("orders", **(said or {}))
    one.read("orders")
    return one


def at(first: int, last: int | None = None, token: int | None = None) -> Claim:
    return Claim("orders", 0, first, first if last is None else last, token)


def got(deliveries, subscription: str) -> list[int]:
    return [one.bookmark[2] for one in deliveries.get(subscription, [])]
