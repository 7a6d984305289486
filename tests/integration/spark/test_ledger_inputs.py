"""What `lapse spark ledger` refuses, or warns of, before Spark starts."""

import json
import time

import pytest
from click.testing import CliRunner

from lapse.protocol import topic
from lapse_spark.cli import spark as commands
from support.kafka.wire import Wire


@pytest.mark.feature("D3", "X7")
def test_an_instant_in_the_future_is_refused_and_topics_that_the_queue_does_not_read_are_named(
    kafka, unique, create_topic
):
    name, read, other = unique("q"), create_topic(unique("orders")), create_topic(unique("other"))
    create_topic(topic.events(name))
    definitions, wire = create_topic(topic.definitions(unique("app"))), Wire(kafka)
    create_topic(f"{definitions}.commands")
    wire.put(definitions, json.dumps({"kind": "queue", "settings": {"topics": [read]}}).encode(), key=name.encode())
    wire.flush()
    future_ms = time.time_ns() // 1_000_000 + 3_600_000
    words = ["ledger", "--queue", name, "--topics", f"{read},{other}", "--since", str(future_ms), "--bootstrap", kafka]
    answer = CliRunner().invoke(commands, words)
    assert answer.exit_code == 1
    assert f"--since {future_ms} is after the present instant" in answer.output
    assert f"Warning: queue {name} is defined over other topics than {other}." in answer.output
    assert f"other topics than {read}" not in answer.output
