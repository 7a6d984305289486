"""Two queues, of which one hands messages over to the other."""

from __future__ import annotations

from lapse.core.lifetime import Expiration
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim
from unit.core.queue.world import World

ON = Expiration(enabled=True)
ALL = Claim("orders", 0, 0, 1_000)


def here(**more: object) -> World:
    return World(QueueSettings(name="here", expiration=ON, lease_ms=100, **more))


def there(**more: object) -> World:
    return World(QueueSettings(name="there", expiration=ON, lease_ms=100, **more))


def fill(world: World, count: int, **said: object) -> None:
    for _ in range(count):
        world.publish("orders", **said)
    world.read("orders")


def states(world: World) -> list[str]:
    return ["unconfirmed" if not one.confirmed else one.state_name for one in world.shard.peek(0, 1_000)]
