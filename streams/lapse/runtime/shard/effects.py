"""A step in flight, from its first input to its effects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lapse.runtime.journal.changelog import Items
from lapse.runtime.kafka.output import Output, Packed

S = TypeVar("S")
"""The core's step of a kind of shard."""


@dataclass(slots=True)
class StepInFlight(Generic[S]):
    """What a machine collects until the step ends. Then the whole object is handed over, and a new one begins.

    Attributes:
        core: the core's step.
        ahead: what goes into the journal ahead of the step's last RecordBatch.
        answers: to commands, as they are sent.
        instants: what the step does by the clock and not by the log, so that it can be replayed (X10).
        has_acted: see `Effects.has_acted`.
        kept: see `Effects.kept`.
    """

    core: S
    ahead: Items = field(default_factory=list)
    answers: list[Output] = field(default_factory=list)
    instants: dict[str, int] = field(default_factory=dict)
    has_acted: bool = False
    kept: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Effects:
    """The effects of a step, in the order in which they must happen.

    Attributes:
        before: events, and whatever else has to be safe before the journal is written; letters are already.
        ahead: what the journal holds before the step's last RecordBatch, in batches of their own.
        journal: the step's changes; with nothing ahead either, nothing has to be durable.
        after: deliveries and answers; sent once the journal is safe.
        delivers: whether there are deliveries among them: they must not come too late (L10).
        must_arrive: whether they have to be safe before the next step (C35).
        step: the number of the step in the journal (C55).
        counted_to: number of the last deliveries that count in the windows of rates; negative = there are none (Q25).
        instants: what the step did by the clock, as the journal keeps it.
        stands_alone: whether going through it again together with its neighbours would come to something else, also if
            it changed nothing (X10).
        has_acted: whether it carried out commands that are no questions. They have to be in the journal also if they
            changed nothing: read again after a crash, they would concern what came behind them (C1).
        kept: under which keys the journal keeps answers of the step until clients have them (C55).
    """

    before: list[Output | Packed] = field(default_factory=list)
    ahead: Items = field(default_factory=list)
    journal: Items = field(default_factory=list)
    after: list[Output | Packed] = field(default_factory=list)
    delivers: bool = False
    must_arrive: bool = False
    step: int = 0
    counted_to: int = -1
    instants: dict[str, int] = field(default_factory=dict)
    stands_alone: bool = False
    has_acted: bool = False
    kept: list[bytes] = field(default_factory=list)
