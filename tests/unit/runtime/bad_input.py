"""Bad input, and what its sender is told: the cases of test_bad_input.py and of docs/bad-input.md (X7).

    python tests/unit/runtime/bad_input.py > docs/bad-input.md

Each case goes into a shard's machine as it would come from Kafka, and the text is the one that comes out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import orjson

if __name__ == "__main__":  # the modules of the tests are found from tests/
    sys.path.insert(0, str(Path(__file__).parents[2]))

from lapse.config import Config
from lapse.config.definition import Definition
from lapse.core.generation import FIRST_REWOUND, offset_of
from lapse.core.lifetime import Expiration
from lapse.core.queue.delivery.retry import RetryRule
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import Leasing, QueueSettings
from lapse.core.record import RewoundRecord
from lapse.core.sow.settings import SowSettings
from lapse.core.sow.shard import SowShard
from lapse.protocol import command, event
from lapse.protocol.avro_payload import AvroPayload
from lapse.protocol.avro_schema import AvroSchema
from lapse.protocol.command import CommandError
from lapse.runtime.kafka.output import Output
from lapse.runtime.letters.refusal import Refusal
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.shard.effects import Effects
from lapse.runtime.sow.machine import SowMachine
from lapse.runtime.sow.output import SowOutput
from lapse.runtime.sow.settings import JSON, avro
from lapse.runtime.topics.definition_draft import Refused, draft
from lapse.runtime.topics.definition_request import read_request
from support.kafka.packed import outputs_of
from support.suite.event_loop import finished
from unit.cli import bad_commands
from unit.client import bad_calls
from unit.gateway import bad_requests
from unit.runtime import bad_partitions
from unit.simulation import bad_options
from unit.spark import bad_instants, bad_ledgers
from unit.transfer import bad_links

ARRIVAL_MS = 1_700_000_000_000
"""When all of it arrives."""


class _Payloads:
    """The log behind a queue's messages."""

    def __init__(self) -> None:
        self.records: dict[int, Input] = {}

    def keep(self, topic: str, partition: int, records: list[Input]) -> None:
        self.records.update({record.offset: record for record in records})

    async def get(self, topic: str, partition: int, offsets: list[int], used: bool = True) -> list[Input | None]:
        return [self._at(position) for position in offsets]

    async def one(self, topic: str, partition: int, offset: int) -> Input | None:
        return self._at(offset)

    def _at(self, position: int) -> Any:
        record = self.records.get(offset_of(position))
        if record is None or position < FIRST_REWOUND:
            return record
        return RewoundRecord(position, record.timestamp, record.key, record.value, record.headers)

    async def ends(self, tps: Iterable[Any], instant_ms: int | None = None) -> dict[Any, int]:
        return await self.offset_at(tps, LATEST if instant_ms is None else instant_ms)

    existing_ends = ends

    async def begins(self, tps: Iterable[Any]) -> dict[Any, int]:
        return dict.fromkeys(tps, 0)

    async def read(self, topic: str, partition: int, first: int, last: int) -> list[Input]:
        return [self.records[offset] for offset in sorted(self.records) if first <= offset <= last]

    async def release(self, topic: str, partition: int) -> None:
        """Nothing is connected here."""

    @property
    def log(self) -> Self:
        return self

    async def offset_at(self, tps: Iterable[Any], instant_ms: int) -> dict[Any, int]:
        behind = (offset for offset, record in self.records.items() if record.timestamp >= instant_ms)
        return dict.fromkeys(tps, min(behind, default=len(self.records)))

    def note_unread_payloads(self, topic: str, partition: int, offsets: list[int]) -> None:
        """Nothing is forgotten here."""

    async def timestamp_ms(self, topic: str, partition: int, offset: int) -> int | None:
        return self.records[offset].timestamp if offset in self.records else None


LATEST = 1 << 63


@dataclass
class Input:
    """A record, of an underlying topic or the commands topic."""

    offset: int = 0
    key: bytes | None = b"k"
    value: bytes | None = b'{"price": 1}'
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    timestamp: int = ARRIVAL_MS


@dataclass(frozen=True)
class Case:
    """One bad input.

    Attributes:
        shown: the input, for people.
        given: the records, in order; the last one is bad.
        commands: whether they are commands, after one good record.
        settings: of the entity.
        good: a payload that it can read.
    """

    shown: str
    given: tuple[Input, ...]
    commands: bool = False
    settings: tuple[tuple[str, Any], ...] = ()
    good: bytes = b'{"symbol": "A", "price": 2}'


