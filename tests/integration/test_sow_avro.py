"""A SOW topic with payloads in Avro on a real broker: key, filter, index, delta (S1, S2, S5, S11)."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import fastavro
import pytest

from lapse_client import Connection, Publisher, SowClient
from support.log import until
from support.worker import Worker

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
