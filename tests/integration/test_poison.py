"""A record or command that ends the process whenever it is read is set aside after three deaths, and told (X7)."""

import json
import signal
from pathlib import Path

import pytest

import support.poisoned_worker
from lapse.protocol import topic
from support.deployment import Deploy, Deployment, WorkerProcess
from support.log import until, write

GOOD = [b'{"id": "%d"}' % at for at in range(40)]
POISON = b'{"id": "poison"}'


def poisoned(one: Deployment, number: int = 0) -> WorkerProcess:
    data = one.directory / f"data-{number}"
    return one.run([str(Path(support.poisoned_worker.__file__)), str(one.config), str(data)])


def deaths(worker: WorkerProcess, most: int = 3) -> int:
    """Start the worker again whenever the fault ends it, until it stays; how often that was."""
    ended = 0
    while True:
        until(lambda: not worker.running or "it is set aside" in worker.text, "it dies, or sets the record aside", 60)
        if worker.running:
            return ended
        assert worker.code == -signal.SIGSEGV, worker.text[-3000:]
        ended += 1
        assert ended <= most, worker.text[-3000:]
        worker.start()


@pytest.mark.feature("X7", "D1")
def test_a_record_that_ends_the_process_is_a_letter_after_three_deaths(deploy: Deploy) -> None:
    here = deploy({"orders": {"topics": ["orders{}"], "priority": "/id"}, "others": {"topics": ["others{}"]}})
    here.apply()
    here.write("others", b"served")
    here.write("orders", *GOOD[:20], POISON, *GOOD[20:])
    worker = poisoned(here)
    assert deaths(worker) == 3
    (letter,) = here.letters("orders", 1)
    told = {name: value.decode() for name, value in letter.headers() or ()}
    assert letter.value() == POISON
    assert told["lapse-reasons"] == "undecodable"
    assert told["__dlq.errors.message"] == "stopped the worker three times"
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
@pytest.mark.parametrize("shards", [1, 3])
def test_a_record_of_a_sow_topic_that_ends_the_process_is_a_letter(deploy: Deploy, shards: int) -> None:
    """With several shards each of them reads every record, and may begin with another part of the batch."""
    here = deploy({})
    here.configure({}, {"prices": {"key": "/id", "partitions": shards}})
    here.apply()
    here.write("prices", *GOOD, POISON)
    worker = poisoned(here)
    assert 3 <= deaths(worker, most=3 * shards) <= 3 * shards
    (letter,) = here.letters("prices", 1)
    assert letter.value() == POISON
    assert b"stopped the worker three times" in dict(letter.headers() or ())["__dlq.errors.message"]


@pytest.mark.feature("X7")
def test_a_queued_message_that_a_filter_cannot_be_tried_on_is_a_letter(deploy: Deploy) -> None:
    here = deploy({"orders": {}})
    here.apply()
    here.write("orders", *GOOD, POISON)
    worker = poisoned(here).wait_for_shards(1)
    until(lambda: here.depth("orders")["available"] == 41, "all are in")
    command = {"command": "purge", "id": "p", "filter": "/id = '7'"}
    write(here.servers, topic.commands(here.name("orders")), [json.dumps(command).encode()])
    assert deaths(worker) == 3
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
    assert deaths(worker) == 3
    told: dict[str, dict[str, object]] = {}

    def answered() -> bool:
        for message in answers.drain():
            if (message.value() or b"").startswith(b"{"):
                one = json.loads(message.value() or b"")
                told[one["id"]] = one
        return {"p", "d"} <= told.keys()

    until(answered, "both are answered", 20)
    assert told["p"]["status"] == "error"
    assert told["p"]["error"] == "stopped the worker three times"
    assert told["d"]["status"] == "ok"


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