def _headers(*pairs: tuple[str, str | bytes], **settings: Any) -> Case:
    given = [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]
    shown = ", ".join(f"`{name}: {_text(value)}`" for name, value in pairs)
    return Case(shown, (Input(headers=list(given)),), settings=tuple(settings.items()))


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.hex(" ") + " (hex)"


def _command(body: str) -> Case:
    return Case(f"`{body}`", (Input(value=body.encode()),), commands=True)


def _asked(command: str, **fields: Any) -> Case:
    return _command(orjson.dumps({"command": command, **fields}).decode())


def _delta(stored: bytes, delta: bytes, shown: str = "", **settings: Any) -> Case:
    merge: list[tuple[str, bytes | None]] = [("lapse-command", b"delta")]
    text = shown or f"`{delta.decode('utf-8', 'replace')}` onto `{stored.decode('utf-8', 'replace')}`"
    return Case(text, (Input(value=stored), Input(1, value=delta, headers=merge)), settings=tuple(settings.items()))


def _record(shown: str, record: Input, **settings: Any) -> Case:
    return Case(shown, (record,), settings=tuple(settings.items()))


_DEEP = b'{"a":' * 5000 + b"1" + b"}" * 5000
_KEYED = {"key": (("symbol",),)}

LIFETIMES = (
    _headers(("lapse-ttl-ms", "soon")),
    _headers(("lapse-ttl-ms", "-1")),
    _headers(("lapse-ttl-ms", "")),
    _headers(("lapse-ttl-ms", "1.5")),
    _headers(("lapse-ttl-ms", "10000000000000000000")),
    _headers(("lapse-ttl-ms", "9223372036854775807")),
    _headers(("lapse-ttl-ms", b"\xff")),
    _headers(("lapse-expires-at-ms", "tomorrow")),
    _headers(("ce_expirytime", "2026-13-01T00:00:00Z")),
    _headers(("ce_expirytime", "2026-01-01 00:00")),
    _headers(("lapse-expire-time", b"\x00\x00\x01")),
    _headers(("lapse-expire-time", b"\xff\xff\xff\xff")),
    _headers(("lapse-ttl-ms", "1000"), ("lapse-expires-at-ms", "1700000000999")),
    _headers(("lapse-ttl-ms", "1000"), ("lapse-ttl-ms", "2000")),
    _headers(("lapse-enqueue-at-ms", "later")),
    Case(
        "`lapse-ttl-ms: 1000` on a record without a timestamp (−1)",
        (Input(headers=[("lapse-ttl-ms", b"1000")], timestamp=-1),),
    ),
)
"""Of a queue; a SOW topic says the same."""

RETRIES = (
    _headers(("lapse-retry-delay-ms", "soon")),
    _headers(("lapse-retry-delay-ms", "-1")),
    _headers(("lapse-retry-delay-ms", "")),
    _headers(("lapse-retry-delay-ms", "1.5")),
    _headers(("lapse-retry-delay-ms", "1" * 16)),
    _headers(("lapse-retry-delay-ms", b"\xff")),
    _headers(("lapse-retry-delay-ms", "1000"), ("lapse-retry-delay-ms", "2000")),
)
"""Of a queue; each is delivered, and cancelled without a delay."""

RECORDS = (
    _record("no key", Input(key=None)),
    _record('`{"price": 1}`, with `key = "/symbol"`', Input(), **_KEYED),
    _record('`{"symbol": null}`, with `key = "/symbol"`', Input(value=b'{"symbol": null}'), **_KEYED),
    _record('`{"symbol": {}}`, with `key = "/symbol"`', Input(value=b'{"symbol": {}}'), **_KEYED),
    _record('`{"symbol": 1e999}`, with `key = "/symbol"`', Input(value=b'{"symbol": 1e999}'), **_KEYED),
    _record('`{"symbol": NaN}`, with `key = "/symbol"`', Input(value=b'{"symbol": NaN}'), **_KEYED),
    _record('bytes that are no JSON, with `key = "/symbol"`', Input(value=b"\x00\x01"), **_KEYED),
    _record('a null value with the record key `5`, with `key = "/symbol"`', Input(key=b"5", value=None), **_KEYED),
    _record(
        'a null value with the record key `["IBM","N"]`, with `key = "/symbol"`',
        Input(key=b'["IBM","N"]', value=None),
        **_KEYED,
    ),
    _record("`lapse-command: upsert`", Input(headers=[("lapse-command", b"upsert")])),
    _record(
        "`lapse-command: delta` and `lapse-command: publish`",
        Input(headers=[("lapse-command", b"delta"), ("lapse-command", b"publish")]),
    ),
    _record("a record of 2,001 bytes where the topics take 2,000", Input(value=b"x" * 2_000), max_record_bytes=2_000),
)

