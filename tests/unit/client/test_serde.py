"""Serdes: what fits comes back equal, and what does not is refused with the place, without its values."""

import base64
import dataclasses
import datetime as dt
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import orjson
import pydantic
import pytest
from confluent_kafka.serialization import IntegerDeserializer, IntegerSerializer, StringSerializer
from fastavro.read import SchemaResolutionError
from typing_extensions import TypedDict

from lapse.testing import Lapse
from lapse_client import AvroSerde, InvalidPayload, InvalidPublication, JsonSerde, Serde, UnresolvedSchema
from lapse_client.payload import serde

pytestmark = pytest.mark.feature("X3")


@dataclasses.dataclass
class Order:
    id: int
    symbol: str
    limit: float | None = None


class Model(pydantic.BaseModel):
    id: int
    placed: dt.datetime
    price: Decimal


class Aliased(pydantic.BaseModel):
    """Its fields have other names in JSON."""

    order_id: int = pydantic.Field(0, alias="orderId")
    more: list["Aliased"] = pydantic.Field([], alias="furtherOrders")


class Weight(pydantic.BaseModel):
    in_kg: float = pydantic.Field(alias="inKg")


class OnlyWritten(pydantic.BaseModel):
    """Its field is read by its own name."""

    number: int = pydantic.Field(serialization_alias="no")


class Row(TypedDict):
    id: int
    tags: list[str]


@dataclasses.dataclass
class Reading:
    sensor: str | None
    value: float


class UnknownSchema(Exception):
    """What Confluent's registry client raises of an id that the registry does not know."""

    http_status_code = 404
    error_code = 40403


MODEL = Model(id=1, placed=dt.datetime(2026, 1, 2, tzinfo=dt.UTC), price=Decimal("1.10"))
V1 = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "symbol", "type": "string"}],
}
V2 = {**V1, "fields": [*V1["fields"], {"name": "limit", "type": ["null", "double"], "default": None}]}


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (JsonSerde(), {"any": [1, "x", None]}),
        (JsonSerde(Order), Order(1, "A", 2.5)),
        (JsonSerde(Model), MODEL),
        (JsonSerde(Aliased), Aliased(orderId=7, furtherOrders=[Aliased(orderId=8)])),
        (JsonSerde(dict[str, Aliased]), {"a": Aliased(orderId=7)}),
        (JsonSerde(OnlyWritten), OnlyWritten(number=7)),
        (JsonSerde(Row), {"id": 1, "tags": ["a"]}),
        (JsonSerde(list[int]), [1, 2]),
        (AvroSerde(V2), {"id": 1, "symbol": "A", "limit": None}),
        (AvroSerde(V2, Order), Order(1, "A", 2.5)),
    ],
    ids=str,
)
def test_what_is_written_comes_back(way: Serde, value: Any) -> None:
    assert way.deserialize(way.serialize(value)) == value


