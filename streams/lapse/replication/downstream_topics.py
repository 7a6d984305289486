"""Checks that the SOW topics downstream read the topics that a link writes (S10)."""

from __future__ import annotations

from contextlib import suppress

from lapse.config.definition import Definition
from lapse.replication.link import Link
from lapse.replication.link_error import LinkError
from lapse_client.kafka.connection import Connection
from lapse_client.reading.definitions import Definitions


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
    read: dict[str, set[str]] = {}
    for latest in Definitions(downstream, downstream.partitions()).latest:
        for name, value in latest.items():
            with suppress(ValueError):
                definition = Definition.decode(name, value or b"")
                if definition.kind == "sow":
                    read.setdefault(name, set()).add(str(definition.settings.get("topic") or name))
    return read