DELTAS = (
    _delta(b"{}", b"[1]"),
    _delta(b"[1]", b"{}"),
    _delta(b"{}", b"{"),
    Case("`[1]` where there is no record", (Input(value=b"[1]", headers=[("lapse-command", b"delta")]),)),
    _delta(b"\xff", b"{}", "`{}` onto a record that is no JSON"),
    _delta(b"{}", _DEEP, "5,000 objects inside each other"),
    _delta(
        b'{"a": "%b"}' % (b"x" * 1_500),
        b'{"b": "%b"}' % (b"x" * 1_500),
        "1,500 bytes onto a record of 1,500 where the topics take 2,000",
        max_record_bytes=2_000,
    ),
)

_OLD = AvroSchema(
    {
        "type": "record",
        "name": "Quote",
        "fields": [{"name": "symbol", "type": "string"}, {"name": "price", "type": ["null", "int"]}],
    },
    "quote-v1.avsc",
)
_NEW = AvroSchema(
    {
        "type": "record",
        "name": "Quote",
        "fields": [{"name": "symbol", "type": "string"}, {"name": "price", "type": "int"}],
    },
    "quote-v2.avsc",
)
_AVRO = avro(AvroPayload(_NEW, [_OLD])) | _KEYED
_CONFLUENT = avro(AvroPayload(_NEW, confluent=True, ids={1: _OLD, 2: _NEW})) | _KEYED
_QUOTE = _NEW.mark + b"\x06IBM\x02"

_LINK = AvroSchema(
    {
        "type": "record",
        "name": "Link",
        "fields": [{"name": "symbol", "type": "string"}, {"name": "next", "type": ["null", "Link"]}],
    },
    "link.avsc",
)

_SINGLE_OBJECTS = (
    _record("a payload cut short", Input(value=_QUOTE[:-2]), **_AVRO),
    _record("a byte too many", Input(value=_QUOTE + b"\x00"), **_AVRO),
    _record("the fingerprint of a schema that is not listed", Input(value=b"\xc3\x01\1\2\3\4\5\6\7\x08"), **_AVRO),
    _record("a null price, by the older schema", Input(value=_OLD.mark + b"\x06IBM\x00"), **_AVRO),
    _delta(_QUOTE, b'{"symbol": "IBM", "price": "much"}', '`{"symbol": "IBM", "price": "much"}`', **_AVRO),
    _delta(_QUOTE, b'{"symbol": "IBM", "price": 2147483648}', '`{"symbol": "IBM", "price": 2147483648}`', **_AVRO),
    _delta(_QUOTE, b'{"symbol": "IBM", "size": 1}', '`{"symbol": "IBM", "size": 1}`', **_AVRO),
    _delta(_QUOTE, b'{"symbol": "SAP"}', '`{"symbol": "SAP"}`, of which there is no record', **_AVRO),
)
_WITH_IDS = (
    _record('JSON, with `value_format = "avro-confluent"`', Input(), **_CONFLUENT),
    _record("a schema id that is not listed", Input(value=b"\x00\x00\x00\x00\x03\x06IBM\x02"), **_CONFLUENT),
)
AVRO = (
    *(replace(case, good=_NEW.mark + b"\x02A\x04") for case in _SINGLE_OBJECTS),
    *(replace(case, good=b"\x00\x00\x00\x00\x02\x02A\x04") for case in _WITH_IDS),
    replace(
        _record(
            "5,000 records of a recursive schema inside each other",
            Input(value=b"\x02a\x02" * 4_999 + b"\x02a\x00"),
            **avro(AvroPayload(_LINK)) | _KEYED,
        ),
        good=b"\x02A\x00",
    ),
)

