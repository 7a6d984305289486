"""A SOW topic with payloads in Avro on a real broker: key, filter, index, delta (S1, S2, S5, S11)."""

import io
import json
import struct
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import fastavro
import pytest
from click.testing import CliRunner
from confluent_kafka import Message
from fastavro.schema import fingerprint, to_parsing_canonical_form

from lapse.cli import main
from lapse_client import Connection, Publisher, QueueSubscriber, SowClient
from support.kafka.log import Tail, texts, until
from support.processes.worker import Worker

SCHEMA = {
    "type": "record",
    "name": "Price",
    "fields": [
        {"name": "symbol", "type": "string"},
        {"name": "venue", "type": "string"},
        {"name": "price", "type": "double"},
        {"name": "sizes", "type": {"type": "map", "values": "long"}, "default": {}},
    ],
}
PARSED = fastavro.parse_schema(SCHEMA)
FRAME = b"\x00\x00\x00\x00\x2a"


def avro(frame: bytes, **row: object) -> bytes:
    out = io.BytesIO()
    out.write(frame)
    fastavro.schemaless_writer(out, PARSED, row)
    return out.getvalue()


@pytest.mark.feature("S1", "S2", "S5", "S11", "X2", "L12")
@pytest.mark.parametrize(("form", "frame"), [("avro", b""), ("avro-confluent", FRAME)])
def test_keys_filters_and_deltas_of_avro_records(
    kafka: str, unique: Callable[[str], str], tmp_path: Path, form: str, frame: bytes
) -> None:
    (tmp_path / "price.avsc").write_text(json.dumps(SCHEMA), encoding="utf-8")
    name = unique("prices")
    entity = f'[sow."{name}"]\nkey = ["/symbol", "/venue"]\nhash_index = "/venue"\nexpiration = "enabled"\n'
    entity += f'value_format = "{form}"\nvalue_schema = "price.avsc"\n'
    connection = Connection(kafka)
    with Worker(tmp_path, kafka, unique("app"), entity), SowClient(name, connection=connection) as client:

        def shown(expression: str | None = None, **more: object) -> list[tuple[bytes, object]]:
            found = []
            for record in client.query(expression, **more):
                assert record.value is not None
                assert record.value.startswith(frame)
                row = fastavro.schemaless_reader(io.BytesIO(record.value[len(frame) :]), PARSED, None)
                found.append((record.key or b"", row))
            return found

        ibm = {"symbol": "IBM", "venue": "N", "price": 1.5, "sizes": {"bid": 1}}
        with Publisher(connection) as publisher:
            publisher.publish(name, avro(frame, **ibm))
            publisher.publish(name, avro(frame, symbol="SAP", venue="F", price=100.0))
            publisher.publish(name, b"\xff no Avro")
            publisher.publish(name, b'{"price": 2}', delta=True)  # without its key
            publisher.publish(name, b'{"symbol": "X", "venue": "N"}', delta=True)  # no whole record
        until(lambda: len(shown()) == 2, "two records")
        assert shown("/price < 50") == [(b'["IBM","N"]', ibm)]
        assert shown("/venue = 'F' AND /price > 50")[0][0] == b'["SAP","F"]'
        assert shown("/venue = 'nowhere'") == []
        with Publisher(connection) as publisher:
            changed = b'{"symbol": "IBM", "venue": "N", "price": 2, "sizes": {"ask": 5}}'
            publisher.publish(name, changed, delta=True)
        merged = {**ibm, "price": 2.0, "sizes": {"bid": 1, "ask": 5}}
        until(lambda: shown("/symbol = 'IBM'") == [(b'["IBM","N"]', merged)], "the delta")
        (some,) = client.query("/price < 50", select=["/price", "/sizes/ask"])
        assert some.value == b'{"price":2.0,"sizes":{"ask":5}}', "selected fields are JSON"
        shell = ["--select", "/sizes/ask", "--bootstrap-servers", kafka]
        for asked in (["query", name, "/price < 50", "--json"], ["follow", name, "/price < 50", "--timeout", "1"]):
            documents = CliRunner().invoke(main, ["sow", *asked, *shell]).output
            assert '"value":"{\\"sizes\\":{\\"ask\\":5}}"' in documents, documents
        with client.sow_and_subscribe(select=["-/sizes", "-/venue"]) as updates:
            documents = [json.loads(one.value or b"") for one in islice(updates, 3) if one.kind == "sow"]
            with Publisher(connection) as publisher:
                publisher.publish(name, avro(frame, symbol="SAP", venue="F", price=float("nan")))
            assert json.loads(next(updates.updates(20)).value or b"") == {"symbol": "SAP", "price": None}
        assert sorted(documents, key=lambda one: one["price"]) == [
            {"symbol": "IBM", "price": 2.0},
            {"symbol": "SAP", "price": 100.0},
        ]


def field(name: str, kind: object, **more: object) -> dict[str, object]:
    return {"name": name, "type": kind, **more}


def schema(*fields: dict[str, object]) -> dict[str, object]:
    return {"type": "record", "name": "Quote", "fields": list(fields)}


