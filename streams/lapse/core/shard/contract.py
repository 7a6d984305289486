"""The contract of a shard: the interface that a queue's and a SOW topic's shards have in common.

Inputs go in with a step, which collects what they cause (`lapse.core.shard.step`). Records come as a batch of one
source, in the order of its log. Nothing here reads a clock or waits: every input has its instant, ms since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from lapse.core.portions import Portions
from lapse.core.record import Record
from lapse.core.shard.agreement import Agreement


class ShardSettings(Protocol):
    """The settings that every shard has."""

    @property
    def name(self) -> str:
        """The entity's name."""

    @property
    def partition(self) -> int:
        """The shard's partition."""


class ShardState(Protocol):
    """The state that every shard has."""

    @property
    def pending(self) -> Mapping[Any, Any]:
        """Messages that left and whose dead letters the broker refuses, by name (C27)."""


class Subscribed(Protocol):
    """A subscription of a client's."""

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def row_filter(self) -> str | None:
        """The filter of its user's entitlement when it began; None or empty = no limit (X4)."""


class Shard(Protocol):
    """One shard; each kind of shard has its own kind of step."""

    @property
    def settings(self) -> ShardSettings:
        """The entity's settings."""

    @property
    def state(self) -> ShardState:
        """Its state; read only."""

    @property
    def agreement(self) -> Agreement[Any]:
        """Its agreement with the other shards on the end of the entity (C4)."""

    def arrive(self, topic: str, partition: int, records: Sequence[Record], step: Any, now_ms: int, /) -> int:
        """Take records of one source, in their order; returns how many there was room for."""

    def set_aside(self, topic: str, partition: int, record: Record, why: str, step: Any) -> None:
        """Make a dead letter of a record that must not be read (X7)."""

    def advance(self, now_ms: int, step: Any, limit: int) -> int:
        """Do what is due, about `limit` messages of it."""

    def next_due_ms(self) -> int:
        """When `advance` is needed next, ms since the epoch; `NEVER` = never."""

    def is_due(self, at_ms: int) -> bool:
        """Whether `advance` has something to do at an instant."""

    def take_over(self, now_ms: int, step: Any) -> None:
        """Begin an epoch, with the state as the journal has it."""

    def letting_go(self) -> Portions[None]:
        """Free its memory, in portions: to free much memory takes long."""

    def subscriptions(self) -> Iterable[Subscribed]:
        """The clients' subscriptions."""

    def unsubscribe(self, subscription_id: str, now_ms: int, step: Any, detail: str) -> object:
        """End a subscription; `detail` says why."""
