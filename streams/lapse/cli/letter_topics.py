"""The dead-letter topics that commands read: those of lapse.toml, of definitions, and by their names (D1)."""

from __future__ import annotations

from collections.abc import Mapping

from lapse.cli import cluster
from lapse.protocol import topic
from lapse_client.error import UnknownEntity
from lapse_client.kafka.connection import Connection
from lapse_client.letters import letter_topic
from lapse_client.letters.dead_letter import DeadLetterReader
from lapse_client.reading.definitions import Definitions


def existing(connection: Connection, topics: Mapping[str, int]) -> set[str]:
    """Return the dead-letter topics of a cluster: by their names, and those that definitions or lapse.toml name."""
    named = {*configured(), *letter_topic.all_named(Definitions(connection, topics)).values()}
    return {found for found in topics if found.startswith(topic.DEAD_LETTER_PREFIX) or found in named}


def configured() -> set[str]:
    """Return the dead-letter topics of lapse.toml; none if there is no such file."""
    config = cluster.configuration()
    entities = [] if config is None else [*config.queue.items(), *config.sow.items()]
    return {entity.dead_letter_topic(name) for name, entity in entities}


def readers() -> dict[str, list[str]]:
    """Return the queues of lapse.toml by the topics that they read."""
    config = cluster.configuration()
    readers: dict[str, list[str]] = {}
    for name, queue in () if config is None else config.queue.items():
        for source in queue.underlying(name):
            readers.setdefault(source, []).append(name)
    return readers


def letters_of(name: str, connection: Connection) -> DeadLetterReader:
    """Return the letters of an entity or a topic.

    Only lapse.toml names an entity's own topic for letters if workers serve what the file says, or if the definitions
    cannot be read.
    """
    config = cluster.configuration()
    entity = None if config is None else config.queue.get(name) or config.sow.get(name)
    own = entity.dead_letter if entity is not None and isinstance(entity.dead_letter, str) else ""
    if own and config is not None and config.lapse.definitions == "file":
        return DeadLetterReader(own, connection=connection, entity=name)
    try:
        return DeadLetterReader(name, connection=connection)
    except UnknownEntity:
        if not own:
            raise
        return DeadLetterReader(own, connection=connection, entity=name)
