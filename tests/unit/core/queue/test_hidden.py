"""What a user may not see answers as what was never there, whatever its state and whatever is asked (X4)."""

from collections.abc import Callable

import pytest

from lapse.core.lifetime import Expiration
from lapse.core.queue.settings import Leasing, QueueSettings, Semantics
from lapse.core.queue.settlement.settlement import Claim
from support.suite.at_length import alike
from unit.core.queue.world import World

MINE = "/f = 1"
NEVER = 40


def at(first: int, last: int | None = None) -> Claim:
    return Claim("orders", 0, first, first if last is None else last)


def available(world: World, **said: object) -> None:
    world.publish("orders", **said)
    world.read("orders")


def leased(world: World, **said: object) -> None:
    available(world, **said)
    world.subscribe("other")
    world.deliver()


def scheduled(world: World, **said: object) -> None:
    available(world, enqueue_at_ms=world.now_ms + 5_000, **said)


def delayed(world: World, **said: object) -> None:
    available(world, **said)
    world.subscribe("other")
    world.deliver()
    world.settle("cancel", "other", at(0), delay_ms=10_000)


def late(world: World, **said: object) -> None:
    available(world, ttl_ms=50, **said)
    world.now_ms += 50


def expired(world: World, **said: object) -> None:
    available(world, ttl_ms=50, **said)
    world.advance(50)


def settled(world: World, **said: object) -> None:
    available(world, **said)
    world.settle("acknowledge", "other", at(0))


def purged(world: World, **said: object) -> None:
    available(world, **said)
    world.purge()


def withdrawn(world: World, **said: object) -> None:
    scheduled(world, **said)
    world.settle("cancel", "other", at(0))


def transferring(world: World, **said: object) -> None:
    available(world, **said)
    world.hold("moving", at(0))


STATES: tuple[Callable[..., None], ...] = (
    *(available, leased, scheduled, delayed, late, expired, settled, purged, withdrawn, transferring),
)


def world_in(state: Callable[..., None], leasing: Leasing, f: int) -> World:
    settings = QueueSettings(
        name="orders",
        expiration=Expiration(enabled=True),
        leasing=leasing,
        lease_ms=60_000,
        max_lease_ms=60_000,
        dead_letter_topic="dlq.orders",
    )
    world = World(settings)
    state(world, body={"f": f})
    # The log goes on behind a gap, so that offsets below were never a message.
    world.publish("orders", gap=50, body={"f": 1})
    world.read("orders")
    world.subscribe("mine")
    return world


@pytest.mark.feature("X4")
@pytest.mark.parametrize("action", ["acknowledge", "cancel", "expire", "renew"])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("leasing", alike(*Leasing))
def test_what_is_hidden_answers_as_what_never_was(action: str, state: Callable[..., None], leasing: Leasing) -> None:
    world = world_in(state, leasing, f=2)
    beyond = 10_000
    (hidden,) = world.settle(action, "mine", at(0), row_filter=MINE)
    (never,) = world.settle(action, "mine", at(NEVER), row_filter=MINE)
    (behind,) = world.settle(action, "mine", at(beyond), row_filter=MINE)
    assert hidden == never == behind == "unknown"
    assert world.settle(action, "mine", at(0, NEVER), row_filter=MINE) == ["unknown"] * (NEVER + 1)


@pytest.mark.feature("X4")
@pytest.mark.parametrize("action", ["acknowledge", "cancel", "expire", "renew"])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("leasing", alike(*Leasing))
def test_what_may_be_seen_answers_as_to_anybody(action: str, state: Callable[..., None], leasing: Leasing) -> None:
    with_filter, without = (world_in(state, leasing, f=1) for _ in range(2))
    assert with_filter.settle(action, "mine", at(0), row_filter=MINE) == without.settle(action, "mine", at(0))


@pytest.mark.feature("X4", "Q6")
@pytest.mark.parametrize("action", ["acknowledge", "cancel", "expire", "renew"])
def test_what_another_was_sent_at_most_once_is_hidden(action: str) -> None:
    world = World(QueueSettings(name="orders", semantics=Semantics.AT_MOST_ONCE))
    leased(world, body={"f": 2})
    world.subscribe("mine")
    assert world.settle(action, "mine", at(0), row_filter=MINE) == ["unknown"]
