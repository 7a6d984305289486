"""How each feature of the table of interactions is switched on in the world of a queue shard, and what uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from lapse.core.generation import generation_of
from lapse.core.lifetime import Expiration, ExpirationModel
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.delivery.retry import NO_RETRY, RetryRule
from lapse.core.queue.settings import Fairness, Leasing, QueueSettings, Semantics
from lapse.core.queue.settlement.settlement import Claim
from unit.core.queue.expected.message import FILTERS, Message, Published
from unit.core.queue.test_shard_machine import BARRIER, GROUP, PRIORITY, ShardMachine
from unit.core.queue.world import World

Act = Callable[[ShardMachine, Random], object]

NAMES = ("inky", "blinky", "clyde")
TOPICS = ("orders", "direct")
TEXTS = tuple(text for text in FILTERS if text)
LIVE = ("available", "leased", "delayed", "sent", "transferring")
SETTLE_ACTIONS = ("acknowledge", "acknowledge", "cancel", "expire", "renew")


@dataclass(frozen=True, kw_only=True)
class Switch:
    """What a feature needs in order to happen.

    Attributes:
        settings: of the queue.
        traits: expressions that the queue asks for.
        said: what records say, by argument of `ShardMachine.publish`: one of these is drawn.
        bodies: fields of payloads, likewise.
        acts: what uses the feature.
        room: bytes of memory for segments.
        shows: whether the feature is seen to be at work in a world; it has to be in one life of each pair.
        happens: what of `World.did` the feature does, where it is something that happens and not something that lasts.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    traits: Mapping[str, object] = field(default_factory=dict)
    said: Mapping[str, Sequence[object]] = field(default_factory=dict)
    bodies: Mapping[str, Sequence[object]] = field(default_factory=dict)
    acts: tuple[Act, ...] = ()
    room: int | None = None
    shows: Callable[[World], object] = lambda world: True
    happens: tuple[str, ...] = ()

    def done(self, world: World) -> int:
        """How often it has happened in a world."""
        return sum(world.did[name] for name in self.happens)


def claim(machine: ShardMachine, random: Random) -> Claim:
    """Some messages, by bookmark or range: mostly such as are there."""
    topic, first = random.choice(TOPICS), random.randrange(12)
    there = [*machine.world.oracle.in_state(*LIVE), *machine.world.oracle.scheduled()]
    if there and random.random() < 0.7:
        topic, _, first = random.choice(there).bookmark
    return Claim(topic, 0, first, first + random.choice((0, 1, 5)))


def _own(action: str, **options: int) -> Act:
    def act(machine: ShardMachine, random: Random) -> None:
        held = machine.world.oracle.in_state("leased")
        if held:
            message = random.choice(held)
            topic, partition, offset = message.bookmark
            named = Claim(topic, partition, offset, offset, message.deliveries)
            machine.world.settle(action, message.holder, named, **options)

    return act


def _deliver_and(action: str, **options: int) -> Act:
    def act(machine: ShardMachine, random: Random) -> None:
        machine.subscribe(random.choice(NAMES), 4, 100_000, "", False)
        machine.world.deliver()
        _own(action, **options)(machine, random)

    return act


def _forward(machine: ShardMachine, random: Random) -> None:
    """What the forwarder does: it takes what can be delivered, and acknowledges it once it is written elsewhere."""
    machine.world.subscribe("forwarder", 10)
    machine.world.deliver()
    for message in [m for m in machine.world.oracle.in_state("leased", "sent") if m.holder == "forwarder"]:
        topic, partition, offset = message.bookmark
        machine.world.settle(
            "acknowledge", "forwarder", Claim(topic, partition, offset, offset, message.deliveries, machine.world.epoch)
        )


def _pause(machine: ShardMachine, random: Random) -> None:
    machine.world.pause(on=True)
    machine.world.deliver()
    machine.world.advance(random.choice((0, 50, 100)))
    if random.random() < 0.8:
        machine.world.pause(on=False)
        machine.world.deliver()


def _hold_and_go_on(machine: ShardMachine, random: Random) -> None:
    machine.world.hold("tom", claim(machine, random), most=random.choice((1, 3, 100)))
    after = random.randrange(4)
    if after == 1:
        machine.world.hand_back("tom")
    elif after == 2:
        machine.confirm_own("tom", random.randrange(30), random.randint(1, 9))
        machine.world.finish_transfer("tom")