FILTERS = (
    _asked("sow", filter="/price >"),
    _asked("sow", filter="/price = 'A"),
    _asked("sow", filter="price = 1"),
    _asked("sow", filter="/price LIKE '('"),
    _asked("sow", filter="/price LIKE '(a+)+$'"),
    _asked("sow", filter="EXPLODE(/price)"),
    _asked("sow", filter="/price BETWEEN 1"),
    _asked("sow", filter="__import__('os')"),
    Case(
        "20,000 brackets around `/price = 1`",
        (Input(value=orjson.dumps({"command": "sow", "filter": "(" * 20_000 + "/price = 1" + ")" * 20_000})),),
        commands=True,
    ),
)

SOW_COMMANDS = (
    _command("sow"),
    _command("[]"),
    _command('{"command":"sow","filter":"/a = 1","filter":"/b = 1"}'),
    _command(""),
    _asked("explode"),
    _asked("subscibe", subscription="s"),
    _asked("sow", tpo_n=1),
    _asked("sow", top_n=-1),
    _asked("sow", skip="many"),
    _asked("sow", batch_size=0),
    _command('{"command":5}'),
    _asked("sow", order_by=5),
    _asked("sow", state="gone"),
    _asked("subscribe", subscription="s", state="scheduled"),
    _asked("sow_delete", state="scheduled", keys=["k"]),
    _asked("sow_delete", data=5),
    _asked("sow", order_by="/price DOWN"),
    _asked("sow", order_by="/price >"),
    _asked("sow", select="/price"),
    _asked("sow", select=["price"]),
    _asked("sow", select=["/legs[0]/price"]),
    _asked("sow", select=["/book/bid", "-/book"]),
    _asked("depth", select=["/price"]),
    _asked("sow", bookmarks=["prices:0:0"]),
    _asked("sow", data=['{"symbol": "A"}']),
    _asked("sow_delete"),
    _asked("sow_delete", keys=["k"], filter="TRUE"),
    _asked("sow_delete", filter=""),
    _asked("sow_delete", filter="TRUE", top_n=1),
    _asked("depth", keys=["k"]),
    _asked("depth", filter="/price >"),
    _asked("sow_delete", data=['{"symbol": "A"}']),
    _asked("sow", keys="k"),
    _asked("sow_delete", bookmarks=["prices:0"]),
    _asked("sow_delete", bookmarks=["prices:0:9-3"]),
    _asked("subscribe"),
    _asked("subscribe", subscription="s", top_n=1),
    _asked("subscribe", subscription="s", keys=["k"]),
    _asked("heartbeat"),
    _asked("heartbeat", subscription="nobody"),
    _asked("subscribe", subscription="s", heartbeat_timeout_ms=0),
    _asked("subscribe", subscription="s", filter=""),
    _asked("sow", filter=""),
    _asked("sow_and_subscribe"),
    _asked("sow_and_subscribe", subscription="s", bookmarks=["prices:0:0"]),
    _asked("delta_subscribe", subscription="s", filter="/price >"),
    _asked("sow_and_delta_subscribe", subscription="s", top_n=-1),
    _asked("unsubscribe"),
    _asked("subscriptions", keys=["k"]),
    _asked("delete", filter="/price = 1"),
)

