"""Makes the settings of a SOW topic's shards from the configuration."""

from __future__ import annotations

import json
from typing import Any, Final

from lapse.config import SowConfig
from lapse.core.sow.keys import field_path
from lapse.core.sow.keys.home import EVERYTHING, Home
from lapse.core.sow.settings import SowSettings
from lapse.protocol import json_payload
from lapse.protocol.avro_payload import AvroPayload

_LEAST_REMEMBERED_MS: Final = 60_000
"""The shortest time for which a removed key is remembered, ms. An update from another partition is expected within
that time (C46)."""

_REMEMBERED_MS: Final = 7 * 86_400_000
"""How long a removed key is remembered for updates of other deployments, ms: as long as the compacted topic keeps
deletes (C56)."""


def settings(
    config: SowConfig, name: str, partition: int, shards: int, max_record_bytes: int, added_partitions: bool = False
) -> SowSettings:
    """Return the settings of a shard.

    Args:
        config: the configuration of the SOW topic.
        name: name of the SOW topic.
        partition: the shard's number.
        shards: the number of shards.
        max_record_bytes: the greatest size of a record.
        added_partitions: whether the shard reads partitions that were added to the topic (C81).
    """
    form = config.payload()
    fed = config.shards_read_topics(shards)
    return SowSettings(
        name=name,
        partition=partition,
        shards=shards,
        expiration=config.expiration_settings(),
        key=tuple(map(field_path.parse, config.key)),
        home=Home(partition, shards) if fed else EVERYTHING,
        added_partitions=added_partitions,
        hash_index=config.hash_index,
        dead_letter_reasons=config.letter_reasons(),
        heartbeat_timeout_ms=config.heartbeat_timeout,
        dedup_window_ms=config.dedup_window,
        max_record_bytes=max_record_bytes,
        tombstone_ms=max(_LEAST_REMEMBERED_MS, config.remember_removed or _REMEMBERED_MS),
        tombstone_least_ms=_LEAST_REMEMBERED_MS,
        remembers_removed=config.remember_removed is not None,
        keeps_copies=config.on_expire is not None,
        publish_target=config.publish_target(name),
        idle_ms=config.auto_delete_on_idle or 0,
        configured=config.configured,
        **(JSON if form is None else avro(form)),
    )


JSON: Final[dict[str, Any]] = {
    "parse": json_payload.parse,
    "parse_exactly": json_payload.parse_exactly,
    "parse_delta": json_payload.parse_exactly,
    "serialize": json_payload.serialize,
    "serialize_delta": json_payload.serialize,
    "serialize_selected": json_payload.serialize,
}
"""How a SOW topic reads and writes payloads in JSON."""


def avro(form: AvroPayload) -> dict[str, Any]:
    """Return how a SOW topic reads and writes payloads in Avro."""
    return {
        "parse": form.parse,
        "parse_exactly": form.parse,
        "parse_delta": form.parse_delta,
        "serialize": form.serialize,
        "serialize_delta": _as_json,
        "serialize_selected": json_payload.serialize_any,
    }


def _as_json(value: object) -> bytes:
    """Return changed fields of an Avro record as JSON; raise ValueError for values without JSON, such as NaN."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