def _put(machine: ShardMachine, random: Random) -> None:
    """Another deployment puts messages here, and confirms or takes back."""
    for _ in range(2):
        ttl_ms = random.choice((None, 100))
        machine.world.publish("orders", transferred=("orders", "to"), ttl_ms=ttl_ms, body={"g": "x"})
    machine.world.read("orders")
    if random.random() < 0.6:
        machine.world.accept("to", Claim("orders", 0, 0, len(machine.world.topics["orders", 0])))
    else:
        machine.world.discard("to")


def _crash(machine: ShardMachine, random: Random) -> None:
    if random.random() < 0.7:
        machine.world.commit()
    torn = [random.randrange(50)] if random.random() < 0.3 else []
    machine.world.crash(None, torn, random.random() < 0.3, random.random() < 0.3)


def _change(machine: ShardMachine, random: Random) -> None:
    """The definition changes at run time: its shard is taken over as it is, with other settings (C66)."""
    changed: dict[str, object] = random.choice(
        (
            {"lease_ms": random.choice((60, 100))},
            {"max_deliveries": random.choice((0, 2, 3))},
            {"max_cancels": random.choice((0, 1))},
            {"max_backlog": random.choice((None, 1, 3))},
            {"expiration": Expiration(True, random.choice((None, 150, 300)), ExpirationModel.OVERRIDE)},
            {"retry": random.choice((NO_RETRY, RetryRule(40, 2.0, 130, 0.2)))},
            {"leasing": random.choice(tuple(Leasing))},
            {"dead_letter_topic": random.choice(("dlq.orders", ""))},
        )
    )
    machine.world.commit()
    machine.world.crash(replace(machine.world.settings, **changed))
    machine.world.did["change"] += 1


def _zombie(machine: ShardMachine, random: Random) -> None:
    machine.world.zombie(random.choice((0, 100)), random.random() < 0.5)


def _replace(machine: ShardMachine, random: Random) -> None:
    machine.world.replace(random.choice(TOPICS), [random.random() < 0.5])


def _cut(machine: ShardMachine, random: Random) -> None:
    topic = random.choice(TOPICS)
    records = machine.world.topics[topic, 0]
    machine.world.log_begins(topic, random.choice(records).offset if records else 0)


def _refuse(machine: ShardMachine, random: Random) -> None:
    machine.world.refusing = random.choice((0, 2))
    if machine.world.oracle.pending:
        machine.world.letter_written(random.choice(list(machine.world.oracle.pending)))


def _settle_hidden(machine: ShardMachine, random: Random) -> None:
    named = claim(machine, random)
    machine.world.settle(random.choice(SETTLE_ACTIONS), random.choice(NAMES), named, row_filter=random.choice(TEXTS))


def _settle_own_hidden(machine: ShardMachine, random: Random) -> None:
    machine.settle_own(random.choice(SETTLE_ACTIONS), random.randrange(30), False, None, random.choice(TEXTS))


def _leave_alone(machine: ShardMachine, random: Random) -> None:
    """Nobody uses the queue any more; what was under way comes to its end."""
    for name in list(machine.world.oracle.subscribers):
        machine.world.unsubscribe(name)
    if random.random() < 0.5:
        for transfer in ("tom", "to"):
            machine.world.hand_back(transfer)
            machine.world.discard(transfer)
        machine.world.advance(400)
    machine.world.idle()


def _repeat(machine: ShardMachine, random: Random) -> None:
    """A producer publishes a message twice, and goes on."""
    topic = random.choice(TOPICS)
    for message_id in (b"a", b"a", b"", b"", b""):
        machine.world.publish(topic, message_id=message_id, body={"g": "x"})
    for _ in range(3):
        machine.world.read(topic)


def _rewind(machine: ShardMachine, random: Random) -> None:
    """What has left comes back, from one topic or from both; perhaps over crashes."""
    machine.rewind(
        random.sample(TOPICS, random.choice((1, 2))),
        random.choice((0, 0, 3)),
        random.random() < 0.3,
        random.random() < 0.5,
        random.random() < 0.1,
        "",
        random.choice((1, 1_000)),
        [random.random() < 0.5 for _ in range(random.choice((0, 0, 2)))],
    )