QUEUE_COMMANDS = (
    _asked("explode"),
    _asked("subscibe", subscription="s"),
    _asked("subscribe"),
    _asked("subscribe", subscription="s", max_backlog=-1),
    _asked("subscribe", subscription="s", payload="both"),
    _asked("subscribe", subscription="s", filter="/price >"),
    _asked("subscribe", subscription="s", filter=""),
    _asked("subscribe", subscription="s", heartbeat_timeout_ms=99),
    _asked("depth", filter=""),
    _asked("heartbeat", subscription="nobody"),
    _asked("unsubscribe", subscription="nobody"),
    _asked("unsubscribe", subscription="lapse-forward"),
    _asked("acknowledge", subscription="lapse-forward", bookmarks=["prices:0:0"]),
    _asked("acknowledge", subscription="s"),
    _asked("purge", filter=""),
    _asked("acknowledge", subscription="s", bookmarks=["prices:0"]),
    _asked("acknowledge", subscription="s", bookmarks=["prices:0:9-3"]),
    _asked("acknowledge", subscription="s", bookmarks=["prices:0:0"], filter="TRUE"),
    _asked("purge", bookmarks=["prices:0:0"]),
    _asked("purge", top_n=1, dry_run=True),
    _asked("expire", filter="TRUE", skip=1),
    _asked("sow", order_by="/price"),
    _asked("delete", dry_run=True),
    _asked("rewind", to="beginning"),
    _asked("rewind", id="r", to="end"),
    _asked("rewind", id="r", to="253402300799999"),
    _asked("rewind", id="r", to="prices:7:0"),
    _asked("rewind", id="r", to="beginning", bookmarks=["prices:0:0"]),
    _asked("rewind", id="r", to="beginning", filter=""),
    _asked("rewind", id="r", to="beginning", lifetimes="old"),
    _asked("transfer", transfer="t", spare=True, bookmarks=["prices:0:0"]),
    _asked("transfer", transfer="t", spare=True, filter="/price >"),
    _asked("transfer", transfer="t", spare="all"),
    _asked("transfer", transfer="t", spare=True, least_life_ms=-1),
    _asked("transfer_accept", transfer="t", filter="TRUE"),
    _asked("acknowledge", subscription="s", bookmarks=["prices:0:0~1"]),
    _asked("sow", keys=["k"]),
    _asked("sow", select=["/price"]),
    _asked("sow", bookmarks=["prices:0:0"], filter="TRUE"),
    _asked("subscribe", subscription="s", bookmarks=["prices:0:0"]),
    _asked("acknowledge", subscription="s", bookmarks=["prices:0:99"]),
    _asked("acknowledge", subscription="s", bookmarks=["elsewhere:0:0"]),
    _asked("cancel", subscription="s", bookmarks=["prices:0:0"]),
    _asked("cancel", subscription="s", bookmarks=["prices:0:0"], delay_ms=-1),
    _asked("depth", answer="never"),
    _asked("depth", client=7),
    _asked("purge", leased="yes"),
    _asked("purge", state="scheduled"),
    _asked("sow", state="gone"),
    _asked("rewind", id="r", to="beginning", handed_over="yes"),
    _asked("rewind", id="r", to="beginning", dry_run=1),
    _asked("renew", subscription="s", bookmarks=["prices:0:0"], lease_ms=10_000_000),
    _asked("renew", subscription="s", bookmarks=["prices:0:0"], lease_ms=0),
    _asked("renew", bookmarks=["prices:0:0"]),
    _asked("expire", subscription="s"),
    _asked("expire", bookmarks=["prices:0:0"], fault=5),
    _asked("pause", filter="/price = 1"),
    _asked("resume", bookmarks=["prices:0:0"]),
    _asked("delete", bookmarks=["prices:0:0"]),
    _asked("delete", filter="/price = 1"),
    _asked("delete", force="yes"),
    _asked("depth", filter="/price >"),
    _asked("subscriptions", filter="/price = 1"),
    _asked("subscriptions", skip=-1),
    *(_asked(f"transfer_{what}") for what in ("confirm", "finish", "cancel", "discard")),
)

DEFINED = {
    "orders": Definition("orders", "queue", 3, "lapse.toml", {"lease_period": "1m"}),
    "prices": Definition("prices", "sow", 1, "alice", {}),
}

DEPLOYMENT_COMMANDS = (
    _asked("create"),
    _asked("create_queue"),
    _asked("create_queue", entity="fresh", settings="lease_period=30s"),
    _asked("create_queue", entity="fresh", settings="[]"),
    _asked("create_queue", entity="fresh", settings=""),
    _asked("create_queue", entity="", settings="{}"),
    _asked("create_queue", entity="fresh", settings={"lease_period": "30s"}),
    _asked("create_queue", entity="fresh", version=1),
    _asked("create_queue", entity="a b"),
    _asked("create_queue", entity="definitions.lapse"),
    _asked("create_queue", entity="fresh", settings='{"lease": "30s"}'),
    _asked("create_queue", entity="fresh", settings='{"lease_period": 30}'),
    _asked("create_queue", entity="fresh", settings='{"forward_to": "fresh"}'),
    _asked("create_queue", entity="fresh", settings='{"on_expire": "os:system"}'),
    _asked("create_queue", entity="fresh", settings='{"value_format": "avro", "value_schema": "/etc/passwd"}'),
    _asked("create_queue", entity="fresh", settings='{"recovery_point": "2999-01-01T00:00:00Z"}'),
    _asked("create_queue", entity="orders", settings='{"lease_period": "30s"}'),
    _asked("create_sow", entity="orders"),
    _asked("alter_queue", entity="order", settings='{"lease_period": "30s"}'),
    _asked("alter_queue", entity="orders"),
    _asked("alter_queue", entity="orders", settings='{"lease_period": "30s"}', version=2),
    _asked("alter_queue", entity="orders", settings='{"partitions": 4}'),
    _asked("alter_queue", entity="prices", settings='{"lease_period": "30s"}'),
    _asked("alter_queue", entity="orders", settings='{"priority": "/p"}'),
    _asked("alter_sow", entity="prices", settings='{"key": "symbol"}'),
)


