"""The settings of a SOW shard."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lapse.core.expression import compile_filter, compile_value
from lapse.core.lifetime import Expiration
from lapse.core.reason import SOW_DEAD_LETTER_REASONS, Reason
from lapse.core.sow.keys.field_path import Steps
from lapse.core.sow.keys.home import EVERYTHING, Home

Parse = Callable[[bytes], object]
Serialize = Callable[[object, bytes], bytes]
SerializeDelta = Callable[[object], bytes]
Compile = Callable[[str], Callable[[Any], Any]]


def _serialize(value: object, like: bytes = b"") -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class SowSettings:
    """The settings of a SOW topic as its shards use them. Durations are in ms.

    Attributes:
        name: name of the SOW topic.
        partition: number of the shard.
        shards: number of shards.
        expiration: the topic's rule for lifetimes (L6 to L9).
        key: paths of the payload that make the key; empty = the Kafka record key (S1).
        home: decides which keys belong to the shard; all, unless every shard reads every partition (C46).
        added_partitions: whether partitions were added, so that updates of a key may be on several (C81).
        hash_index: paths, such as `/symbol`, of fields that are indexed for equality filters (S11).
        dead_letter_reasons: reasons for which a letter is written; empty = none (C25).
        heartbeat_timeout_ms: silence after which a subscription is lost, unless it states another timeout.
        dedup_window_ms: an update whose message id was seen within this time is dropped; 0 = none is (X6).
        tombstone_ms: how long a tombstone protects a removed key from older updates that arrive late.
        tombstone_least_ms: how long tombstones are kept even if there are very many.
        most_tombstones: the greatest number of tombstones kept longer than that, unless `remembers_removed` is set.
        remembers_removed: whether all tombstones are kept for `tombstone_ms`, and expired records get them as well,
            because updates come from other deployments, too. The first such update has the same effect (S10, C56).
        batch_size: records in a batch of a query's result, unless the query states another number.
        max_scan: records that a query examines before other work goes on.
        max_record_bytes: a larger record, with key and headers, is refused, as its topics would refuse it.
        max_step_bytes: an arrival batch is cut once its changes exceed this size.
        parse: parses a payload; raises ValueError if it cannot.
        parse_exactly: parses a payload without loss, to write it again or to make a key.
        parse_delta: parses a delta.
        serialize: serializes a payload, in the format of another one.
        serialize_delta: serializes changed fields for a subscriber.
        serialize_selected: serializes selected fields for a subscription or query.
        keeps_copies: whether a step contains a copy of each record that leaves (L15).
        publish_target: the topic to which a publish to its name goes.
        idle_ms: a SOW topic that was not used for this time deletes itself; 0 = never (Q18).
        configured: fingerprint of the configuration, whose change counts as use (C39).
        compile_filter: compiles a filter; raises ValueError that shows where a fault is.
        compile_value: compiles an expression; raises ValueError that shows where a fault is.
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
        """Whether updates of one key may be on several partitions, so that their timestamps decide (C46)."""
        return bool(self.key) or self.added_partitions
