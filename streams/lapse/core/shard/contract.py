"""Contract: the common interface of queue shards and SOW shards.

Every input takes a step, which collects its effects (`lapse.core.shard.step`). Records come in batches of one source,
in the order of its log. Nothing reads a clock or waits, since every input has its instant, ms since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from lapse.core.portions import Portions
from lapse.core.record import Record
from lapse.core.shard.agreement import Agreement
from lapse.protocol.command import Command


class ShardSettings(Protocol):
    """The settings of every shard."""

    @property
    def name(self) -> str:
        """The entity's name."""

    @property
    def partition(self) -> int:
        """The number of the shard."""


class ShardState(Protocol):
    """The common part of every shard's state."""

    @property
    def pending(self) -> Mapping[Any, Any]:
        """Removed messages whose dead letters the broker refuses, by key (C27)."""


class Subscribed(Protocol):
    """A client's subscription."""

    @property
    def id(self) -> str:
        """The subscription's id."""

    @property
    def row_filter(self) -> str | None:
        """The row filter of its user when it began; None or empty = no limit (X4)."""


class ShardCommands(Protocol):
    """The entry of commands to a shard."""

    def handle(self, command: Command, at_ms: int, step: Any, row_filter: str | None = None, /) -> None:
        """Carry out a command as of an instant. A refused command changes nothing.

        Args:
            command: the command.
            at_ms: its instant, ms since the epoch.
            step: receives the command's effects and its answer.
            row_filter: an expression that limits what its user may see and change; None = no limit (X4).
        """


class Shard(Protocol):
    """A shard. Each kind of shard has its own kind of step."""

    @property
    def settings(self) -> ShardSettings:
        """The entity's settings."""

    @property
    def state(self) -> ShardState:
        """The shard's state, for reading only."""

    @property
    def agreement(self) -> Agreement[Any]:
        """The shard's part in the agreement on the end of the entity (C4)."""

    def arrive(self, topic: str, partition: int, records: Sequence[Record], step: Any, now_ms: int, /) -> int:
        """Take in records of one source, in order. Return how many were taken."""

    def set_aside(self, topic: str, partition: int, record: Record, why: str, step: Any) -> None:
        """Make a dead letter of a record that must not be processed (X7)."""

    def note_use(self, at_ms: int, step: Any, /) -> None:
        """Note a use of the entity at an instant of the broker's clock (Q18)."""

    def keep_refused_letters(self, refused: Sequence[tuple[Any, str]], step: Any) -> list[Any]:
        """Keep the subjects of letters that the broker refused, each with its reason (C27).

        The step must contain their removals. Return the keys for `letter_written`, in the same order.
        """

    def letter_written(self, letter_key: Any, step: Any) -> None:
        """Remove a kept subject, because its letter is safe (D3). Do nothing if it is gone."""

    def replace_topic(self, topic: str, epoch: int, now_ms: int, step: Any) -> bool:
        """Close the state of a topic that was deleted and created again (C42).

        Return False if there is more to close. Then call it again with the next step, and do nothing else in between.
        """

    def advance(self, now_ms: int, step: Any, limit: int) -> int:
        """Do what is due, for about `limit` messages."""

    def next_due_ms(self) -> int:
        """Return the next instant at which `advance` has something to do, ms since the epoch; `NEVER` without one."""

    def is_due(self, at_ms: int) -> bool:
        """Return whether `advance` has something to do at an instant."""

    def take_over(self, now_ms: int, step: Any) -> None:
        """Begin an epoch with the state restored from the journal."""

    def release_memory(self) -> Portions[None]:
        """Free the shard's memory, in portions, because freeing much memory takes long."""

    def subscriptions(self) -> Iterable[Subscribed]:
        """Return the subscriptions of clients."""

    def unsubscribe(self, subscription_id: str, now_ms: int, step: Any, detail: str) -> object:
        """End a subscription; `detail` says why."""