@dataclass(frozen=True)
class Chapter:
    """Cases of one kind: on which entity, and where its sender reads what is wrong."""

    title: str
    entity: str
    lead: str
    cases: tuple[Case, ...]


CHAPTERS = (
    Chapter(
        "Lifetimes",
        "queue",
        "The message becomes a dead letter with the reason `invalid_lifetime` and this text, on queues and SOW topics "
        "alike (L12).",
        LIFETIMES,
    ),
    Chapter(
        "Retries",
        "retries",
        "The message is delivered as ever. When it comes back it waits as its queue says, here `retry = { delay = "
        '"1s" }`, and the event of its return has this text, which `lapse explain` shows (C69).',
        RETRIES,
    ),
    Chapter(
        "Records of a SOW topic",
        "sow",
        "The record becomes a dead letter with the reason `undecodable` and this text (S1).",
        RECORDS,
    ),
    Chapter("Deltas", "sow", "As above; the stored record stays as it was (S2).", DELTAS),
    Chapter(
        "Payloads in Avro",
        "sow",
        "The same where the key is `/symbol` and a schema of `symbol` and `price` is configured, an older one of which "
        "let the price be null. What a queue or a filter cannot read is NULL to it.",
        AVRO,
    ),
    Chapter("Filters", "sow", "The answer has this text, with the spot; the same on queues (X1).", FILTERS),
    Chapter("Commands to a SOW topic", "sow", "The answer has this text; the command did nothing.", SOW_COMMANDS),
    Chapter(
        "Commands to a queue",
        "queue",
        "The answer has this text, or this result for the bookmark (C16). The queue holds `prices:0:0`, and nobody has "
        "it.",
        QUEUE_COMMANDS,
    ),
    Chapter(
        "Commands to a deployment",
        "deployment",
        "The answer has this text, and nothing is defined. There are the queue `orders`, in version 3 and with 7 "
        "messages in it, and the SOW topic `prices` (Q23).",
        DEPLOYMENT_COMMANDS,
    ),
)


def queue(**settings: Any) -> QueueMachine:
    """A machine of a queue over one partition of the topic `prices`."""
    chosen = QueueSettings(
        name="prices", expiration=Expiration(True), leasing=Leasing.STRICT, dead_letter_topic="dlq.prices", **settings
    )
    machine = QueueMachine(
        chosen,
        restore([]),
        1,
        _Payloads(),
        QueueOutput("prices", 0, 1, "dlq.prices", 1),
        "prices",  # type: ignore[arg-type]
    )
    machine.take_over(ARRIVAL_MS)
    return machine


def sow(**settings: Any) -> SowMachine:
    """A machine of the SOW topic `prices`."""
    machine = SowMachine(
        SowShard(SowSettings(name="prices", **{**JSON, **settings})), SowOutput("prices", 0, 1, "dlq.prices", 1), _read
    )
    machine.take_over(ARRIVAL_MS)
    return machine


async def _read(topic: str, partition: int, offset: int) -> None:
    """Nothing is read back here."""


def finish(machine: QueueMachine | SowMachine) -> Effects:
    """End a step, with a broker that takes every letter; they stand before what else it says."""
    letters: list[Output] = []

    async def take(written: Sequence[Output]) -> dict[int, Refusal]:
        letters.extend(outputs_of(written))
        return {}

    effects = finished(machine.finish(take))
    effects.before[:0] = letters
    return effects


