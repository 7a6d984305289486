"""A step: the results of a batch of inputs to a shard, in one vocabulary for queues and SOW topics.

The order of effects is the same for both, and every guarantee rests on it:

1. `removals`: dead letters are safe before their messages leave (D3);
2. `events`: what happened;
3. `changes`: the journal; each kind of shard has its own kind of changes, which are applied already;
4. `deliveries`, `answers`, `shard_messages` and `verdicts`.

A SOW topic writes its deliveries before its journal: they may be written again, with the same bookmarks, and none is
lost. A queue writes them behind its journal: a lease is durable before a client sees the message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from lapse.core.shard.answer import CommandAnswer
from lapse.core.shard.event import ShardEvent
from lapse.core.shard.retirement import ShardMessage, Verdict


class Removed(Protocol):
    """A removal, as far as all kinds of steps have the same."""

    @property
    def letter(self) -> bool:
        """Whether it gets a dead letter."""


M = TypeVar("M")
"""What an event is about."""

R = TypeVar("R", bound=Removed)
"""A removal."""

D = TypeVar("D")
"""A delivery."""


@dataclass(slots=True)
class Step(Generic[M, R, D]):
    """Everything that one batch of inputs causes; a kind of shard adds its changes.

    Attributes:
        events: what happened, in order; to be safe before the changes are.
        removals: what left for L14's reasons, in order; its dead letters have to be safe before the changes are (D3).
        deliveries: messages for subscriptions and askers, in order.
        answers: to commands, to be sent once the changes are durable.
        shard_messages: to other shards of the entity, likewise (Q18).
        verdicts: answers to those who asked for the entity's deletion, likewise.
    """

    events: list[ShardEvent[M]] = field(default_factory=list)
    removals: list[R] = field(default_factory=list)
    deliveries: list[D] = field(default_factory=list)
    answers: list[CommandAnswer] = field(default_factory=list)
    shard_messages: list[ShardMessage] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def letters(self) -> list[R]:
        """The removals that get dead letters."""
        return [removal for removal in self.removals if removal.letter]
