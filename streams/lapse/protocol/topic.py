"""Names of the topics that lapse keeps on the cluster (D1, D4, S8)."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import Final

PREFIX: Final = "lapse."
DEAD_LETTER_PREFIX: Final = "dlq."
DEFINITIONS_PREFIX: Final = "definitions."
"""No entity is called so: topics about definitions begin with it (Q23)."""

_CHANGELOG: Final = "-changelog"
_USUAL_DEPLOYMENT: Final = "lapse"

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\Z")
"""What an entity may be called: a Kafka topic name, short enough for the longest name made of it."""

USER_NAME: Final = re.compile(r"(?!(?:commands|deliveries)\Z)[A-Za-z0-9_-]{1,64}\Z")
"""What a user may be called: the last part of a topic's name, which cannot be taken for another topic's."""


def commands(entity: str) -> str:
    """Topic on which clients send commands to an entity."""
    return f"{PREFIX}{entity}.commands"


def deliveries(entity: str, user: str = "") -> str:
    """Topic on which an entity sends deliveries and answers; of a user, those that are for them alone (X4)."""
    return f"{PREFIX}{entity}.deliveries.{user}" if user else f"{PREFIX}{entity}.deliveries"


def private_deliveries(entity: str, existing: Iterable[str]) -> list[str]:
    """Of the topics that exist those on which an entity sends deliveries to users (X4)."""
    prefix = f"{deliveries(entity)}."
    return sorted(name for name in existing if name.startswith(prefix) and USER_NAME.match(name[len(prefix) :]))


def events(entity: str) -> str:
    """Topic on which an entity tells what happened to its messages."""
    return f"{PREFIX}events.{entity}"


def decisions(queue: str) -> str:
    """Topic on which transactions over a queue's messages are decided (X9)."""
    return f"{PREFIX}{queue}.decisions"


def sow(entity: str) -> str:
    """Compacted topic with the current state of a SOW topic (S8)."""
    return f"{PREFIX}sow.{entity}"


def dead_letters(entity: str) -> str:
    """Default dead-letter topic of an entity (D1)."""
    return f"{DEAD_LETTER_PREFIX}{entity}"


def table(entity: str) -> str:
    """Name of the Faust table that holds an entity's state."""
    return entity


def definitions(app_id: str) -> str:
    """Compacted topic that says what the entities of a deployment are (Q23)."""
    return f"{PREFIX}{DEFINITIONS_PREFIX}{app_id}"


def definer(app_id: str) -> str:
    """What stands in the place of an entity where commands are about definitions (Q23)."""
    return f"{DEFINITIONS_PREFIX}{app_id}"


def of_definer(app_id: str, users: Iterable[str]) -> list[str]:
    """The topics of commands about definitions, and of the answers, those of each user included."""
    name = definer(app_id)
    return [commands(name), *(deliveries(name, user) for user in ("", *users))]


def own(app_id: str, entity: str) -> tuple[str, ...]:
    """What goes with an entity when it is deleted, in this order, as far as it is there. The events stay."""
    return commands(entity), deliveries(entity), sow(entity), decisions(entity), changelog(app_id, entity)


def changelog(app_id: str, entity: str) -> str:
    """Journal of an entity: Faust's changelog topic of its table."""
    return f"{app_id}-{table(entity)}{_CHANGELOG}"


def is_own(name: str, existing: Container[str]) -> bool:
    """Whether only lapse writes a topic.

    A changelog is known by its entity, and by its deployment: the one that is called `lapse`, or one whose definitions
    are in Kafka. Another Faust app may have a table of the same name, and a publisher a topic that ends so.

    Args:
        name: the topic.
        existing: the topics of the cluster.
    """
    if name.startswith(PREFIX):
        return True
    words = name.removesuffix(_CHANGELOG).split("-")
    return name.endswith(_CHANGELOG) and any(
        commands("-".join(words[at:])) in existing and _is_deployment("-".join(words[:at]), existing)
        for at in range(1, len(words))
    )


def _is_deployment(app_id: str, existing: Container[str]) -> bool:
    return app_id == _USUAL_DEPLOYMENT or definitions(app_id) in existing
