"""Worlds whose messages have payloads: what filters, priorities, barriers and groups read."""

from lapse.core.expression import compile_filter, compile_value
from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.settings import Fairness, QueueSettings, Semantics
from lapse.core.queue.settlement.settlement import Claim
from unit.core.queue.world import World

ON = Expiration(enabled=True)
ONCE = {"semantics": Semantics.AT_MOST_ONCE, "fairness": Fairness.ROUND_ROBIN}
PRIORITY = TraitReader(priority=compile_value("/p"))
BARRIER = TraitReader(barrier=compile_filter("/b = 'yes'"))
GROUP = TraitReader(group=compile_value("/g"))
STOP = {"b": "yes"}


def world(*bodies: dict, said: dict | None = None, **settings) -> World:
    settings.setdefault("lease_ms", 100)
    settings.setdefault("dead_letter_topic", "dlq.orders")
    one = World(QueueSettings(name="orders", **settings))
    publish(one, *bodies, **(said or {}))
    return one


def publish(one: World, *bodies: dict, **said) -> None:
    for body in bodies:
        one.publish("orders", body=body, **said)
    one.read("orders")


def at(first: int, last: int | None = None, token: int | None = None) -> Claim:
    return Claim("orders", 0, first, first if last is None else last, token)


def got(deliveries, subscription: str) -> list[int]:
    return [one.bookmark[2] for one in deliveries.get(subscription, [])]


def depth(one: World) -> int:
    return one.shard.depth()["depth"]


def sent(deliveries, subscription: str) -> list[tuple[int, bool]]:
    return [(one.bookmark[2], one.barrier) for one in deliveries.get(subscription, [])]
