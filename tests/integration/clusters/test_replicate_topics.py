"""Which topics a link of `lapse replicate` may write, as the definitions downstream say it (S10)."""

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from lapse.config.definition import Definition
from lapse.protocol import topic as names
from lapse.replication.downstream_topics import check_read
from lapse.replication.link import load
from lapse.replication.link_error import LinkError
from lapse.topic_creation import NewTopic
from lapse_client import Connection
from support.kafka.created_topic import create
from support.kafka.log import write


@pytest.mark.feature("S10", "X7")
def test_a_topic_that_the_sow_topic_there_does_not_read_is_refused(kafka: str, unique: Callable[[str], str]) -> None:
    """Its records would be in no SOW topic, but before the readers of that topic."""
    name, definitions = unique("prices"), names.definitions(unique("app"))
    create(AdminClient({"bootstrap.servers": kafka}), NewTopic(definitions, 1), NewTopic(f"{definitions}.commands", 1))

    def define(value: bytes | None) -> None:
        write(kafka, definitions, [value], key=name.encode())

    def check(underlying: str) -> None:
        check_read(load(None, {"from": "here:1", "to": kafka, "topics": {name: underlying}}), Connection(kafka))

    check(name)  # nothing says what it reads
    define(Definition(name, "sow", 1, "lapse.toml", {"topic": f"{name}.raw"}).encode())
    check(f"{name}.raw")
    with pytest.raises(LinkError, match=f"{name} does not read the topic {name} there; .* --topic {name}={name}.raw"):
        check(name)
    define(Definition(name, "queue", 2, "lapse.toml", {}).encode())
    check(name)
    define(None)
    check(name)
