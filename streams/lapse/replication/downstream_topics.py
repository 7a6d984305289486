"""Checks that the SOW topics downstream read the topics that a link writes (S10)."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from lapse.config.definition import Definition
from lapse.protocol import topic as names
from lapse.replication.link import Link
from lapse.replication.replicator import LinkError
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.span import span

_DEFINITIONS: Final = names.definitions("")


def check_read(link: Link, downstream: Connection) -> None:
    """Check that each SOW topic downstream reads the topic to which its records are copied.

    It would never have records on another topic, and whoever reads that one would get them. Only definitions say what a
    SOW topic reads, so nothing is checked where there are none, or where they may not be read.

    Args:
        link: the link.
        downstream: connection to the deployment that is written.

    Raises:
        LinkError: a SOW topic reads another topic.
        ConnectionFailed: the brokers do not answer.
    """
    read = _read_topics(downstream)
    for name, written in link.topics.items():
        known = read.get(name, set())
        if known and written not in known:
            raise LinkError(
                f"{link.downstream}: the SOW topic {name} does not read the topic {written} there; name the one that "
                f"it reads: --topic {' or '.join(f'{name}={one}' for one in sorted(known))}"
            )


def _read_topics(downstream: Connection) -> dict[str, set[str]]:
    """Return the topics that SOW topics read, by SOW topic. A cluster may have several deployments."""
    topics = downstream.partitions()
    read: dict[str, set[str]] = {}
    for name in topics:
        if not name.startswith(_DEFINITIONS) or f"{name}.commands" not in topics:
            continue
        defined: dict[str, str] = {}
        with suppress(LapseError):  # without the right Read on it
            for message in span(downstream, {name: topics[name]}):
                entity = (message.key() or b"").decode("utf-8", "replace")
                defined.pop(entity, None)
                with suppress(ValueError):
                    definition = Definition.decode(entity, message.value() or b"")
                    if definition.kind == "sow":
                        defined[entity] = str(definition.settings.get("topic") or entity)
        for entity, underlying in defined.items():
            read.setdefault(entity, set()).add(underlying)
    return read