def _both_topics(machine: ShardMachine, random: Random) -> None:
    for topic in TOPICS:
        machine.world.publish(topic, body={"g": "x", "p": random.randrange(3)})
    for topic in TOPICS:
        machine.world.read(topic)


def _any(*states: str) -> Callable[[World], object]:
    return lambda world: world.oracle.in_state(*states)


def _written(fact: Callable[[Published], object]) -> Callable[[World], object]:
    return lambda world: any(fact(record) for records in world.topics.values() for record in records)


def _message(fact: Callable[[Message], object]) -> Callable[[World], object]:
    return lambda world: any(fact(message) for message in world.oracle.messages.values())


SWITCHES: dict[str, Switch] = {
    "lifetime": Switch(
        settings={"expiration": Expiration(True, 150, ExpirationModel.OVERRIDE)},
        said={"ttl_ms": (None, 0, 50, 100, 150), "expires_in_ms": (None, None, 50, 100)},
        acts=(lambda machine, random: machine.world.advance(random.choice((49, 51, 100))),),
        happens=("time_limit",),
    ),
    "schedule": Switch(
        said={"enqueue_in_ms": (None, 1, 50, 100, 300)},
        acts=(
            lambda machine, random: machine.world.advance(random.choice((50, 100, 300))),
            lambda machine, random: machine.world.settle("expire", "stranger", claim(machine, random)),
        ),
        shows=lambda world: world.oracle.scheduled(),
    ),
    "delay": Switch(
        settings={"max_cancels": 0, "retry": RetryRule(40, 2.0, 130, 0.2)},
        said={"retry": (None, None, b"70", b"0", b"soon")},
        acts=(
            _deliver_and("cancel", delay_ms=50),
            _deliver_and("cancel"),
            _own("cancel", delay_ms=120),
            lambda machine, random: machine.world.advance(random.choice((50, 70, 120))),
        ),
        shows=_any("delayed"),
    ),
    "temporary": Switch(
        acts=(
            lambda machine, random: machine.world.idle(),
            _leave_alone,
        ),
        shows=lambda world: world.did["auto_deleted"],
        happens=("temporary",),
    ),
    "target_depth": Switch(
        settings={"target_depth": 3},
        acts=(lambda machine, random: machine.acknowledge_all(random.choice(TOPICS)),),
        shows=lambda world: not world.oracle.room(),
    ),
    "barrier": Switch(
        traits={"barrier": BARRIER},
        bodies={"b": ("yes", "no", "no", "no")},
        shows=_message(lambda message: message.barrier),
    ),
    "priority": Switch(
        traits={"priority": PRIORITY},
        bodies={"p": (None, 0, 1, 2, 2**64 - 1, "9")},
        shows=_message(lambda message: message.rank is not None),
    ),
    "group": Switch(
        traits={"group": GROUP},
        bodies={"g": ("x", "x", "y", None)},
        shows=_message(lambda message: message.group is not None),
    ),
    "total_order": Switch(
        acts=(_both_topics,),
        shows=lambda world: len({message.bookmark[0] for message in world.oracle.messages.values()}) == 2,
    ),
    "fairness": Switch(
        settings={"fairness": Fairness.PROPORTIONAL},
        acts=(
            lambda machine, random: machine.subscribe(random.choice(NAMES), random.choice((1, 2, 4)), 100_000, "", 0),
            lambda machine, random: machine.hang(1),
        ),
        shows=lambda world: len(world.oracle.subscribers) > 1,
    ),
    "filter": Switch(
        bodies={"f": (0, 1, 2)},
        acts=(
            lambda machine, random: machine.subscribe(random.choice(NAMES), 2, 100_000, random.choice(TEXTS), False),
            lambda machine, random: machine.settle_by_filter(
                random.choice(SETTLE_ACTIONS), random.choice(NAMES), random.choice(TEXTS), random.choice((0, 0, 1, 2))
            ),
            lambda machine, random: machine.world.peek(random.choice(TEXTS)),
        ),
        shows=lambda world: any(one.filter for one in world.oracle.subscribers.values()),
    ),
    "at_most_once": Switch(
        settings={"semantics": Semantics.AT_MOST_ONCE, "fairness": Fairness.ROUND_ROBIN},
        shows=_any("sent", "gone"),
    ),
    "limits": Switch(
        settings={"max_deliveries": 2, "max_cancels": 1},
        acts=(_deliver_and("cancel"), lambda machine, random: machine.hang(1), _refuse),
        happens=("max_deliveries", "max_cancels"),
    ),
    "pause": Switch(acts=(_pause,), shows=lambda world: world.oracle.paused and world.oracle.in_state("available")),
    "purge": Switch(
        bodies={"f": (0, 1)},
        acts=(
            lambda machine, random: machine.world.purge(random.random() < 0.3, random.choice(("", *TEXTS))),
            _refuse,
        ),
        happens=("purge",),
    ),
    "forward": Switch(acts=(_forward,), shows=lambda world: "forwarder" in world.oracle.subscribers),
    "transfer": Switch(acts=(_hold_and_go_on, _put), shows=_written(lambda record: record.transferred)),
    "redrive": Switch(
        said={"odd": ("", "letter", "other queue", "this queue")},
        shows=_written(lambda record: record.redriven_for),
    ),
    "repeat": Switch(
        settings={"dedup_window_ms": 100},
        said={"ids": ("a", "ab", "abc", "")},
        acts=(_repeat,),
        happens=("repeated",),
    ),
    "rewind": Switch(
        acts=(_rewind, _deliver_and("acknowledge")),
        shows=_message(lambda message: generation_of(message.bookmark[2])),
        happens=("rewind",),
    ),
    "deletion": Switch(acts=(lambda machine, random: machine.world.end(random.random() < 0.5),), happens=("deletion",)),
    "row_filter": Switch(
        settings={"leasing": Leasing.STRICT},
        bodies={"f": (0, 1, 2)},
        acts=(
            _settle_hidden,
            _settle_own_hidden,
            # Of a subscription and of a peek, a row filter is a part of the filter.
            lambda machine, random: machine.subscribe(random.choice(NAMES), 2, 100_000, random.choice(TEXTS), False),
            lambda machine, random: machine.world.peek(random.choice(TEXTS)),
        ),
        happens=("row_filter",),
    ),
    "by_reference": Switch(
        acts=(lambda machine, random: machine.subscribe(random.choice(NAMES), 4, 100_000, "", "reference"),),
        shows=lambda world: any(one.payload == "reference" for one in world.oracle.subscribers.values()),
    ),
    "disk": Switch(
        room=0,
        acts=(lambda machine, random: machine.world.peek("", random.randrange(5), 5),),
        shows=lambda world: world.room == 0,
    ),
    "take_over": Switch(acts=(_crash, _zombie), happens=("take_over",)),
    "recreated_topic": Switch(acts=(_replace, _cut), happens=("log_truncated",)),
    "wrong_clock": Switch(
        said={"odd": ("", "ahead", "no timestamp")},
        acts=(lambda machine, random: machine.set_clock_back(random.choice((1, 50, 150)), random.random() < 0.3),),
        happens=("wrong_clock",),
    ),
    "change": Switch(acts=(_change,), happens=("change",)),
}
"""By the feature's name in `tests/interactions.toml`; the features that have none are outside of the shard."""


def queue(*switches: Switch) -> QueueSettings:
    """Settings of a queue that has all of these features."""
    chosen: dict[str, object] = {
        "name": "orders",
        "expiration": Expiration(True, None, ExpirationModel.OVERRIDE),
        "fairness": Fairness.FAST,
        "lease_ms": 100,
        "max_lease_ms": 300,
        "dead_letter_topic": "dlq.orders",
    }
    traits: dict[str, object] = {"priority": None, "barrier": None, "group": None}
    for switch in switches:
        chosen |= switch.settings
        traits |= switch.traits
    if chosen.get("semantics") is Semantics.AT_MOST_ONCE:
        chosen["fairness"] = Fairness.ROUND_ROBIN
    return QueueSettings(traits=TraitReader(**traits), **chosen)
