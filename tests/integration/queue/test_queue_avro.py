"""A queue over payloads in Avro, of an older writer and a newer one: priority and filters (Q11, Q14, C31)."""

import io
import json

import fastavro
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form

from support.processes.deployment import Deploy
from support.processes.gateway import door

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}, {"name": "px", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "price", "type": "double", "aliases": ["px"]},
        {"name": "side", "type": "string", "default": "buy"},
    ],
}


def written(schema: dict[str, object], **row: object) -> bytes:
    parsed = fastavro.parse_schema(schema)
    out = io.BytesIO()
    out.write(b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO")))
    fastavro.schemaless_writer(out, parsed, row)
    return out.getvalue()


@pytest.mark.feature("Q11", "Q14", "C31", "X1")
def test_priority_and_filter_read_what_either_schema_wrote(deploy: Deploy) -> None:
    settings = {
        "priority": "/price",
        "value_format": "avro",
        "value_schema": "new.avsc",
        "value_writer_schemas": ["old.avsc"],
    }
    here = deploy({"orders": settings})
    (here.directory / "old.avsc").write_text(json.dumps(OLD), encoding="utf-8")
    (here.directory / "new.avsc").write_text(json.dumps(NEW), encoding="utf-8")
    here.apply().worker().wait_for_shards(1)
    messages = [
        written(OLD, id="low", px=1),
        written(NEW, id="sell", price=99.0, side="sell"),
        b"no Avro",
        written(NEW, id="high", price=7.5, side="buy"),
        written(OLD, id="middle", px=5),
    ]
    here.write("orders", *messages)

    def taken(count: int, **options: str) -> list[bytes | None]:
        with here.subscriber("orders", 1, **options) as subscriber:
            got = []
            for delivery in subscriber.messages(timeout=15):
                got.append(delivery.value)
                delivery.acknowledge()
                if len(got) == count:
                    break
            return got

    low, sell, unreadable, high, middle = messages
    assert taken(3, filter="/side = 'buy'") == [high, middle, low], "the default is what an old message says"
    assert taken(2) == [sell, unreadable], "what cannot be read has no priority, and is the last"


@pytest.mark.feature("D5", "X1", "L12")
def test_a_filter_of_dead_letters_reads_what_either_schema_wrote(deploy: Deploy) -> None:
    settings = {"value_format": "avro", "value_schema": "new.avsc", "value_writer_schemas": ["old.avsc"]}
    here = deploy({"orders": settings})
    (here.directory / "old.avsc").write_text(json.dumps(OLD), encoding="utf-8")
    (here.directory / "new.avsc").write_text(json.dumps(NEW), encoding="utf-8")
    here.apply().worker().wait_for_shards(1)
    name, dead = here.name("orders"), [("lapse-ttl-ms", b"soon")]
    high = written(NEW, id="high", price=7.5, side="buy")
    here.write("orders", written(OLD, id="low", px=1), b"no Avro", high, written(OLD, id="middle", px=5), headers=dead)
    here.letters("orders", 4)
    for text, count in (("/price > 6", 1), ("/price < 6", 2), ("/side = 'buy'", 3), ("/price IS NULL", 1)):
        (row,) = map(json.loads, here.lapse("dlq", "redrive", name, "--filter", text, "--json").stdout.splitlines())
        assert (row["letters"], row["refused"]) == (count, ""), text
    shown = here.lapse("dlq", "show", name, "--filter", "/price > 6", "--json").stdout
    assert json.loads(shown)["origin"] == f"{name}:0:2"
    with door(here) as gateway:
        found = gateway.http.get(f"/letters/{name}", params={"filter": "/price > 6"}).json()
        assert (found["count"], found["letters"][0]["origin"]) == (1, f"{name}:0:2")
        sent = gateway.http.post(f"/letters/{name}/redrive", json={"filter": "/price < 6", "dry_run": True}).json()
        assert sent["sent"] == 2