@pytest.mark.parametrize(
    ("way", "data", "message"),
    [
        (JsonSerde(), b'{"secret', "the payload is no JSON: "),
        (JsonSerde(Order), b'{"id": "secret", "symbol": "A"}', "no Order: id: Input should be a valid integer"),
        (JsonSerde(Order), b'{"id": 1}', "the payload is no Order: symbol: Field required"),
        (JsonSerde(Order), b"\xff", "the payload is no Order: Invalid JSON"),
        (JsonSerde(list[int]), b'["a","b","c","d","e"]', "; and 2 more"),
        (AvroSerde(V1), b"\x01", "the payload is not Avro of Order"),
        (AvroSerde(V1), b"", "the payload is not Avro of Order: it ends too early"),
        (AvroSerde(V1), b"\xc3\x0101234567", "of a schema that is not known, with the fingerprint 3031323334353637; "),
        (AvroSerde(V1), AvroSerde(V2).serialize({"id": 1, "symbol": "A", "limit": 1.0}), "known are "),
        (AvroSerde(V1, Model), AvroSerde(V1).serialize({"id": 1, "symbol": "secret"}), "no Model: placed: Field"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_reported_with_its_place(way: Serde, data: bytes, message: str) -> None:
    with pytest.raises(InvalidPayload) as found:
        way.deserialize(data)
    assert message in str(found.value)
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (JsonSerde(), {1, 2}),
        (JsonSerde(Order), {"id": "x"}),
        (JsonSerde(Model), Model.model_construct(id="x", placed=None, price=None)),
        (AvroSerde(V1), {"id": 1}),
        (AvroSerde(V1), {"id": 1, "symbol": "A", "other": 1}),
        (AvroSerde(V1, Order), 7),
    ],
)
def test_a_payload_that_does_not_fit_is_not_written(way: Serde, value: Any) -> None:
    with pytest.raises(InvalidPayload):
        way.serialize(value)


@pytest.mark.parametrize(
    ("way", "value", "place"),
    [
        (JsonSerde(), {"id": None, "prices": [1.0, float("nan")]}, "prices.1"),
        (JsonSerde(), float("inf"), "it"),
        (JsonSerde(), Reading(None, float("-inf")), "value"),
        (JsonSerde(Reading), Reading(None, float("nan")), "value"),
        (JsonSerde(Weight), Weight(inKg=float("nan")), "inKg"),
    ],
    ids=str,
)
def test_a_number_that_json_cannot_say_is_not_written_as_null(way: Serde, value: Any, place: str) -> None:
    with pytest.raises(InvalidPayload, match=f"the payload is no JSON: {place} is NaN or infinite"):
        way.serialize(value)


def test_null_is_written_where_it_is_meant() -> None:
    assert JsonSerde(Reading).serialize(Reading(None, 1.0)) == JsonSerde().serialize({"sensor": None, "value": 1.0})


def test_a_dataclass_of_the_wrong_type_is_reported_by_its_field_and_without_its_value() -> None:
    with pytest.raises(InvalidPayload) as found:
        JsonSerde(Order).serialize(Order("secret", "A"))  # type: ignore[arg-type]
    assert str(found.value) == "the payload is no Order: id: expected int, found str"


def test_avro_reads_what_older_and_newer_writers_wrote() -> None:
    old, new = AvroSerde(V1), AvroSerde(V2)
    both = AvroSerde(V2, writers=[V1])
    assert both.deserialize(old.serialize({"id": 1, "symbol": "A"})) == {"id": 1, "symbol": "A", "limit": None}
    assert AvroSerde(V1, writers=[V2]).deserialize(new.serialize({"id": 1, "symbol": "A", "limit": 1.0})) == {
        "id": 1,
        "symbol": "A",
    }
    data = new.serialize({"id": 1, "symbol": "A", "limit": 1.0})
    assert data[:2] == b"\xc3\x01"  # single-object encoding, which workers and other languages read
    canonical = fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(V2))
    assert data[2:10].hex() == fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
    with pytest.raises(ValueError, match="has to be a record"):
        AvroSerde({"type": "string"})


def test_confluents_serdes_and_functions_serve_as_well(lapse: Lapse) -> None:
    lapse.queue("numbers")
    with lapse.publisher(serializer=IntegerSerializer()) as publisher:
        publisher.publish("numbers", 7)
        publisher.publish("numbers", None)
        with pytest.raises(InvalidPublication, match=r"numbers: the payload cannot be serialized: .*nothing was sent"):
            publisher.publish("numbers", "seven")
    with lapse.publisher(serializer=lambda number: struct.pack(">i", number)) as publisher:
        publisher.publish("numbers", 8)
    with lapse.subscriber("numbers", 9, deserializer=IntegerDeserializer()) as subscriber:
        assert [delivery.payload for delivery in subscriber.batches(9, 1).__next__()] == [7, None, 8]
    assert serde.write(StringSerializer(), "é", "t") == "é".encode()
    assert serde.read(lambda data: data.decode(), b"x", "t") == "x"
    with pytest.raises(InvalidPayload, match="UnicodeDecodeError"):
        serde.read(bytes.decode, b"\xff", "t")


def test_what_does_not_fit_is_a_dead_letter_with_its_fault_and_the_next_comes(lapse: Lapse) -> None:
    lapse.queue("orders")
    with lapse.publisher() as publisher:
        for value in (b'{"id": 1}', b'{"id": 2, "symbol": "A"}', b"no JSON", b'{"id": 3, "symbol": "B"}'):
            publisher.publish("orders", value)
    with lapse.subscriber("orders", 10, deserializer=JsonSerde(Order)) as subscriber:
        seen = []
        for delivery in subscriber.messages(1):
            with delivery:
                seen.append(delivery.payload)
    assert seen == [Order(2, "A"), Order(3, "B")]
    letters = lapse.dead_letters("orders")
    assert [letter.value for letter in letters] == [b'{"id": 1}', b"no JSON"]
    assert {letter.reasons for letter in letters} == {("forced_expire",)}
    assert letters[0].message == "the payload is no Order: symbol: Field required"


