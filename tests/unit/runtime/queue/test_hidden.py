"""What a user may not see is answered as what was never there, whatever is asked and whatever its state (X4)."""

import dataclasses
import json
from collections.abc import Callable, Sequence

import pytest

from lapse.core.entitlement import QUEUE_RIGHTS, Right
from lapse.core.lifetime import Expiration
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import Leasing, QueueSettings
from lapse.protocol.command import QUEUE_COMMANDS
from lapse.runtime.authorization.command_authorizer import CommandAuthorizer
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.tp import TP
from support.suite.at_length import alike
from support.suite.event_loop import finished
from unit.runtime.authorization import test_command_authorizer
from unit.runtime.authorization.test_command_authorizer import Record, T, answer, guard, signed
from unit.runtime.queue.machine_alone import Letters

pytestmark = pytest.mark.feature("X4")

HIDDEN, OWN = 10, 20
"""Offsets: between them, and before the first, the log has gaps."""

ASKED = T + 1_000
"""When Alice asks."""

SETTINGS = QueueSettings(
    name="orders",
    expiration=Expiration(enabled=True),
    lease_ms=60_000,
    max_lease_ms=60_000,
    dead_letter_topic="dlq.orders",
)


class Payloads(test_command_authorizer.Payloads):
    async def ends(self, tps: Sequence[TP]) -> dict[TP, int]:
        return dict.fromkeys(tps, OWN + 1)


class World:
    """A shard, and what was done to the message that Alice may not see; without one there is a gap in its place."""

    def __init__(self, hidden: bool, settings: QueueSettings) -> None:
        self.hidden = hidden
        payloads, output = Payloads(), QueueOutput("orders", 0, 1, "dlq.orders", 1)
        self.payloads = payloads
        self.machine = QueueMachine(settings, restore([]), 1, payloads, output, "orders")
        self.machine.guarded(CommandAuthorizer(guard(), 0))
        self.machine.take_over(T)

    def arrive(self, *headers: tuple[str, bytes], desk: str = "B", offset: int = HIDDEN) -> None:
        if self.hidden or desk == "A":
            value = json.dumps({"desk": desk}).encode()
            self.machine.arrive("orders", 0, [Record(offset, value=value, headers=list(headers))])
            self.finish()

    def ask(self, user: str, name: str, at_ms: int, **fields: object) -> dict:
        self.machine.command(signed(user, name, at_ms, **fields))
        return answer(self.finish(), user)

    def finish(self, letters: Letters | None = None):
        return finished(self.machine.finish(letters or Letters()))

    def hand_out(self, user: str) -> None:
        self.ask(user, "subscribe", T + 1, subscription="s", max_backlog=1, heartbeat_timeout_ms=10**6)
        while self.machine.deliver(T + 1):
            self.finish()
        self.finish()


def available(world: World) -> None:
    world.arrive()


def leased(world: World) -> None:
    world.arrive()
    world.hand_out("bob")


def delayed(world: World) -> None:
    leased(world)
    world.ask("bob", "cancel", T + 2, subscription="s", bookmarks=[f"orders:0:{HIDDEN}"], delay_ms=100_000)


def scheduled(world: World) -> None:
    world.arrive(("lapse-enqueue-at-ms", b"%d" % (T + 100_000)))


def settled(world: World) -> None:
    leased(world)
    world.ask("bob", "acknowledge", T + 2, subscription="s", bookmarks=[f"orders:0:{HIDDEN}"])


def late(world: World) -> None:
    world.arrive(("lapse-ttl-ms", b"500"))


def expired(world: World) -> None:
    late(world)
    world.machine.advance(T + 600)
    world.finish()


def invalid(world: World) -> None:
    world.arrive(("lapse-ttl-ms", b"soon"))


def dying(world: World) -> None:
    late(world)
    world.machine.advance(T + 600)
    world.finish(Letters(most_bytes=1))


def transferring(world: World) -> None:
    world.arrive()
    world.ask("ops", "transfer", T + 2, transfer="t", to="elsewhere", bookmarks=[f"orders:0:{HIDDEN}"])


def purged(world: World) -> None:
    world.arrive()
    world.ask("ops", "purge", T + 2)


def withdrawn(world: World) -> None:
    scheduled(world)
    world.ask("ops", "purge", T + 2)


