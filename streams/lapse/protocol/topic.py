"""Names of the topics that lapse keeps on the cluster (D1, D4, S8)."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Final

PREFIX: Final = "lapse."
DEAD_LETTER_PREFIX: Final = "dlq."
DEFINITIONS_PREFIX: Final = "definitions."
"""The prefix, reserved among entity names, of topics about definitions (Q23)."""

INTERNAL_PREFIX: Final = "__"
"""The prefix of Kafka's internal topics. Patterns match none of them, and nobody publishes to them by lapse."""

INTERNAL: Final = frozenset(
    {
        "__cluster_metadata",
        "__consumer_offsets",
        "__remote_log_metadata",
        "__share_group_state",
        "__transaction_state",
    }
)
"""Kafka's internal topics. Its brokers write some of them whenever a worker commits or writes."""

CHANGELOG_SUFFIX: Final = "-changelog"
_USUAL_DEPLOYMENT: Final = "lapse"

TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
"""Matches the names that Kafka allows for topics, and `.` and `..`, which it does not allow."""

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\Z")
"""Matches names of entities: Kafka topic names, short enough for the longest name derived from them."""

USER_NAME: Final = re.compile(r"(?!(?:commands|decisions|deliveries)\Z)[A-Za-z0-9_-]{1,64}\Z")
"""Matches names of users, which are the last part of a topic's name and must not collide with other topics."""


def commands(entity: str) -> str:
    """Return the topic for commands to an entity."""
    return f"{PREFIX}{entity}.commands"


def deliveries(entity: str, user: str = "") -> str:
    """Return the topic for an entity's deliveries and answers, with a user those for this user alone (X4)."""
    return f"{PREFIX}{entity}.deliveries.{user}" if user else f"{PREFIX}{entity}.deliveries"


def private_deliveries(entity: str, existing: Iterable[str]) -> list[str]:
    """Return those of the existing topics on which an entity sends deliveries to single users (X4)."""
    prefix = f"{deliveries(entity)}."
    return sorted(name for name in existing if name.startswith(prefix) and USER_NAME.match(name[len(prefix) :]))


def events(entity: str) -> str:
    """Return the topic for an entity's events."""
    return f"{PREFIX}events.{entity}"


def decisions(queue: str) -> str:
    """Return the topic for the decisions of transactions over a queue's messages (X9)."""
    return f"{PREFIX}{queue}.decisions"


def sow(entity: str) -> str:
    """Return the compacted topic with the current state of a SOW topic (S8)."""
    return f"{PREFIX}sow.{entity}"


def dead_letters(entity: str) -> str:
    """Return the default dead-letter topic of an entity (D1)."""
    return f"{DEAD_LETTER_PREFIX}{entity}"


def table(entity: str) -> str:
    """Return the name of the Faust table that holds an entity's state."""
    return entity


def definitions(app_id: str) -> str:
    """Return the compacted topic with the definitions of a deployment's entities (Q23)."""
    return f"{PREFIX}{DEFINITIONS_PREFIX}{app_id}"


def definer(app_id: str) -> str:
    """Return the name that replaces an entity's in the topics for commands about definitions (Q23)."""
    return f"{DEFINITIONS_PREFIX}{app_id}"


def definer_topics(app_id: str, users: Iterable[str]) -> list[str]:
    """Return the topics for commands about definitions and for their answers, including those of each user."""
    name = definer(app_id)
    return [commands(name), *(deliveries(name, user) for user in ("", *users))]


def entity_topics(app_id: str, entity: str) -> tuple[str, ...]:
    """Return the topics that are deleted with an entity, in this order, if they exist. The events stay."""
    return commands(entity), deliveries(entity), sow(entity), decisions(entity), changelog(app_id, entity)


def changelog(app_id: str, entity: str) -> str:
    """Return the topic with an entity's journals, which is the changelog topic of its Faust table."""
    return f"{app_id}-{table(entity)}{CHANGELOG_SUFFIX}"


def is_own(name: str, existing: Container[str]) -> bool:
    """Return whether only lapse writes a topic.

    A changelog is recognized by its entity and its deployment, which is called `lapse` or has its definitions in Kafka.
    The suffix alone is not enough, since other Faust apps and publishers may have topics with such names.

    Args:
        name: name of the topic.
        existing: names of the cluster's topics.
    """
    if name.startswith(PREFIX):
        return True
    words = name.removesuffix(CHANGELOG_SUFFIX).split("-")
    return name.endswith(CHANGELOG_SUFFIX) and any(
        commands("-".join(words[at:])) in existing and _is_deployment("-".join(words[:at]), existing)
        for at in range(1, len(words))
    )


def _is_deployment(app_id: str, existing: Container[str]) -> bool:
    return app_id == _USUAL_DEPLOYMENT or definitions(app_id) in existing
