"""Payloads in Confluent's wire format: by Confluent's serdes, with a real registry, over a real queue."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import orjson
import pytest

from lapse_client import DeadLetterReader, InvalidPublication, Publisher
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.programs.schema_registry import schema_registry

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

pytestmark = [
    pytest.mark.feature("X3"),
    # 160 MB of a foreign product, and 20 s; nothing of lapse is between Confluent's serdes and it.
    pytest.mark.skipif(
        not (os.environ.get("SCHEMA_REGISTRY_URL") or os.environ.get("LAPSE_TEST_REGISTRY")),
        reason="name a registry in SCHEMA_REGISTRY_URL, or set LAPSE_TEST_REGISTRY=1 to fetch Apicurio",
    ),
]

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistryClient]:
    from confluent_kafka.schema_registry import SchemaRegistryClient  # here: every process collects it

    with schema_registry() as url:
        yield SchemaRegistryClient({"url": url})


@pytest.fixture(scope="module")
def served(deploy: Deploy) -> Deployment:
    deployment = deploy({"orders": {"default_publish_target": "orders{}"}}).apply()
    deployment.worker().wait_for_shards(1)
    return deployment


def test_confluents_serdes_write_and_read_and_a_misfit_dies(served: Deployment, registry: SchemaRegistryClient) -> None:
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer

    queue = served.name("orders")
    serializer = AvroSerializer(registry, orjson.dumps(ORDER).decode())
    with Publisher(served.connection, serializer=serializer) as publisher:
        publisher.publish(queue, {"id": 1}, key="a")
        with pytest.raises(InvalidPublication, match="nothing was sent"):
            publisher.publish(queue, {"id": "one"}, key="a")
    assert f"{queue}-value" in registry.get_subjects()
    with Publisher(served.connection) as publisher:
        publisher.publish(queue, b"\0\x7f\xff\xff\xff\x02", key="a")  # of a schema that the registry does not know
        publisher.publish(queue, b"{}", key="a")
    with Publisher(served.connection, serializer=serializer) as publisher:
        publisher.publish(queue, {"id": 2}, key="a")
    seen = []

    def letters() -> list[bytes | None]:
        return [letter.value for letter in DeadLetterReader(f"dlq.{queue}", connection=served.connection)]

    with served.subscriber("orders", 10, deserializer=AvroDeserializer(registry)) as subscriber:
        for delivery in subscriber.messages(30):
            with delivery:
                seen.append(delivery.payload)
            if len(seen) == 2:
                break
        died = [b"{}", b"\0\x7f\xff\xff\xff\x02"]  # the second one after some tries: a registry may lag behind
        until(lambda: subscriber.receive(0.5) is None and letters() == died, "both letters", 60)
    assert seen == [{"id": 1}, {"id": 2}]
