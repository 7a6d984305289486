"""A SOW topic at work."""

from __future__ import annotations

import json
from typing import Any, Final

from faust.types import TP

from lapse.config import SowConfig
from lapse.core.sow import field_path
from lapse.core.sow.home import EVERYTHING, Home
from lapse.core.sow.settings import SowSettings
from lapse.core.sow.shard import SowShard
from lapse.protocol import json_payload
from lapse.protocol.avro_payload import AvroPayload
from lapse.runtime.journal.changelog import Changelog
from lapse.runtime.shard.entity import Entity
from lapse.runtime.shard.services import Services
from lapse.runtime.sow.machine import SowMachine
from lapse.runtime.sow.output import SowOutput

_LEAST_REMEMBERED_MS: Final = 60_000
"""How long a removed key is remembered at least: updates of several partitions come so much too late at most (C46)."""

_REMEMBERED_MS: Final = 7 * 86_400_000
"""How long it is remembered for updates of other deployments: as long as the compacted topic keeps deletes (C56)."""


class SowEntity(Entity):
    """The SOW topic's agent, table and shards at this worker.

    Args:
        name: the SOW topic.
        config: its settings.
        partitions: how many shards it has.
        services: what the worker shares.
        max_record_bytes: what a record may take.
    """

    config: SowConfig

    def __init__(
        self,
        name: str,
        config: SowConfig,
        partitions: int,
        services: Services,
        max_record_bytes: int,
    ) -> None:
        super().__init__(name, config, partitions, services)
        self._max_record_bytes = max_record_bytes

    def machine(self, partition: int, epoch: int, changelog: Changelog, positions: dict[TP, int]) -> SowMachine:
        """Build a shard from its changelog."""
        letters = self.config.dead_letter_topic(self.name)
        shard = SowShard(self._settings(partition))
        shard.restore(changelog.latest.items())
        output = SowOutput(self.name, partition, epoch, letters, self.letter_partitions())
        services = self.services
        return SowMachine(shard, output, services.aside_reader.one, self.rule(epoch, changelog), services.clock.now_ms)

    def _settings(self, partition: int) -> SowSettings:
        config = self.config
        form = config.payload()
        return SowSettings(
            name=self.name,
            partition=partition,
            shards=self.partitions,
            expiration=config.expiration_settings(),
            key=tuple(map(field_path.parse, config.key)),
            home=Home(partition, self.partitions) if self.fed else EVERYTHING,
            hash_index=config.hash_index,
            dead_letter_reasons=config.letter_reasons(),
            heartbeat_timeout_ms=config.heartbeat_timeout,
            dedup_window_ms=config.dedup_window,
            max_record_bytes=self._max_record_bytes,
            tombstone_ms=max(_LEAST_REMEMBERED_MS, config.remember_removed or _REMEMBERED_MS),
            tombstone_least_ms=_LEAST_REMEMBERED_MS,
            remembers_removed=config.remember_removed is not None,
            keeps_copies=config.on_expire is not None,
            **(JSON if form is None else avro(form)),
        )


JSON: Final[dict[str, Any]] = {
    "parse": json_payload.parse,
    "parse_exactly": json_payload.parse_exactly,
    "parse_delta": json_payload.parse_exactly,
    "serialize": json_payload.serialize,
    "serialize_delta": json_payload.serialize,
}
"""How a SOW topic reads and writes payloads in JSON."""


def avro(form: AvroPayload) -> dict[str, Any]:
    """The same in Avro."""
    return {
        "parse": form.parse,
        "parse_exactly": form.parse,
        "parse_delta": form.parse_delta,
        "serialize": form.serialize,
        "serialize_delta": _as_json,
    }


def _as_json(value: object) -> bytes:
    """Changed fields of an Avro record; what JSON cannot tell, such as NaN, is told with the whole record."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
