"""The diagram in docs/queues.md shows what the shard does: its edges are found by trying everything from every state.

python tests/unit/core/queue/test_diagram.py      prints the diagram
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from lapse.core.expression import compile_filter
from lapse.core.lifetime import NEVER, Expiration
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.delivery.retry import RetryRule
from lapse.core.queue.segments.segment import State
from lapse.core.queue.settings import Fairness, QueueSettings, Semantics
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.settlement.settlement import SettleAction as Asked
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.queue.transfer.transfers import HandOver

pytestmark = pytest.mark.slow  # from every state everything is tried, with the life before it lived again

DOCUMENT = Path(__file__).parents[4] / "docs" / "queues.md"
ABOUT_OTHERS = {
    ChangeKind.SUBSCRIBED,
    ChangeKind.UNSUBSCRIBED,
    ChangeKind.PAUSED,
    ChangeKind.RESUMED,
    ChangeKind.IDENTIFIED,
    ChangeKind.COUNTED,
    ChangeKind.UNCOUNTED,
    ChangeKind.FORGOTTEN,
    ChangeKind.REPLACED,
    ChangeKind.RETIRING,
    ChangeKind.USED,
    ChangeKind.TRANSFER,
    ChangeKind.REWIND,
    ChangeKind.DEPARTED,
}
"""Changes that move no message."""
NOT_IN_THE_QUEUE = {
    ChangeKind.REMEMBERED,
    ChangeKind.HONOURED,
    ChangeKind.LETTER_PENDING,
    ChangeKind.LETTER_WRITTEN,
}
AT_A_TAKE_OVER = {ChangeKind.UNDELIVERED}
"""What no command and no timer brings: see `test_handed_out`."""
ABOUT_MESSAGES = set(ChangeKind) - ABOUT_OTHERS - NOT_IN_THE_QUEUE - AT_A_TAKE_OVER
OUTSIDE = "[*]"

Edge = tuple[str, str, str]
Action = Callable[["Life"], None]


class Record:
    """A record of the underlying topic, as the shard reads it."""

    offset, timestamp, key, value = 0, 1_000, None, b"{}"

    def __init__(self, *headers: tuple[str, bytes]) -> None:
        self.headers = headers


class Life:
    """The life of one message in a shard of its own."""

    def __init__(self, settings: QueueSettings) -> None:
        self.shard = QueueShard(settings)
        self.now_ms = 1_000
        self.edges: set[Edge] = set()
        self.noted = False
        """Whether edges are noted: only those of the last action are new."""
        self.moved = False
        """Whether the last action has changed anything; what it would not have changed need not be lived again."""
        apply = self.shard.state.apply

        def spied(change: Change) -> None:
            self.moved = True
            if not self.noted:
                apply(change)
                return
            before = self.state
            apply(change)
            if change.kind in ABOUT_MESSAGES:
                self.edges.add((before, change.kind.name.lower(), self.state))

        self.shard.state.apply = spied

    @property
    def state(self) -> str:
        state = self.shard.state
        for one in (scheduled for _, scheduled in state.scheduled.items()):
            if one.held:
                return "held"
            return "transferring" if one.in_transfer else "unconfirmed" if one.transfer else "scheduled"
        if not state.segments:
            return OUTSIDE
        found = State(int(state.segments[0].state[0]))
        return OUTSIDE if found in (State.GONE, State.EXPIRED) else found.name.lower()

    def arrive(self, *headers: tuple[str, bytes]) -> None:
        self.shard.arrive("t", 0, [Record(*headers)], Step())

    def settle(self, kind: Asked, delay_ms: int = 0) -> None:
        self.shard.settle(kind, "s", [Claim("t", 0, 0, 0)], self.now_ms, Step(), delay_ms)

    def wait(self) -> None:
        due_ms = self.shard.next_due_ms()
        if due_ms < NEVER:
            self.moved = True
            self.now_ms = max(self.now_ms, due_ms)
            self.shard.advance(self.now_ms, Step())

    def others(self, come: bool) -> None:
        """Other messages take the place within the target depth, or leave it."""
        if self.shard.settings.target_depth is not None:
            self.moved = True
            self.shard._target_depth._target = 0 if come else 1


CLAIM = Claim("t", 0, 0, 0)
ACTIONS: dict[str, Action] = {
    "arrive": Life.arrive,
    "arrive with a lifetime": lambda life: life.arrive(("lapse-ttl-ms", b"900")),
    "arrive scheduled": lambda life: life.arrive(("lapse-enqueue-at-ms", b"5000")),
    "arrive scheduled with a deadline": lambda life: life.arrive(
        ("lapse-enqueue-at-ms", b"5000"), ("lapse-expires-at-ms", b"4000")
    ),
    "arrive by a transfer": lambda life: life.arrive(("lapse-transfer", b"q/t"), ("lapse-expires-at-ms", b"4000")),
    "arrive by a transfer, scheduled": lambda life: life.arrive(
        ("lapse-transfer", b"q/t"), ("lapse-enqueue-at-ms", b"5000")
    ),
    "hold": lambda life: life.shard.transfer_source.hold("t", "", [CLAIM], 1, life.now_ms, Step()) and None,
    "confirm": lambda life: (
        life.shard.transfer_source.confirm("t", [HandOver("t", 0, 0, 1, "u", 0, 0)], life.now_ms, Step()) and None
    ),
    "give back": lambda life: life.shard.transfer_source.give_back("t", life.now_ms, Step()) and None,
    "accept": lambda life: life.shard.transfer_target.accept("t", [CLAIM], life.now_ms, Step()) and None,
    "discard": lambda life: life.shard.transfer_target.discard("t", life.now_ms, Step()) and None,
    "subscribe": lambda life: life.shard.subscribing.subscribe("s", "", 1, 60_000, "", life.now_ms, Step()) and None,
    "deliver": lambda life: life.shard.deliver(life.now_ms, Step()) and None,
    "acknowledge": lambda life: life.settle(Asked.ACKNOWLEDGE),
    "cancel": lambda life: life.settle(Asked.CANCEL),
    "cancel with a delay": lambda life: life.settle(Asked.CANCEL, 500),
    "expire": lambda life: life.settle(Asked.EXPIRE),
    "renew": lambda life: life.shard.renew("s", [Claim("t", 0, 0, 0)], life.now_ms, Step()) and None,
    "unsubscribe": lambda life: life.shard.unsubscribe("s", life.now_ms, Step()) and None,
    "purge": lambda life: life.shard.purge(life.now_ms, Step(), leased=True) and None,
    "wait": Life.wait,
    "others come": lambda life: life.others(True),
    "others leave": lambda life: life.others(False),
}

QUEUES = [
    QueueSettings(name="q", expiration=Expiration(enabled=True), lease_ms=300),
    QueueSettings(name="q", expiration=Expiration(enabled=True), lease_ms=2_000, max_deliveries=2, max_cancels=1),
    QueueSettings(name="q", expiration=Expiration(enabled=True), lease_ms=2_000, retry=RetryRule(500)),
    QueueSettings(
        name="q",
        expiration=Expiration(enabled=True),
        semantics=Semantics.AT_MOST_ONCE,
        fairness=Fairness.ROUND_ROBIN,
    ),
    QueueSettings(name="q", expiration=Expiration(enabled=True), traits=TraitReader(barrier=compile_filter("TRUE"))),
    QueueSettings(name="q", expiration=Expiration(enabled=True), target_depth=1),
]


def lived(settings: QueueSettings, actions: list[str]) -> Life:
    life = Life(settings)
    for action in actions:
        ACTIONS[action](life)
    life.noted, life.moved = True, False
    return life


def explored(settings: QueueSettings) -> set[Edge]:
    """Try every action from every state that can be reached, one way of reaching each."""
    edges: set[Edge] = set()
    seen: set[object] = set()
    waiting: deque[list[str]] = deque([[]])
    while waiting:
        before = waiting.popleft()
        life = lived(settings, before)
        for action in ACTIONS:
            after = [*before, action]
            if life.moved:
                life = lived(settings, before)
            ACTIONS[action](life)
            edges |= life.edges
            state = life.shard.state
            segment = state.segments.get(0)
            counts = (
                None if segment is None else (int(segment.deliveries[0]), segment.cancels_of(0), segment.deadline_of(0))
            )
            later = [(one.then_ms, one.deadline_ms) for _, one in state.scheduled.items()]
            delayed = segment is not None and segment.until_ms is not None and bool(segment.until_ms[0] > 0)
            kept = (
                life.state,
                bool(life.shard.room()),
                bool(state.subscriptions),
                bool(state.sources),
                counts,
                delayed,
                *later,
            )
            if kept not in seen and len(after) < 12 and (counts is None or counts[0] < 4):
                seen.add(kept)
                waiting.append(after)
    return edges


@cache
def diagram() -> tuple[str, ...]:
    """The lines of the diagram; it takes seconds to explore, so both tests share one."""
    return tuple(_lines())


def _lines() -> Iterator[str]:
    edges = set().union(*map(explored, QUEUES))
    order = [OUTSIDE, "scheduled", "held", "available", "leased", "delayed", "sent", "transferring", "unconfirmed"]
    joined: dict[tuple[str, str], set[str]] = {}
    for before, kind, after in edges:
        if (before, after) != (OUTSIDE, OUTSIDE):
            joined.setdefault((before, after), set()).add(kind)
    yield "stateDiagram-v2"
    for (before, after), kinds in sorted(joined.items(), key=lambda item: [order.index(end) for end in item[0]]):
        yield f"    {before} --> {after}: {', '.join(sorted(kinds, key=lambda kind: ChangeKind[kind.upper()]))}"


@pytest.mark.feature("Q5", "Q6", "Q8")
def test_the_documented_diagram_is_what_the_shard_does() -> None:
    (documented,) = re.findall(
        r"^```mermaid\n(stateDiagram-v2\n.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE
    )
    assert documented.splitlines() == list(diagram())


def test_every_change_about_messages_is_in_the_diagram() -> None:
    shown = {kind for line in diagram() for kind in line.partition(": ")[2].split(", ")}
    assert {kind.name.lower() for kind in ABOUT_MESSAGES} == shown - {""}


if __name__ == "__main__":
    print("\n".join(diagram()))  # for docs/queues.md