def response_to(chapter: Chapter, case: Case) -> str:
    """Give a case to a machine, and return what its sender is told."""
    if chapter.entity == "retries":
        return _refusal_of_its_return(case)
    if chapter.entity == "deployment":
        return _refusal_of_a_definition(case)
    machine = (queue if chapter.entity == "queue" else sow)(**dict(case.settings))
    if case.commands:
        machine.arrive("prices", 0, [Input()])
        finish(machine)
        for record in case.given:
            machine.command(record)
    else:
        machine.arrive("prices", 0, list(case.given))
    machine.advance(ARRIVAL_MS)
    texts = list(_texts(finish(machine)))
    assert len(texts) == 1, f"{case.shown}: expected to be told once, was told {texts}"
    return texts[0]


def _refusal_of_a_definition(case: Case) -> str:
    """Ask for a definition; what the refusal says."""
    try:
        request = read_request(command.decode(case.given[-1].value)[0], "bob")
        draft(request, DEFINED, Config(), Path(), ARRIVAL_MS).check_state(lambda _: {"": 7})
    except (CommandError, Refused) as error:
        return str(error)
    raise AssertionError(f"{case.shown}: was not refused")


def _refusal_of_its_return(case: Case) -> str:
    """Deliver a message, and cancel it without a delay; what the event says."""
    machine = queue(retry=RetryRule(1_000))
    machine.arrive("prices", 0, list(case.given))
    for body in (
        b'{"command":"subscribe","subscription":"s","answer":"none"}',
        b'{"command":"cancel","subscription":"s","bookmarks":["prices:0:0"],"answer":"none"}',
    ):
        machine.command(Input(value=body))
        machine.advance(ARRIVAL_MS)
        machine.deliver(ARRIVAL_MS)
        effects = finish(machine)
    text = [event.decode(one.value) for one in effects.before if one.topic == "lapse.events.prices"]
    (detail,) = [one.detail for one in text if one.event == "cancelled"]
    return detail


def _texts(effects: Effects) -> Iterator[str]:
    """What a letter's or answer's reader sees of it."""
    for output in (*effects.before, *effects.after):
        if not isinstance(output, Output):
            continue
        headers = dict(output.headers)
        if output.topic == "dlq.prices":
            yield f"{headers['__dlq.errors.message'].decode()}"
        elif headers.get("lapse-kind") == b"answer":
            answer = orjson.loads(output.value or b"")
            assert bool(answer["code"]) is bool(answer["error"]), "a refusal has a code"
            yield answer["error"] or ", ".join(one["result"] for one in answer["settlements"])


def page() -> str:
    """The page of the documentation."""
    parts = [_LEAD]
    for chapter in CHAPTERS:
        parts.append(f"\n## {chapter.title}\n\n{chapter.lead}\n\n| input | text |\n|---|---|\n")
        parts.extend(f"| {_cell(case.shown)} | {_cell(response_to(chapter, case))} |\n" for case in chapter.cases)
    parts.append(_ASKED)
    parts.extend(
        f"| {_cell(case.shown)} | `{error}` | {_cell(text)} |\n"
        for case in (*bad_calls.REQUESTS, *bad_calls.TRANSACTIONS)
        for error, text in [bad_calls.refusal_of(case)]
    )
    parts.append(_CALLED)
    parts.extend(
        f"| {_cell(case.shown)} | `{error}` | {_cell(text)} |\n"
        for case in (*bad_calls.OTHERS, *bad_calls.TESTING)
        for error, text in [bad_calls.refusal_of(case)]
    )
    parts.append(_REQUESTS)
    parts.extend(
        f"| {_cell(case.shown)} | {case.status} `{case.code}` | {_cell(bad_requests.refusal_of(case))} |\n"
        for case in bad_requests.CASES
    )
    parts.append(_SIMULATED)
    parts.extend(
        f"| {_cell(case.shown)} | {_cell(case.message)} |\n" for case in (*bad_options.CASES, *bad_options.GOALS)
    )
    parts.append(_AS_OF)
    parts.extend(f"| {_cell(case.shown)} | {_cell(case.message)} |\n" for case in bad_instants.CASES)
    parts.append(_FOLLOWED)
    parts.extend(f"| {_cell(case.shown)} | {_cell(case.message)} |\n" for case in bad_ledgers.CASES)
    parts.append(_COMMANDS)
    parts.extend(f"| {_cell(case.shown)} | {_cell(case.message)} |\n" for case in bad_commands.COMMANDS)
    parts.append(_KEYS)
    parts.extend(f"| {_cell(case.shown)} | {_cell(case.message)} |\n" for case in bad_commands.KEYS)
    parts.append(_LINKS)
    parts.extend(f"| {_cell(case.shown)} | {_cell(case.message)} |\n" for case in bad_links.CASES)
    parts.append(_ENLARGED)
    parts.extend(f"| {_cell(case.shown)} | {_cell(case.message)} |\n" for case in bad_partitions.CASES)
    return "".join(parts)