V1 = schema(field("sym", "string"), field("price", "int"), field("desk", "string"))
V2 = schema(
    field("symbol", "string", aliases=["sym"]),
    field("price", "double"),
    field("venue", ["null", "string"], default=None),
    field("lots", {"type": "map", "values": "long"}, default={"round": 100}),
)
V3 = schema(*V2["fields"], field("trader", "string", default="nobody"))  # type: ignore[misc]  # a list of fields


class Writer:
    """Writes payloads of one schema, in single-object encoding or in Confluent's format with an id."""

    def __init__(self, tree: dict[str, object], number: int, confluent: bool) -> None:
        self.schema = fastavro.parse_schema(tree)
        rabin = bytes.fromhex(fingerprint(to_parsing_canonical_form(self.schema), "CRC-64-AVRO"))
        self.frame = struct.pack(">BI", 0, number) if confluent else b"\xc3\x01" + rabin

    def __call__(self, **row: object) -> bytes:
        out = io.BytesIO()
        out.write(self.frame)
        fastavro.schemaless_writer(out, self.schema, row)
        return out.getvalue()

    def read(self, data: bytes) -> object:
        assert data.startswith(self.frame), data[:10].hex()
        return fastavro.schemaless_reader(io.BytesIO(data[len(self.frame) :]), self.schema, None)


def first_letter(kafka: str, name: str) -> Message:
    """The first dead letter of a SOW topic."""
    letters = Tail(kafka, f"dlq.{name}")
    try:
        return letters.wait(1)[0]
    finally:
        letters.close()


@pytest.mark.slow
@pytest.mark.feature("S1", "S2", "S5", "S11", "X1", "X7", "D2")
@pytest.mark.parametrize("confluent", [False, True], ids=["single-object", "confluent"])
def test_records_of_older_and_newer_writers_are_one_topic(
    kafka: str, unique: Callable[[str], str], tmp_path: Path, confluent: bool
) -> None:
    """The schema that a topic is read with changes while records of the old one are stored, and producers lag."""
    for number, tree in enumerate((V1, V2, V3), 1):
        (tmp_path / f"v{number}.avsc").write_text(json.dumps(tree), encoding="utf-8")
    first, second, third = (Writer(tree, number, confluent) for number, tree in enumerate((V1, V2, V3), 1))
    name = unique("quotes")
    form = "avro-confluent" if confluent else "avro"
    before = f'[sow."{name}"]\npartitions = 2\nkey = "/sym"\nvalue_format = "{form}"\nvalue_schema = "v1.avsc"\n'
    writers = '{ 1 = "v1.avsc", 2 = "v2.avsc", 3 = "v3.avsc" }' if confluent else '["v1.avsc", "v3.avsc"]'
    after = f'[sow."{name}"]\nkey = "/symbol"\nhash_index = "/symbol"\nvalue_format = "{form}"\n'
    after += f'value_schema = "v2.avsc"\nvalue_writer_schemas = {writers}\n'
    connection = Connection(kafka)
    worker = Worker(tmp_path, kafka, unique("app"), before)
    with worker, SowClient(name, connection=connection) as client, Publisher(connection) as publisher:

        def keys(expression: str | None = None) -> list[bytes]:
            return sorted(record.key or b"" for record in client.query(expression))

        def payload(key: str) -> bytes:
            (found,) = client.query(keys=[key])
            return found.value or b""

        publisher.publish(name, first(sym="IBM", price=3, desk="old"))
        publisher.publish(name, first(sym="SAP", price=100, desk="old"))
        until(lambda: len(keys()) == 2, "the records of the old schema")
        worker.stop()

        worker.configure(after)
        worker.start()
        publisher.publish(name, second(symbol="ABB", price=2.5, venue="Z", lots={}))
        publisher.publish(name, third(symbol="BMW", price=60.5, venue=None, lots={}, trader="Ann"))
        until(lambda: len(keys()) == 4, "the records of newer schemas")
        assert keys("/price < 50 AND /venue IS NULL") == [b'["IBM"]'], "a promoted number, a default"
        assert keys("/symbol = 'SAP'") == [b'["SAP"]'], "by the index, under the new name"
        assert keys("/lots/round = 100") == [b'["IBM"]', b'["SAP"]']
        assert keys("/desk = 'old'") == keys("/trader = 'Ann'") == [], "what the topic's schema does not have"

        # A delta makes a record of the topic's own schema; one from an old writer has no word on newer fields.
        publisher.publish(name, b'{"symbol": "IBM", "venue": "N"}', delta=True)
        publisher.publish(name, first(sym="ABB", price=9, desk="old"), delta=True)
        until(lambda: keys("/price = 9 AND /venue = 'Z'") == [b'["ABB"]'], "the delta of the old writer")
        lots = {"round": 100}
        assert second.read(payload('["IBM"]')) == {"symbol": "IBM", "price": 3.0, "venue": "N", "lots": lots}
        assert second.read(payload('["ABB"]')) == {"symbol": "ABB", "price": 9.0, "venue": "Z", "lots": {}}
        assert first.read(payload('["SAP"]')) == {"sym": "SAP", "price": 100, "desk": "old"}, "as it was published"

        ranked = [record.key for record in client.query(order_by="/price DESC", skip=1, top_n=2)]
        assert ranked == [b'["BMW"]', b'["ABB"]'], "over both shards, whatever the payloads are"

        # A schema that nobody told of is a dead letter with what is known.
        stranger = Writer(schema(field("symbol", "string"), field("price", "string")), 7, confluent)
        publisher.publish(name, stranger(symbol="X", price="much"))
        letter = first_letter(kafka, name)
        assert letter.value() == stranger(symbol="X", price="much")
        assert texts(letter)["lapse-reasons"] == "undecodable"
        known = "written with the schema of id 7; known are 1, 2, 3" if confluent else "v1.avsc"
        assert known in texts(letter)["__dlq.errors.message"]
        assert len(keys()) == 4


