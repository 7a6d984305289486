"""A record or command that ends the process whenever it is read is set aside after three deaths, and told (X7)."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import support.workers.poisoned
from lapse.protocol import topic
from lapse_client import SowClient
from support.kafka.log import until, write
from support.processes.deployment import Deploy, Deployment, WorkerProcess

GOOD = [b'{"id": "%d"}' % at for at in range(40)]
POISON = b'{"id": "poison"}'


def poisoned(one: Deployment, number: int = 0) -> WorkerProcess:
    data = one.directory / f"data-{number}"
    return one.run([str(Path(support.workers.poisoned.__file__)), str(one.config), str(data)])


def deaths(worker: WorkerProcess, done: Callable[[], bool]) -> int:
    """Start the worker again whenever the fault ends it, until something is done; how often it was ended."""
    ended = 0
    while True:
        until(lambda: done() or not worker.running, "it dies, or sets the record aside", 60)
        if worker.running:
            return ended
        assert worker.code == -signal.SIGSEGV, worker.text[-3000:]
        ended += 1
        assert ended <= 3, worker.text[-3000:]
        worker.start()


def letter_of(here: Deployment, stem: str) -> Callable[[], bool]:
    """Whether an entity's dead letter is written."""
    tail = here.tail(topic.dead_letters(here.name(stem)))
    return lambda: bool(tail.drain())


@pytest.mark.feature("X7", "D1")
def test_a_record_that_ends_the_process_is_a_letter_after_three_deaths(deploy: Deploy) -> None:
    here = deploy({"orders": {"topics": ["orders{}"], "priority": "/id"}, "others": {"topics": ["others{}"]}})
    here.apply()
    here.write("others", b"served")
    here.write("orders", *GOOD[:20], POISON, *GOOD[20:])
    worker = poisoned(here)
    assert deaths(worker, letter_of(here, "orders")) == 3
    (letter,) = here.letters("orders", 1)
    stated = {name: value.decode() for name, value in letter.headers() or ()}
    assert letter.value() == POISON
    assert stated["lapse-reasons"] == "undecodable"
    assert stated["__dlq.errors.message"] == "stopped the worker three times"
    assert f"{here.name('orders')}:0:20" in worker.text, "the log says which record it was"
    for stem, count in (("orders", 40), ("others", 1)):
        with here.subscriber(stem, 50) as subscriber:
            got = []
            for delivery in subscriber.messages(timeout=20):
                got.append(delivery.value)
                delivery.acknowledge()
                if len(got) == count:
                    break
        assert sorted(got) == sorted(GOOD if stem == "orders" else [b"served"])


@pytest.mark.feature("X7", "S1", "D1", "C46")
@pytest.mark.parametrize(("shards", "lifetime"), [(1, b"60000"), (3, b"60000"), (1, b"soon")])
def test_a_record_of_a_sow_topic_that_ends_the_process_is_a_letter(
    deploy: Deploy, shards: int, lifetime: bytes
) -> None:
    """With several shards each of them reads every record, and may begin with another part of the batch."""
    here = deploy({})
    here.configure({}, {"prices": {"key": "/id", "partitions": shards}})
    here.apply()
    here.write("prices", *GOOD)
    here.write("prices", POISON, headers=[("lapse-ttl-ms", lifetime)])
    worker = poisoned(here)
    assert deaths(worker, letter_of(here, "prices")) == 3
    (letter,) = here.letters("prices", 1)
    assert letter.value() == POISON
    assert b"stopped the worker three times" in dict(letter.headers() or ())["__dlq.errors.message"]
    worker.wait_for_shards(shards)
    with SowClient(here.name("prices"), connection=here.connection) as sow:
        assert sum(1 for _ in sow.query()) == len(GOOD)
    assert worker.running, worker.text[-3000:]


@pytest.mark.feature("X7")
def test_a_queued_message_that_a_filter_cannot_be_tried_on_is_a_letter(deploy: Deploy) -> None:
    here = deploy({"orders": {}})
    here.apply()
    here.write("orders", *GOOD, POISON)
    worker = poisoned(here).wait_for_shards(1)
    until(lambda: here.depth("orders")["available"] == 41, "all are in")
    command = {"command": "purge", "id": "p", "filter": "/id = '7'"}
    write(here.servers, topic.commands(here.name("orders")), [json.dumps(command).encode()])
    assert deaths(worker, letter_of(here, "orders")) == 3
    (letter,) = here.letters("orders", 1)
    assert letter.value() == POISON
    until(lambda: here.depth("orders")["available"] == 39, "the filter did its work on the others")


@pytest.mark.feature("X7")
def test_a_command_that_ends_the_process_is_refused_after_three_deaths(deploy: Deploy) -> None:
    here = deploy({"orders": {}})
    here.apply()
    here.write("orders", *GOOD)
    worker = poisoned(here).wait_for_shards(1)
    until(lambda: here.depth("orders")["available"] == 40, "all are in")
    answers = here.tail(topic.deliveries(here.name("orders")))
    commands = [{"command": "purge", "id": "p", "filter": "/id = 'poison'"}, {"command": "depth", "id": "d"}]
    write(here.servers, topic.commands(here.name("orders")), [json.dumps(one).encode() for one in commands])
    by_id: dict[str, dict[str, object]] = {}

    def answered() -> bool:
        for message in answers.drain():
            if (message.value() or b"").startswith(b"{"):
                one = json.loads(message.value() or b"")
                by_id[one["id"]] = one
        return {"p", "d"} <= by_id.keys()

    assert deaths(worker, answered) == 3
    assert by_id["p"]["status"] == "error"
    assert by_id["p"]["error"] == "stopped the worker three times"
    assert by_id["d"]["status"] == "ok"


@pytest.mark.feature("X7")
def test_ordinary_kills_set_nothing_aside(deploy: Deploy) -> None:
    here = deploy({"orders": {"priority": "/id"}})
    here.apply()
    worker = here.worker()
    for _ in range(5):
        here.write("orders", *GOOD * 500)
        until(lambda: "; epoch " in worker.text, "it has taken over", 40)
        worker.kill()
        worker.start()
    until(lambda: here.depth("orders")["available"] == 100_000, "all of them are in", 60)
    assert [one for one in here.events("orders") if "undecodable" in one.reasons] == []
