"""How a SOW topic reads and writes payloads in JSON and in Avro (S1, S2, S6)."""

import json

import pytest

from lapse.protocol.avro_payload import AvroPayload
from lapse.protocol.avro_schema import AvroSchema
from lapse.runtime.sow.settings import JSON, avro
from unit.core.sow.make import Desk, shard_of

LONG = 10**30


@pytest.mark.feature("S1", "S2", "S6")
def test_integers_of_any_length_stay_apart_and_stay_what_they_are() -> None:
    desk = Desk(shard_of(key=(("id",),), **JSON))
    desk.ask("delta_subscribe", 0, subscription="s")
    desk.put(None, {"id": LONG, "n": LONG + 1}, 0)
    desk.put(None, {"id": LONG + 1, "n": 1}, 0)
    assert len(desk.shard.state.entries) == 2
    desk.put(None, {"id": LONG, "m": 1}, 1, lapse_command="delta")
    assert json.loads(desk.compacted[b"[%d]" % LONG]) == {"id": LONG, "n": LONG + 1, "m": 1}
    step = desk.put(None, {"id": LONG, "n": LONG + 2}, 2, lapse_command="delta")
    (message,) = step.deliveries
    assert json.loads(message.payload or b"") == {"n": LONG + 2}


@pytest.mark.feature("S6")
def test_what_json_cannot_tell_of_an_avro_record_is_reported_with_the_whole_record() -> None:
    schema = AvroSchema(
        {
            "type": "record",
            "name": "P",
            "fields": [{"name": "x", "type": "double"}, {"name": "raw", "type": "bytes", "default": ""}],
        }
    )
    form = AvroPayload(schema)
    desk = Desk(shard_of(**avro(form)))
    desk.ask("delta_subscribe", 0, subscription="s")
    kinds = []
    for at, row in enumerate(({"x": 1.0}, {"x": 2.0}, {"x": float("nan")}, {"x": 3.0}, {"x": 3.0, "raw": b"\xff"})):
        (message,) = desk.put("k", form.serialize(row, b""), at, raw=True).deliveries
        kinds.append(message.kind.value)
    assert kinds == ["publish", "delta", "publish", "delta", "publish"]
