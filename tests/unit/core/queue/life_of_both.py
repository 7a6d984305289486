"""The life of a queue shard that has some features of the table of interactions switched on."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from unit.core.queue.switch import NAMES, SETTLE_ACTIONS, TOPICS, Switch, claim, queue
from unit.core.queue.test_shard_machine import ShardMachine


class Life:
    """A queue shard beside its oracle, which lives with some features switched on.

    Args:
        switches: the features.
        random: what draws; the same one makes the same life.
    """

    def __init__(self, switches: Sequence[Switch], random: Random) -> None:
        self._switches, self._random = switches, random
        self.machine = ShardMachine()
        rooms = [switch.room for switch in switches if switch.room is not None]
        self.machine.begin(
            queue(*switches),
            random.choice((3, 5)),
            random.choice((2, 4)),
            random.choice((1, 3)),
            random.choice((1, 3)),
            min(rooms, default=None),
            False,
        )
        self.machine.subscribe("inky", 2, 100_000, "", False)
        self.machine.subscribe("blinky", 4, 100_000, "", False)
        self._shown = [False] * len(switches)
        self.met = False

    def end(self) -> None:
        """Leave the constants of the core as they were."""
        self.machine.teardown()

    def step(self) -> None:
        """Do something: one of the two features' doings, or what every queue sees."""
        random, machine = self._random, self.machine
        lasting, done = self._lasting(), [switch.done(machine.world) for switch in self._switches]
        acts = [act for switch in self._switches for act in switch.acts]
        if acts and random.random() < 0.45:
            random.choice(acts)(machine, random)
        else:
            random.choice((self._publish, self._publish, self._deliver, self._settle, self._wait))()
        machine.sometimes_durable()
        now = [switch.done(machine.world) for switch in self._switches]
        self._shown = [
            shown or bool(switch.shows(machine.world) and (count or not switch.happens))
            for shown, switch, count in zip(self._shown, self._switches, now, strict=True)
        ]
        self._meet(
            [before or after for before, after in zip(lasting, self._lasting(), strict=True)],
            [after > before for before, after in zip(done, now, strict=True)],
        )

    def _lasting(self) -> list[bool]:
        """Which features are at work right now."""
        return [not switch.happens and bool(switch.shows(self.machine.world)) for switch in self._switches]

    def _meet(self, lasts: Sequence[bool], happened: Sequence[bool]) -> None:
        """What happens meets what lasts when it happens; two that happen meet if each of them did in one life."""
        if all(switch.happens for switch in self._switches):
            self.met = not self.unseen
        else:
            self.met = self.met or all(
                (did if switch.happens else there)
                for switch, there, did in zip(self._switches, lasts, happened, strict=True)
            )

    @property
    def unseen(self) -> list[int]:
        """Which of the features were not seen at work."""
        return [at for at, shown in enumerate(self._shown) if not shown]

    def _publish(self) -> None:
        random = self._random
        said: dict[str, object] = {"ttl_ms": None, "expires_in_ms": None, "enqueue_in_ms": None, "odd": "", "ids": ""}
        said["retry"] = None
        odds = [odd for switch in self._switches for odd in switch.said.get("odd", ())]
        for switch in self._switches:
            said |= {name: random.choice(values) for name, values in switch.said.items()}
        said["odd"] = random.choice(odds) if odds else ""
        bodies = [
            {name: random.choice(values) for switch in self._switches for name, values in switch.bodies.items()}
            for _ in range(3)
        ]
        self.machine.publish(random.choice(TOPICS), random.randint(1, 3), 0, read=True, bodies=bodies, **said)

    def _deliver(self) -> None:
        if self._random.random() < 0.3:
            self.machine.subscribe(self._random.choice(NAMES), 3, 100_000, "", False)
        self.machine.world.deliver()

    def _settle(self) -> None:
        if self._random.random() < 0.7:
            self.machine.settle_own(self._random.choice(SETTLE_ACTIONS), self._random.randrange(30), False, None)
        else:
            named = claim(self.machine, self._random)
            self.machine.world.settle(self._random.choice(SETTLE_ACTIONS), self._random.choice(NAMES), named)

    def _wait(self) -> None:
        self.machine.wait(self._random.choice((0, 1, 50, 100)), True, self._random.random() < 0.5)
