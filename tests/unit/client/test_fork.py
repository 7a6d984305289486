"""A forked process has the clients of its parent without their threads: they say so, and do not hold it up."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable

import orjson
import pytest

from lapse.testing import Lapse
from lapse_client import Connection, Publisher
from lapse_client.kafka.metadata import Metadata


def in_a_child(*calls: Callable[[], object]) -> list[str]:
    """What calls in a forked process return or raise."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which this is about
        child = os.fork()
    if not child:
        returned = []
        for call in calls:
            try:
                returned.append(repr(call()))
            except BaseException as error:  # noqa: BLE001  # the parent looks at it
                returned.append(type(error).__name__)
        os.write(writing, orjson.dumps(returned))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found: list[str] = orjson.loads(pipe.read())
    os.waitpid(child, 0)
    return found


@pytest.mark.feature("X3", "X7")
def test_what_its_parent_has_opened_is_of_no_use_to_a_forked_process(lapse: Lapse) -> None:
    lapse.queue("orders")
    lapse.sow("prices")
    unopened = lapse.subscriber("orders", name="unopened")
    with (
        Publisher(Connection("127.0.0.1:1")) as publisher,
        lapse.publisher() as own,
        lapse.subscriber("orders", 2) as subscriber,
        lapse.queue_client("orders") as queue,
        lapse.sow_client("prices") as prices,
        prices.subscribe() as updates,
    ):
        own.publish("orders", b"1")
        delivery = subscriber.receive(timeout=5)
        assert delivery is not None
        raised = in_a_child(
            lambda: publisher.publish("orders", b"2"),
            publisher.flush,
            lambda: publisher.request("orders", b"2", timeout=5),
            lambda: subscriber.receive(timeout=5),
            lambda: subscriber.settle("acknowledge", [delivery], wait=True),
            queue.depth,
            lambda: list(prices.query()),
            lambda: list(updates.updates()),
        )
        assert raised == ["OtherProcess"] * 8
        done = in_a_child(subscriber.stop, subscriber.close, publisher.close, delivery.acknowledge, lambda: unopened)
        assert done == ["None"] * 4 + ["<the subscriber of orders: new>"]
        assert subscriber.receive(timeout=5) is None
        delivery.acknowledge()
    assert lapse.depth("orders") == 0


@pytest.mark.feature("X3")
def test_a_forked_process_asks_for_metadata_by_a_client_of_its_own() -> None:
    opened: list[str] = []

    class Admin:
        def __init__(self, _: object) -> None:
            opened.append("admin")

        def list_topics(self, timeout: float) -> int:
            return len(opened)

    metadata = Metadata("nowhere:1", {}, Admin, None)  # type: ignore[arg-type]
    assert in_a_child(metadata.ask, metadata.ask) == ["2", "2"]
    assert metadata.ask() == 1  # type: ignore[comparison-overlap]


@pytest.mark.slow
@pytest.mark.feature("X3")
def test_a_forked_process_opens_clients_of_its_own_and_ends() -> None:
    """The fork waits until the parent's clients have tried to connect: a C library's lock would remain held in it."""
    script = """
import os, sys, time
from lapse_client import Connection, ConnectionFailed, Publisher

connection = Connection("127.0.0.1:1", {"reconnect.backoff.ms": "30000", "reconnect.backoff.max.ms": "30000"})

def ask():
    try:
        connection.await_broker(0.2)
    except ConnectionFailed:
        return

ask()
publisher = Publisher(connection)
time.sleep(0.5)
if child := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
ask()
own = Publisher(connection)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
