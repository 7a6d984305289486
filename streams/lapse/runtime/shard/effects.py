"""A step in flight, from its first input to the effects that are written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lapse.core.shard.changelog import Items
from lapse.runtime.kafka.output import Output, Packed

NoteAhead = Callable[[Items], Awaitable[None]]
"""Journals items of a step on their own, before anything else of the step is written."""

S = TypeVar("S")
"""The kind of the core's step."""


@dataclass(slots=True)
class StepInFlight(Generic[S]):
    """Collects what a machine makes of its inputs until the step ends. Each step has a new object.

    Attributes:
        core: the core's step.
        ahead: journal items that are written before the step's last RecordBatch.
        answers: answers to commands, in the order in which they are sent.
        instants: instants that the step took from the clock and not from the log, kept for replays (X10).
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
    """The effects of a step, in the order in which they must be written.

    Attributes:
        before: events, and other records that must be safe before the journal. Letters are written already.
        ahead: journal items in RecordBatches of their own, before the step's last one.
        journal: the step's changes. If `ahead` is empty too, nothing needs to be made durable.
        after: deliveries and answers, sent once the journal is safe.
        delivers: whether `after` has deliveries, which must not be written too late (L10).
        leased: the indexes in `after` of deliveries under a lease. They are not sent when it is too late (L10).
        must_arrive: whether `after` must be safe before the next step begins (C35).
        step: the number of the step in the journal (C55).
        counted_to: number of the last deliveries that count in the windows of rates; negative if there are none (Q25).
        instants: instants that the step took from the clock, as the journal keeps them.
        stands_alone: whether a replay must not join the step with its neighbours, even if it changed nothing (X10).
        has_acted: whether the step carried out commands other than questions. They are journaled even if they changed
            nothing. Read again after a crash, they would affect what arrived behind them (C1).
        kept: keys under which the journal keeps answers of the step until Kafka has them (C55).
    """

    before: list[Output | Packed] = field(default_factory=list)
    ahead: Items = field(default_factory=list)
    journal: Items = field(default_factory=list)
    after: list[Output | Packed] = field(default_factory=list)
    delivers: bool = False
    leased: set[int] = field(default_factory=set)
    must_arrive: bool = False
    step: int = 0
    counted_to: int = -1
    instants: dict[str, int] = field(default_factory=dict)
    stands_alone: bool = False
    has_acted: bool = False
    kept: list[bytes] = field(default_factory=list)
