"""Step: the results of a batch of inputs to a shard, the same for queues and SOW topics.

The order of effects is fixed, and every guarantee rests on it:

1. `removals`: dead letters are safe before their messages leave (D3);
2. `events`: what happened;
3. `changes`: the journal. Each kind of shard has its own kind of changes, which are applied already;
4. `deliveries`, `answers`, `shard_messages` and `verdicts`.

A SOW topic writes its deliveries before its journal. A crash may repeat them, with the same bookmarks, but loses none.
A queue writes them after its journal, so a lease is durable before a client sees the message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from lapse.core.shard.answer import CommandAnswer
from lapse.core.shard.event import ShardEvent
from lapse.core.shard.retirement import ShardMessage, Verdict


class Removed(Protocol):
    """The common part of all kinds of removals."""

    @property
    def letter(self) -> bool:
        """Whether the message gets a dead letter."""


M = TypeVar("M")
"""The messages of an event."""

R = TypeVar("R", bound=Removed)
"""The kind of removal."""

D = TypeVar("D")
"""The kind of delivery."""


@dataclass(slots=True)
class Step(Generic[M, R, D]):
    """All effects of one batch of inputs. Each kind of shard adds its changes.

    Attributes:
        events: events in order, which must be safe before the changes.
        removals: removals for reasons of L14 in order, whose dead letters must be safe before the changes (D3).
        deliveries: messages for subscriptions and queries, in order.
        answers: answers to commands, sent once the changes are durable.
        shard_messages: messages to other shards of the entity, sent once the changes are durable (Q18).
        verdicts: answers to requests for the entity's deletion, sent once the changes are durable.
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
