"""Whether an entity enforced lifetimes at an instant, by its definition at that time (D7, L6, L9)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import orjson

from lapse.protocol import topic
from lapse_client import Connection, Replayed, replay
from lapse_spark import lapse_toml

_OFF: Final = "disabled"
_PREFIX: Final = topic.definitions("")
_OF_CLIENTS: Final = (".commands", ".deliveries")


def is_enforced(
    connection: Connection, there: Collection[str], app_id: str | None, entity: str, at_ms: int, file: Path | None
) -> bool:
    """Return whether an entity enforced lifetimes; True if no definition is found.

    Kafka compacts definitions. If the one of that time is gone, the oldest remaining one counts.

    Args:
        connection: connection to the cluster.
        there: topics of the cluster.
        app_id: `app_id` of the entity's deployment; None = search for it.
        entity: name of the queue or SOW topic.
        at_ms: the instant, ms since the epoch.
        file: path of the `lapse.toml`, for a deployment without definitions in Kafka; None = no file.

    Raises:
        LapseError: the definitions cannot be read.
        OSError: the file cannot be read.
        ValueError: the file is not valid; `lapse check` names the fault.
    """
    for name in _topics(there, app_id):
        configured = setting(replay(f"{name}:0:0", connection=connection), entity, at_ms)
        if configured is not None:
            return configured != _OFF
    return file is None or lapse_toml.expiration(file, entity) != _OFF


def setting(definitions: Iterable[Replayed], entity: str, at_ms: int) -> str | None:
    """Return the setting `expiration` in an entity's definition at an instant; None if there is no definition.

    Args:
        definitions: records of the definitions topic, in order.
        entity: name of the queue or SOW topic.
        at_ms: the instant, ms since the epoch.
    """
    configured: str | None = None
    for record in definitions:
        if record.key != entity.encode() or record.value is None:
            continue
        if configured is None or record.timestamp_ms <= at_ms:
            configured = _expiration_setting(record.value) or configured
    return configured


def _expiration_setting(definition: bytes) -> str | None:
    """Return a definition's `expiration`; None if the record is no definition. Workers skip such records, too."""
    try:
        return str(orjson.loads(definition)["settings"].get("expiration", _OFF))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _topics(there: Collection[str], app_id: str | None) -> list[str]:
    if app_id is not None:
        return [name for name in (topic.definitions(app_id),) if name in there]
    return sorted(name for name in there if name.startswith(_PREFIX) and not name.endswith(_OF_CLIENTS))
