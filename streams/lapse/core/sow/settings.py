"""The settings of a SOW shard."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lapse.core.expression import compile_filter, compile_value
from lapse.core.lifetime import Expiration
from lapse.core.reason import SOW_DEAD_LETTER_REASONS, Reason
from lapse.core.sow.field_path import Steps
from lapse.core.sow.home import EVERYTHING, Home

Parse = Callable[[bytes], object]
Serialize = Callable[[object, bytes], bytes]
SerializeDelta = Callable[[object], bytes]
Compile = Callable[[str], Callable[[Any], Any]]


def _serialize(value: object, like: bytes = b"") -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class SowSettings:
    """Settings of one SOW topic; durations in ms.

    Attributes:
        name: the entity's name.
        partition: which shard of it.
        shards: how many it has.
        expiration: what is done about lifetimes (L6 to L9).
        key: paths of the payload that make the key; empty = the Kafka record key (S1).
        home: which of the keys are the shard's; all, unless every shard reads every partition (C46).
        added_partitions: whether the shard reads partitions that were added, so that updates of a key may stand on
            several (C81).
        hash_index: paths like `/symbol` of further fields that equality filters look up (S11).
        dead_letter_reasons: reasons for which a letter is written; empty = none (C25).
        heartbeat_timeout_ms: silence after which a subscription that does not say otherwise counts as lost.
        dedup_window_ms: an update whose message id was seen so shortly before is dropped, ms; 0 = none is (X6).
        tombstone_ms: how long a removed key is remembered against older updates that come late.
        tombstone_least_ms: however many there are, they are remembered for so long.
        most_tombstones: so many are remembered for longer, unless the next one says that all are.
        remembers_removed: whether all are, and those that expire as well, because updates come from other deployments,
            too; so it is in any case from the first update of another deployment on (S10, C56).
        batch_size: records in one batch of a query's answer, unless the query says.
        max_scan: records that a query looks at before it lets others go on.
        max_record_bytes: a record that takes more, with key and headers, is refused, as its topics would refuse it.
        max_step_bytes: an arrival batch is cut where its changes exceed this.
        parse: reads a payload; raises ValueError if it cannot.
        parse_exactly: the same without any loss, for what is written again or makes a key.
        parse_delta: the same for a delta.
        serialize: writes a payload, in the form of another one.
        serialize_delta: writes changed fields for a subscriber.
        serialize_selected: writes selected fields for a subscriber or asker.
        keeps_copies: whether a step has a copy of each record that leaves (L15).
        publish_target: where a publish to its name goes.
        idle_ms: a SOW topic that nobody uses for so long deletes itself, ms; 0 = never (Q18).
        configured: a mark of the configuration; another one is use (C39).
        compile_filter: makes a predicate of a filter's text; raises ValueError with the place of a fault.
        compile_value: makes a function of an expression's text; the same.
    """

    name: str
    partition: int = 0
    shards: int = 1
    expiration: Expiration = field(default_factory=Expiration)
    key: tuple[Steps, ...] = ()
    home: Home = EVERYTHING
    added_partitions: bool = False
    hash_index: tuple[str, ...] = ()
    dead_letter_reasons: frozenset[Reason] = SOW_DEAD_LETTER_REASONS
    heartbeat_timeout_ms: int = 30_000
    dedup_window_ms: int = 120_000
    tombstone_ms: int = 60_000
    tombstone_least_ms: int = 60_000
    most_tombstones: int = 20_000
    remembers_removed: bool = False
    batch_size: int = 500
    max_scan: int = 250
    max_record_bytes: int = (8 << 20) - (64 << 10)
    max_step_bytes: int = 1 << 22
    parse: Parse = json.loads
    parse_exactly: Parse = json.loads
    parse_delta: Parse = json.loads
    serialize: Serialize = _serialize
    serialize_delta: SerializeDelta = _serialize
    serialize_selected: SerializeDelta = _serialize
    keeps_copies: bool = False
    publish_target: str = ""
    idle_ms: int = 0
    configured: str = ""
    compile_filter: Compile = compile_filter
    compile_value: Compile = compile_value

    @property
    def several(self) -> bool:
        """Whether updates of one key may stand on several partitions, so that their stamps decide (C46)."""
        return bool(self.key) or self.added_partitions
