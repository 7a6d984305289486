"""Whether an entity acted on lifetimes at an instant, as its definition said then (D7, L6, L9)."""

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


def acted_on(
    connection: Connection, there: Collection[str], app_id: str | None, entity: str, at_ms: int, file: Path | None
) -> bool:
    """Whether the lifetimes of an entity counted; where nothing says so, they did.

    Kafka compacts definitions: where the one of that time is gone, the next one that is there counts.

    Args:
        connection: the cluster.
        there: its topics.
        app_id: of the entity's deployment; None = whichever has it.
        entity: the queue or SOW topic.
        at_ms: the instant, ms since the epoch.
        file: the `lapse.toml`, for a deployment without definitions in Kafka; None = there is none.

    Raises:
        LapseError: the definitions cannot be read.
        OSError: the file cannot be read.
        ValueError: it is not as `lapse check` wants it.
    """
    for name in _topics(there, app_id):
        said = setting(replay(f"{name}:0:0", connection=connection), entity, at_ms)
        if said is not None:
            return said != _OFF
    return file is None or lapse_toml.expiration(file, entity) != _OFF


def setting(definitions: Iterable[Replayed], entity: str, at_ms: int) -> str | None:
    """What an entity's definition said of `expiration` at an instant; None = there is no definition.

    Args:
        definitions: the records of the topic, in order.
        entity: the queue or SOW topic.
        at_ms: the instant, ms since the epoch.
    """
    said: str | None = None
    for record in definitions:
        if record.key != entity.encode() or record.value is None:
            continue
        if said is None or record.timestamp_ms <= at_ms:
            said = str(orjson.loads(record.value)["settings"].get("expiration", _OFF))
    return said


def _topics(there: Collection[str], app_id: str | None) -> list[str]:
    if app_id is not None:
        return [name for name in (topic.definitions(app_id),) if name in there]
    return sorted(name for name in there if name.startswith(_PREFIX) and not name.endswith(_OF_CLIENTS))
