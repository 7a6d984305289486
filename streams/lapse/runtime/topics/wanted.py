"""A topic that a configuration needs: its purpose, and what does not happen while it is missing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MOST_BYTES: Final = "max.message.bytes"
"""The setting of a topic that limits its RecordBatches."""


class Role(StrEnum):
    """The purpose of a topic."""

    UNDERLYING = "underlying"
    COMMANDS = "commands"
    DELIVERIES = "deliveries"
    EVENTS = "events"
    CHANGELOG = "changelog"
    SOW = "sow"
    DEAD_LETTERS = "dead letters"
    FORWARDED = "forwarded messages"
    DEFINER = "commands about definitions"


OF_THE_USER: Final = frozenset({Role.UNDERLYING, Role.DEAD_LETTERS, Role.FORWARDED})
"""Topics that an entity names. A missing one affects only a part of what the entity does (C52)."""

GROWING: Final = frozenset({Role.COMMANDS, Role.DELIVERIES, Role.EVENTS, Role.CHANGELOG})
"""Topics that get partitions when their queue gets shards (C81)."""

_WITHOUT: Final = {
    Role.UNDERLYING: "nothing comes from it",
    Role.DEAD_LETTERS: "messages that need a dead letter wait",
    Role.FORWARDED: "nothing is forwarded, and messages stay in the queue",
}
"""What does not happen while such a topic is missing."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic that a configuration needs.

    Attributes:
        name: name of the topic.
        role: its purpose.
        entity: name of the entity.
        partitions: the number of partitions.
        config: its settings, if lapse creates it.
    """

    name: str
    role: Role
    entity: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)

    @property
    def purpose(self) -> str:
        """Its purpose, with the entity; the topics about definitions belong to a whole deployment."""
        return self.role.value if self.role is Role.DEFINER else f"{self.role.value} of {self.entity}"

    @property
    def rank(self) -> tuple[int, int]:
        """The precedence of the entities' requests for a shared topic: letters need most, forwarded messages least."""
        order = {Role.FORWARDED: 0, Role.UNDERLYING: 1}
        return order.get(self.role, 2), int(self.config.get(MOST_BYTES, 0))


def without(role: Role, topic: str) -> str:
    """Say what does not happen while a topic of the user's is missing, and what to do."""
    return (
        f"topic {topic} ({role.value}) is missing: {_WITHOUT[role]}. Run `lapse apply`, which creates it; it is taken "
        "up once it exists, without a restart"
    )