LINK = schema(
    field("symbol", "string"),
    field("next", ["null", "Quote"], default=None),
    field("bids", {"type": "array", "items": "double"}),
    field("none", {"type": "array", "items": "null"}),
    field("sizes", {"type": "map", "values": "long"}),
    field("raw", "bytes"),
)
LAST = b"\x00\x00\x00\x00\x00"
"""The fields of a record behind its symbol, all of them empty."""

MOST, LEAST = b"\x80" * 8 + b"\x20", b"\xff" * 8 + b"\x1f"
"""2 to the power of 60, and its negative, as the count of a block."""

HOSTILE = {
    "10 KB overflow the decoder's stack": (b"\x02a\x02" * 5_000 + b"\x02a" + LAST, "nested more than 256 deep"),
    "a branch that counts from the end": (b"\x02a\x01" * 5_000 + b"\x02a" + LAST, "has no branch -1"),
    "doubles without end": (b"\x02a\x00" + MOST + LAST, "it ends too early"),
    "doubles without end, with a size": (b"\x02a\x00" + LEAST + b"\x08" + LAST, "it ends too early"),
    "nulls without end": (b"\x02a\x00\x00" + MOST + LAST, "more than 65,536 items that take no bytes"),
    "a map without end": (b"\x02a\x00\x00\x00" + MOST + LAST, "it ends too early"),
    "a text without end": (MOST + b"a" + LAST, "Expected 1152921504606846976 bytes"),
    "bytes of a negative length": (b"\x02a\x00\x00\x00\x00\x01", "negative length"),
    "a number without end": (b"\xff" * 30, "more than 64 bits"),
    "keys of no bytes": (b"\x02a\x00\x00\x00" + b"\x80\xea\x30" + bytes(800_000), "it ends too early"),
}


@pytest.mark.feature("X7", "S1", "D1")
def test_a_payload_that_would_end_or_hold_up_the_process_in_its_decoder_is_a_letter(
    kafka: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "link.avsc").write_text(json.dumps(LINK), encoding="utf-8")
    name, queue, framed = unique("links"), unique("link-queue"), unique("framed")
    avro_payloads = 'value_format = "avro"\nvalue_schema = "link.avsc"\n'
    entities = (
        f'[sow."{name}"]\nkey = "/symbol"\n{avro_payloads}\n[queue."{queue}"]\ntopics = ["{name}"]\n{avro_payloads}'
        f'\n[sow."{framed}"]\nkey = "/symbol"\nvalue_format = "avro-confluent"\nvalue_schema = "link.avsc"\n'
        'value_writer_schemas = { 1 = "link.avsc" }\n'
    )
    connection = Connection(kafka)
    good = b"\x02a\x02\x02b" + LAST + LAST[1:]
    head = b"\x00\x00\x00\x00\x01"
    alien = {b"\x00": "not in Confluent's wire format", b"\x00" + b"\xff" * 4: "schema of id 4294967295; known are 1"}
    with Worker(tmp_path, kafka, unique("app"), entities) as worker, Publisher(connection) as publisher:
        for payload, _ in HOSTILE.values():
            publisher.publish(name, payload)
            publisher.publish(framed, head + payload)
        for payload in alien:
            publisher.publish(framed, payload)
        publisher.publish(name, good)
        publisher.publish(framed, head + good)
        publisher.flush()
        for topic, value in ((name, good), (framed, head + good)):
            with SowClient(topic, connection=connection) as client:
                until(lambda c=client, v=value: [one.value for one in c.query("/symbol = 'a'")] == [v], "the good one")
        with QueueSubscriber(queue, connection=connection, filter="/next/symbol = 'b'") as subscriber:
            delivery = next(iter(subscriber.messages(timeout=20)))
            assert delivery.value == good
            delivery.acknowledge()
        expected = [text for _, text in HOSTILE.values()]
        for topic, messages in ((name, expected), (framed, [*expected, *alien.values()])):
            letters = Tail(kafka, f"dlq.{topic}").wait(len(messages), 20)
            for letter, text in zip(letters, messages, strict=True):
                assert text in str(dict(letter.headers())["__dlq.errors.message"])
        assert worker.process is not None
        assert worker.process.poll() is None
