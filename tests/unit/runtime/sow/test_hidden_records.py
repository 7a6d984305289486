"""A record of a SOW topic that a user may not see is answered as one that was never there, whatever is asked (X4)."""

import json
from collections.abc import Callable

import pytest

from lapse.core.entitlement import SOW_RIGHTS, Right
from lapse.core.reason import Reason
from lapse.protocol.command import SOW_COMMANDS
from lapse.runtime.authorization.command_authorizer import CommandAuthorizer
from lapse.runtime.sow.machine import SowMachine
from lapse.runtime.sow.output import SowOutput
from support.suite.at_length import alike
from support.suite.event_loop import finished
from unit.core.sow.make import shard_of
from unit.runtime.authorization.test_command_authorizer import Payloads, Record, T, answers_by_topic, guard, signed
from unit.runtime.queue.machine_alone import Letters

pytestmark = pytest.mark.feature("X4")

HIDDEN, OWN, SHORT = 10, 20, 500
ASKED = T + 1_000
"""When Alice asks."""


class World:
    """A shard, and what was done to the record that Alice may not see; without one there is a gap in its place."""

    def __init__(self, hidden: bool) -> None:
        self.hidden = hidden
        reasons = frozenset({Reason.TIME_LIMIT, Reason.INVALID_LIFETIME})
        shard = shard_of(hash_index=("/desk",), dead_letter_reasons=reasons)
        self.machine = SowMachine(shard, SowOutput("orders", 0, 1, "dlq.orders", 1), Payloads().one)
        self.machine.guarded(CommandAuthorizer(guard("SOW topic"), 0))
        self.machine.take_over(T)

    def arrive(
        self, *headers: tuple[str, bytes], desk: str = "B", offset: int = HIDDEN, key: bytes = b"hidden"
    ) -> None:
        if self.hidden or desk == "A":
            value = json.dumps({"desk": desk}).encode() if desk else None
            self.machine.arrive("orders", 0, [Record(offset, T, key, value, list(headers))])
            self.finish()

    def ask(self, name: str, at_ms: int, **fields: object) -> list:
        """All that Alice gets: records and the answer."""
        self.machine.command(signed("alice", name, at_ms, **fields))
        found: list = []
        more = True
        while more or not any(kind == "answer" for kind, _ in found):
            more = self.machine.deliver(at_ms)
            self.machine.advance(at_ms)
            found += answers_by_topic(self.finish()).get("lapse.orders.deliveries.alice", [])
        return found

    def finish(self, letters: Letters | None = None):
        return finished(self.machine.finish(letters or Letters()))


def there(world: World) -> None:
    world.arrive()


def late(world: World) -> None:
    world.arrive(("lapse-ttl-ms", b"%d" % SHORT))


def expired(world: World) -> None:
    late(world)
    world.machine.advance(T + SHORT)
    world.finish()


def dying(world: World) -> None:
    late(world)
    world.machine.advance(T + SHORT)
    world.finish(Letters(most_bytes=1))


def deleted(world: World) -> None:
    world.arrive()
    world.arrive(desk="", offset=HIDDEN + 1)


def scheduled(world: World) -> None:
    world.arrive(("lapse-enqueue-at-ms", b"%d" % (T + 100_000)))


def both(world: World) -> None:
    world.arrive()
    world.arrive(("lapse-enqueue-at-ms", b"%d" % (T + 100_000)), offset=HIDDEN + 1)


def invalid(world: World) -> None:
    world.arrive(("lapse-ttl-ms", b"soon"))


STATES = (there, late, expired, dying, deleted, scheduled, both, invalid)
FILTERS = ["TRUE", "/desk = 'B'", "/desk = 'A'"]
CHOSEN = [{"filter": one} for one in FILTERS]
KEYS = [{"keys": ["hidden"]}, {"keys": ["hidden", "own"]}, {"keys": ["never", "hidden"]}]
MARKS = [[f"orders:0:{HIDDEN}"], [f"orders:0:{HIDDEN - 3}-{HIDDEN + 3}"]]
SUBSCRIBED = [{"subscription": "s"}, *({"subscription": "s", **one} for one in CHOSEN)]
FORMS: dict[str, list[dict[str, object]]] = {
    "sow": [
        {},
        *(*CHOSEN, *KEYS, {"state": "scheduled"}, {"top_n": 5, "order_by": "/desk"}),
        *({"state": "scheduled", "filter": one} for one in FILTERS),
    ],
    "sow_delete": [
        *({"bookmarks": one} for one in MARKS),
        *({"bookmarks": one, "state": "scheduled"} for one in MARKS),
        *({"filter": one} for one in FILTERS[1:2]),
        *({"state": "scheduled", "filter": one} for one in FILTERS),
        {"keys": ["hidden"]},
        {"keys": ["hidden", "own", "never"]},
        {"filter": "TRUE"},
    ],
    **dict.fromkeys(("subscribe", "sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"), SUBSCRIBED),
    "unsubscribe": SUBSCRIBED[:1],
    "heartbeat": SUBSCRIBED[:1],
    "depth": [{}],
    "subscriptions": [{}],
}


def test_all_commands_of_such_users_are_tried() -> None:
    assert set(FORMS) == {name for name in SOW_COMMANDS if SOW_RIGHTS.get(name, set()) & {Right.READ, Right.PUBLISH}}


@pytest.mark.parametrize("state", alike(*STATES), ids=lambda state: state.__name__)
@pytest.mark.parametrize("last", alike(False, True), ids=["first", "last"])
def test_it_is_answered_as_one_that_was_never_there(state: Callable[[World], None], last: bool) -> None:
    """All commands in a row, on a shard that has the record and on one that has not; with records of hers around it."""
    with_it, without = worlds = [World(hidden) for hidden in (True, False)]
    for world in worlds:
        state(world)
        world.arrive(desk="A", offset=OWN, key=b"own")
    names = reversed(FORMS) if last else FORMS
    asked = [(name, form) for name in names for form in FORMS[name]]
    for at, (name, form) in enumerate(asked):
        found = with_it.ask(name, ASKED + at, **form)
        assert found == without.ask(name, ASKED + at, **form), (name, form)