_LEAD = """\
# Bad input

What is refused, and what its sender is told. This page is written by `tests/unit/runtime/bad_input.py`, from what a
shard really says, and a test compares the two.
Whatever comes in, the shard goes on with the next record; nothing is dropped without a word (X7).
"""


_ASKED = """
## Requests, replies and transactions of the client

The call raises this error with this text ([requests.md](requests.md), [exactly-once.md](exactly-once.md)). There are
the queues `quotes`, which acts on lifetimes, and `orders`, and the SOW topic `prices` (Q27, C75, X9).

| call | error | text |
|---|---|---|
"""

_CALLED = """
## Other calls of the client, and of tests without Kafka

The call raises this error with this text ([client.md](client.md),
[testing-your-consumers.md](testing-your-consumers.md)). There are
the same queues and SOW topic (Q22, Q23, Q24, X8). `lapse` is the fixture of `lapse.testing`.

| call | error | text |
|---|---|---|
"""

_REQUESTS = """
## Requests to the gateway

The answer has this status, and its body this code and text ([gateway.md](gateway.md#errors)). What a worker refuses is
told over HTTP in the same words. Bytes that are no HTTP/1.1 are answered by 400 `malformed`, and the connection is
closed: two lengths, a length beside chunks, a wrong chunk, no `Host`. A connection on which the head of a
request does not arrive within 10 s is closed.

| input | status and code | text |
|---|---|---|
"""

_SIMULATED = """
## Options of `lapse simulate`

Nothing is simulated, and the exit code is 2 ([simulate.md](simulate.md)).

| option | text |
|---|---|
"""

_AS_OF = """
## Options of `lapse spark state`

Nothing is told; the broker's time is 2026-01-01 here ([spark.md](spark.md#a-queue-or-sow-topic-as-of-an-instant)).

| option | text |
|---|---|
"""

_FOLLOWED = """
## Options of `lapse spark ledger`

Nothing is read or told ([spark.md](spark.md#a-ledger-that-goes-on)).

| options | text |
|---|---|
"""

_COMMANDS = """
## Options of commands

Nothing is asked of Kafka, and the exit code is 1 or 2 ([queues.md](queues.md), [simulate.md](simulate.md)).

| command | text |
|---|---|
"""

_KEYS = """
## Keys of `lapse.toml`

At least one mistake of each key that `lapse check`, `apply` and workers refuse, with their exit code 1. The text
begins with the file and the line, which are left out here. Lines without a table are of `[queue.orders]`; a SOW topic
says the same of the keys that both have ([configuration.md](configuration.md)).

| keys | text |
|---|---|
"""

_LINKS = """
## Keys of `transfer.toml` and `replicate.toml`

At least one mistake of each key of the files that `lapse transfer` and `lapse replicate` take with `--config`. What has
to be given stands in front of it. Nothing is asked of Kafka, and the exit code is 1. The keys of `[from_security]` and
`[to_security]` are those of `[security]`, and what is said of them is the same
([queues.md](queues.md#handing-over), [sow.md](sow.md#replication)).

| keys | text |
|---|---|
"""

_ENLARGED = """
## Queues that cannot get shards

Nothing is done, and the exit code is 1 ([operations.md](operations.md#more-partitions)). The queues have two shards
each, and the topics of `both` are `web` and `fax`.

| command | text |
|---|---|
"""


def _cell(text: str) -> str:
    text = text.replace("|", "\\|").replace("<", "&lt;")
    # A fault's picture of the spot has several lines, and a table's cell has one.
    return f"<pre>{text}</pre>".replace("\n", "&#10;") if "\n" in text else text


if __name__ == "__main__":
    sys.stdout.write(page())