def test_a_registry_that_is_away_kills_no_message(lapse: Lapse, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Any] = [OSError("connection refused"), UnknownSchema("it lags behind"), 7]

    def ask_the_registry(_: bytes) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    lapse.queue("orders")
    with lapse.publisher() as publisher:
        publisher.publish("orders", b"known later")
    with lapse.subscriber("orders", 10, deserializer=ask_the_registry) as subscriber:
        assert subscriber.receive(0.5) is None
        assert "the deserializer failed on orders:0:0 of orders; the message comes again in 1000 ms" in caplog.text
        assert not lapse.dead_letters("orders")
        lapse.clock.advance(1)
        assert subscriber.receive(0.5) is None
        assert "the deserializer failed on orders:0:0 of orders; the message comes again in 2000 ms" in caplog.text
        lapse.clock.advance(2)
        delivery = subscriber.receive(1)
        assert delivery is not None
        assert (delivery.payload, delivery.delivery_count) == (7, 3)


@pytest.mark.parametrize("error", [UnknownSchema("id 7"), SchemaResolutionError("no default for field limit")])
def test_a_message_dies_only_when_schemas_do_not_fit_for_a_while(lapse: Lapse, error: Exception) -> None:
    """Its fault may be the consumer's, or that of a registry that lags behind."""

    def unread(_: bytes) -> Any:
        raise error

    lapse.queue("orders")
    with lapse.publisher() as publisher:
        publisher.publish("orders", b"good")
    with lapse.subscriber("orders", deserializer=unread) as early:
        for delay_s in (1, 2, 4, 8):
            assert early.receive(0.5) is None
            assert not lapse.dead_letters("orders")
            with lapse.subscriber("orders", deserializer=bytes) as other:
                assert other.receive(0.5) is None, "it waits"
            lapse.clock.advance(delay_s)
        assert early.receive(0.5) is None
        (letter,) = lapse.dead_letters("orders")
    assert letter.value == b"good"
    assert str(error) in letter.message