def lost(world: World) -> None:
    world.arrive()
    world.machine.log_begins(TP("orders", 0), HIDDEN + 1, T + 3)
    world.finish()
    world.payloads.records.pop(HIDDEN, None)


def repeated(world: World) -> None:
    world.arrive(("lapse-message-id", b"1"), desk="A", offset=2)
    world.arrive(("lapse-message-id", b"1"))


def beyond_the_depth(world: World) -> None:
    """With a target depth: two of her own are before it."""
    for offset in (2, 3):
        world.arrive(desk="A", offset=offset)
    world.arrive()


def acknowledged_in_advance(world: World) -> None:
    beyond_the_depth(world)
    world.ask("bob", "acknowledge", T + 2, bookmarks=[f"orders:0:{HIDDEN}"])


STATES: tuple[Callable[[World], None], ...] = (
    *(available, leased, delayed, scheduled, settled, late, expired, invalid, dying, transferring, purged, withdrawn),
    *(lost, repeated, beyond_the_depth, acknowledged_in_advance),
)

ONE, RANGE = [f"orders:0:{HIDDEN}"], [f"orders:0:{HIDDEN - 3}-{HIDDEN + 3}"]
ALL = [f"orders:0:0-{OWN}"]
FILTERS = ["TRUE", "/desk = 'B'"]
NAMED = [{"bookmarks": one} for one in (ONE, RANGE, ALL, [f"orders:0:{HIDDEN}#1"], [f"orders:0:{HIDDEN}#2"])]
CHOSEN = [{"filter": one} for one in FILTERS]
MESSAGES = "available leased delayed transferring scheduled held dying unconfirmed".split()

SETTLEMENTS = [{"subscription": "s", **one} for one in (*NAMED, *CHOSEN)]

FORMS: dict[str, list[dict[str, object]]] = {
    **dict.fromkeys(("acknowledge", "cancel", "expire", "renew"), SETTLEMENTS),
    "sow": [{}, *NAMED, *CHOSEN, *({"state": state} for state in MESSAGES)],
    "depth": [{}, *CHOSEN],
    "subscriptions": [{}],
    "subscribe": [{"subscription": "s"}, *({"subscription": "s", **one} for one in CHOSEN)],
    "unsubscribe": [{"subscription": "s"}],
    "heartbeat": [{"subscription": "s"}],
}


def test_all_commands_of_such_users_are_tried() -> None:
    assert set(FORMS) == {
        name for name in QUEUE_COMMANDS if QUEUE_RIGHTS.get(name, set()) & {Right.READ, Right.PUBLISH}
    }


@pytest.mark.parametrize("state", alike(*STATES), ids=lambda state: state.__name__)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="plain"),
        pytest.param({"leasing": Leasing.STRICT}, id="strict", marks=pytest.mark.slow),
        pytest.param({"target_depth": 2}, id="depth", marks=pytest.mark.slow),
    ],
)
def test_it_is_answered_as_what_was_never_there(state: Callable[[World], None], more: dict) -> None:
    """All commands in a row, on a shard that has the message and on one that has not."""
    with_it, without = worlds = [World(hidden, dataclasses.replace(SETTINGS, **more)) for hidden in (True, False)]
    for world in worlds:
        state(world)
        world.arrive(desk="A", offset=OWN)
    asked = [(name, form) for name, forms in FORMS.items() for form in forms]
    for at, (name, form) in enumerate(asked):
        answer = with_it.ask("alice", name, ASKED + at, **form)
        assert answer == without.ask("alice", name, ASKED + at, **form), (name, form)


@pytest.mark.parametrize(
    "state", alike(available, leased, delayed, scheduled, dying, transferring), ids=lambda one: one.__name__
)
def test_a_peek_by_bookmark_shows_what_its_user_may_see_in_any_state(state: Callable[[World], None]) -> None:
    world = World(hidden=True, settings=SETTINGS)
    state(world)
    world.arrive(desk="A", offset=OWN)
    named = {user: world.ask(user, "sow", ASKED, bookmarks=ALL)["messages"] for user in ("alice", "bob", "ops")}
    shown = {user: [(one["bookmark"], one["state"]) for one in messages] for user, messages in named.items()}
    hers, other = (f"orders:0:{OWN}", "available"), (f"orders:0:{HIDDEN}", state.__name__)
    assert shown["alice"] == [hers]
    assert shown["bob"] == [other]
    assert sorted(shown["ops"]) == sorted([hers, other])