@pytest.mark.slow
def test_a_registry_that_hangs_stops_no_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    monkeypatch.setattr(serde, "_REGISTRY_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        registry = SchemaRegistryClient({"url": f"http://127.0.0.1:{silent.getsockname()[1]}", "max.retries": 0})
        with pytest.raises(Exception, match="timed out"):
            serde.read(AvroDeserializer(registry), b"\0\0\0\0\7\2", "orders")


def test_at_most_once_the_misfit_is_lost_and_keeps_no_place_in_the_backlog(
    lapse: Lapse, caplog: pytest.LogCaptureFixture
) -> None:
    lapse.queue("quick", semantics="at-most-once")
    with lapse.publisher() as publisher:
        for value in (b"1", b"x", b"2"):
            publisher.publish("quick", value)
    with lapse.subscriber("quick", 1, deserializer=JsonSerde(int)) as subscriber:
        seen = []
        for delivery in subscriber.messages(1):
            seen.append(delivery.payload)
            delivery.acknowledge()
    assert seen == [1, 2]
    assert "was delivered at most once and is lost: the payload is no int" in caplog.text
    assert not lapse.dead_letters("quick")


def test_without_a_deserializer_the_payload_is_the_value(lapse: Lapse) -> None:
    lapse.queue("plain")
    with lapse.publisher() as publisher, lapse.subscriber("plain") as subscriber:
        publisher.publish("plain", b"x")
        delivery = subscriber.receive(1)
        assert delivery is not None
        assert delivery.payload == delivery.value == b"x"


class _Answer(BaseHTTPRequestHandler):
    """Says the same to whatever is asked."""

    status, body = 200, b""

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


BY_TOPIC = {"subject.name.strategy.type": "TOPIC"}
"""Confluent's serdes ask the registry nothing else than for schemas."""


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A registry with one answer, and its address."""
    answer = type("Answer", (_Answer,), {"status": status, "body": body, "do_POST": _Answer.do_GET})
    with ThreadingHTTPServer(("127.0.0.1", 0), answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("status", "body", "dies"),
    [
        (404, b'{"error_code": 40403, "message": "Schema not found"}', True),
        (404, b"<html>no such page</html>", False),
        (404, b'{"error_code": 40401, "message": "Subject not found"}', False),
        (404, b'{"error_code": 40402, "message": "Version not found"}', False),
        (404, b'{"detail": "Not Found"}', False),
        (200, b"<html>Log in</html>", False),
        (200, b"[]", False),
        (401, b'{"error_code": 401, "message": "no"}', False),
        (500, b"", False),
    ],
)
def test_only_a_registry_itself_may_say_that_a_schema_is_unknown(status: int, body: bytes, dies: bool) -> None:
    """Behind a wrong address there is a proxy or a login page, of which no message must die."""
    from confluent_kafka.schema_registry import SchemaRegistryClient  # here: every process collects it
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    with answering(status, body) as url:
        registry = SchemaRegistryClient({"url": url, "max.retries": 0})
        with pytest.raises(Exception) as found:  # noqa: PT011  # whatever Confluent's client raises
            serde.read(AvroDeserializer(registry), b"\0\0\0\0\7\2", "orders")
    assert isinstance(found.value, InvalidPayload) is dies


def test_a_payload_that_the_readers_schema_cannot_read_dies() -> None:
    """It came again for ever: fastavro's error of a schema that cannot be resolved is no ValueError."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer

    with answering(200, orjson.dumps({"schema": orjson.dumps(V1).decode()})) as url:
        registry = SchemaRegistryClient({"url": url})
        written = b"\0\0\0\0\7\2\2A"
        assert serde.read(AvroDeserializer(registry, orjson.dumps(V2).decode(), conf=BY_TOPIC), written, "orders") == {
            "id": 1,
            "symbol": "A",
            "limit": None,
        }
        later = {**V1, "fields": [*V1["fields"], {"name": "limit", "type": "double"}]}
        with pytest.raises(UnresolvedSchema, match="No default value for field limit in Order"):
            serde.read(AvroDeserializer(registry, orjson.dumps(later).decode(), conf=BY_TOPIC), written, "orders")


def test_json_schema_is_checked_and_no_value_is_reported() -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer

    schema = orjson.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}).decode()
    with answering(200, orjson.dumps({"id": 7, "schema": schema, "schemaType": "JSON"})) as url:
        registry = SchemaRegistryClient({"url": url})
        written = serde.write(JSONSerializer(schema, registry, conf=BY_TOPIC), {"id": 1}, "orders")
        deserializer = JSONDeserializer(None, schema_registry_client=registry, conf=BY_TOPIC)
        assert serde.read(deserializer, written, "orders") == {"id": 1}
        with pytest.raises(InvalidPublication) as refused:
            serde.write(JSONSerializer(schema, registry, conf=BY_TOPIC), {"id": "secret"}, "orders")
        with pytest.raises(InvalidPayload) as misfit:
            serde.read(deserializer, b'\0\0\0\0\7{"id": "secret"}', "orders")
        with pytest.raises(InvalidPayload, match="Invalid magic byte"):
            serde.read(deserializer, b'{"id": 1}', "orders")
    for error in refused, misfit:
        assert "$.id does not fit type = 'integer'" in str(error.value)
        assert "secret" not in str(error.value)


def test_protobuf_is_read_by_older_and_newer_consumers_and_damage_dies() -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Order").field.add(name="id", number=1, type=3, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    schema = base64.b64encode(file.SerializeToString()).decode()
    with answering(200, orjson.dumps({"id": 7, "schema": schema, "schemaType": "PROTOBUF"})) as url:
        deserializer = ProtobufDeserializer(
            message, {**BY_TOPIC, "use.deprecated.format": False}, SchemaRegistryClient({"url": url})
        )
        framed = b"\0\0\0\0\7\0"
        assert serde.read(deserializer, framed + message(id=5).SerializeToString(), "orders").id == 5
        assert serde.read(deserializer, framed + b"\x08\5\x50\1", "orders").id == 5, "a field of later writers"
        for damaged in framed + b"\x08", b"\0\0\0\0\7\2\x10\x08\5", b"{}":
            with pytest.raises(InvalidPayload):
                serde.read(deserializer, damaged, "orders")


def test_an_error_on_the_way_to_a_registry_says_nothing_about_the_payload() -> None:
    def unreachable(data: bytes) -> None:
        raise ssl.SSLCertVerificationError("self-signed certificate")  # is a ValueError, too

    with pytest.raises(ssl.SSLCertVerificationError):
        serde.read(unreachable, b"1", "orders")
