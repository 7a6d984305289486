"""A worker dies between journal and delivery: the new owner writes what is missing, and nothing else (C55, Q6)."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import orjson
import pytest

import support.workers.dying
from lapse.protocol import topic as names
from lapse.protocol.event import TERMINAL
from support.kafka.log import texts, until
from support.processes.deployment import Deploy, Deployment, WorkerProcess, broker_now_ms
from support.suite.at_length import cases


def worker(one: Deployment, *commands: str) -> WorkerProcess:
    """The worker that dies once, at a payload that says so, or before it answers a command."""
    data = one.directory / f"data-{len(one.workers)}"
    return one.run([str(Path(support.workers.dying.__file__)), str(one.config), str(data), *commands])


def dies(process: WorkerProcess) -> WorkerProcess:
    assert process.wait(40) == 9
    return process


@pytest.mark.feature("C55", "Q9", "C36")
@pytest.mark.parametrize("payload", cases(["packed"], ["inline", "reference"]))
def test_a_delivery_that_was_only_journaled_arrives_with_its_count_and_lease(
    deploy: Deploy, payload: Literal["packed", "inline", "reference"]
) -> None:
    """With one delivery allowed, the message would die of one that nobody could see."""
    here = deploy({"once": {"max_deliveries": 1, "lease_period": "60s"}}, session_timeout="2s").apply()
    process = worker(here).wait_for_shards(1)
    with here.subscriber("once", 4, payload=payload) as subscriber:
        if payload != "reference":
            here.write("once", "seen")
            first = subscriber.receive(20)
            assert first is not None
            first.acknowledge()
        here.write("once", "before")
        dies(process)
        leases_end_ms = time.time() * 1000 + 60_000
        time.sleep(1)
        process.start().wait_for_shards(1)
        second = subscriber.receive(20)
        assert second is not None
        assert second.delivery_count == 1
        assert second.lease_until_ms is not None
        assert second.lease_until_ms < leases_end_ms, "the lease that was journaled, no new one"
        second.acknowledge()
        assert subscriber.receive(2) is None
    until(lambda: here.depth("once")["depth"] == 0, "everything is settled")
    assert not {"dead_lettered", "expired"} & {event.event for event in here.events("once")}


@pytest.mark.feature("C35", "Q12")
def test_a_barrier_whose_release_was_only_journaled_goes_to_everybody_after_the_crash(deploy: Deploy) -> None:
    settings = {"ordering": "total", "barrier": "/b = 'yes'", "lease_period": "60s"}
    here = deploy({"marked": settings}, session_timeout="2s").apply()
    process = worker(here).wait_for_shards(1)
    with here.subscriber("marked") as one, here.subscriber("marked", 0) as other:
        here.write("marked", '{"b": "yes", "n": "before"}', "{}")
        dies(process).start().wait_for_shards(1)
        for subscriber in (one, other):
            released = subscriber.receive(20)
            assert released is not None
            assert released.is_barrier
        behind = one.receive(20)
        assert behind is not None
        assert behind.value == b"{}"


@pytest.mark.feature("C55", "X3", "Q8")
@pytest.mark.parametrize("how", cases(["acknowledge"], long=["expire"]))
def test_who_waits_for_an_answer_that_a_crash_swallowed_gets_it_from_the_next_owner(deploy: Deploy, how: str) -> None:
    """The settlement was journaled, and took effect; asked again, that it is settled already is success."""
    here = deploy({"asked": {"lease_period": "60s"}}, session_timeout="2s").apply()
    process = worker(here, how).wait_for_shards(1)
    with here.subscriber("asked", timeout_s=60) as subscriber, ThreadPoolExecutor(1) as threads:
        here.write("asked", "x")
        delivery = subscriber.receive(20)
        assert delivery is not None
        settled = threads.submit(subscriber.settle, how, [delivery], wait=True)
        dies(process).start().wait_for_shards(1)
        (result,) = settled.result()
        assert (result.result, result.settled) == ("settled", True)
    emitted = [event.event for event in here.events("asked") if event.messages]
    assert emitted == [{"acknowledge": "acknowledged", "expire": "dead_lettered"}[how]], "it happened once"


@pytest.mark.feature("C55", "C83", "Q8")
def test_who_purges_is_answered_by_the_next_owner_and_nothing_is_purged_twice(deploy: Deploy) -> None:
    """It cannot be asked for again: what was published since would go as well."""
    here = deploy({"emptied": {}}, session_timeout="2s").apply()
    process = worker(here, "purge").wait_for_shards(1)
    here.write("emptied", '{"n": 1}', '{"n": 2}', '{"n": 3}')
    with here.queue("emptied") as queue, ThreadPoolExecutor(1) as threads:
        purged = threads.submit(queue.purge, filter="/n < 3")
        dies(process)
        here.write("emptied", '{"n": 1}')
        process.start().wait_for_shards(1)
        assert purged.result()["removed"] == 2
    until(lambda: here.depth("emptied")["depth"] == 2, "the third one, and the one that came later")


def next_millisecond() -> None:
    now_ms = broker_now_ms()
    until(lambda: broker_now_ms() > now_ms, "the next millisecond")


@pytest.mark.feature("C1", "C37", "Q8")
@pytest.mark.parametrize("merged", [False, True])
def test_a_purge_takes_nothing_that_arrived_behind_it_though_no_worker_ran(deploy: Deploy, merged: bool) -> None:
    """Nor does a settlement by filter: a worker that starts later finds both in the log, and a marker at its end."""
    here = deploy({"emptied": {"ordering": "total"} if merged else {}}, session_timeout="2s").apply()
    process = here.worker().wait_for_shards(1)
    here.write("emptied", '{"n": 0}')
    until(lambda: here.depth("emptied")["depth"] == 1, "it has arrived")
    process.kill()
    commands = names.commands(here.name("emptied"))
    writer = here.connection.producer(**{"transactional.id": here.name("tells")})
    writer.init_transactions(20)

    def tell(command: str, **fields: str) -> None:
        """Send a command in a millisecond of its own: within one, nobody can say what came first."""
        next_millisecond()
        writer.begin_transaction()
        writer.produce(commands, orjson.dumps({"command": command, "id": command, **fields}), partition=0)
        writer.commit_transaction(20)
        next_millisecond()

    tell("expire", filter="/n >= 0")
    here.write("emptied", '{"n": 1}')
    tell("purge")
    here.write("emptied", '{"n": 2}', '{"n": 3}')
    process.start().wait_for_shards(1)
    until(lambda: any(event.reasons for event in here.events("emptied")), "it waits for no further command")
    with here.queue("emptied") as queue:
        queue.expire(filter="/n = 99")  # carried out behind the others
        until(lambda: len(queue.peek()) >= 2, "what came behind the purge is there")
        assert {f"{here.name('emptied')}:0:{offset}" for offset in (2, 3)} <= {one.bookmark for one in queue.peek()}
    fates = {str(one): event.reasons for event in here.events("emptied") for one in event.messages if event.reasons}
    assert fates.pop(f"{here.name('emptied')}:0:0") == ("forced_expire",)
    assert set(fates.values()) <= {("purged",)}, "none was expired that came behind that"


@pytest.mark.feature("C5", "C55", "D3")
def test_a_consumer_that_was_lost_is_lost_to_the_next_owner_as_well(deploy: Deploy) -> None:
    """Its message has a letter, so it cannot be acknowledged, although the letter was all that the worker wrote."""
    here = deploy({"lost": {"max_deliveries": 1, "lease_period": "60s"}}, session_timeout="2s").apply()
    process = worker(here).wait_for_shards(1)
    sender = here.connection.producer()

    def tell(command: str, **fields: object) -> None:
        asked = orjson.dumps({"command": command, "id": command, "subscription": "s", "client": "c", **fields})
        sender.produce(names.commands(here.name("lost")), asked, partition=0)
        sender.flush(20)

    tell("subscribe", max_backlog=1, heartbeat_timeout_ms=4_000)
    here.write("lost", "lettered")
    dies(process).start().wait_for_shards(1)
    tell("acknowledge", bookmarks=[f"{here.name('lost')}:0:0"])
    until(lambda: here.depth("lost")["depth"] == 0, "the message has left")
    emitted = [event for event in here.events("lost") if event.event in TERMINAL]
    assert {event.event for event in emitted} == {"dead_lettered"}
    assert {event.reasons for event in emitted} == {("max_deliveries",)}


@pytest.mark.feature("C55", "Q9")
def test_a_delivery_that_nobody_saw_and_whose_lease_is_over_does_not_count(deploy: Deploy) -> None:
    here = deploy({"short": {"max_deliveries": 1, "lease_period": "3s"}}, session_timeout="2s").apply()
    process = worker(here).wait_for_shards(1)
    with here.subscriber("short", 4) as subscriber:
        here.write("short", "before")
        dies(process)
        time.sleep(4)
        process.start().wait_for_shards(1)
        got = subscriber.receive(20)
        assert got is not None
        assert got.delivery_count == 1
        got.acknowledge()
    until(lambda: here.depth("short")["depth"] == 0, "it is settled")
    assert not {"dead_lettered", "expired"} & {event.event for event in here.events("short")}


@pytest.mark.feature("C38", "C78", "Q6")
@pytest.mark.parametrize(
    ("semantics", "instant"),
    cases(
        [("at-least-once", "onward"), ("at-most-once", "unwritten")],
        long=[("at-most-once", "onward"), ("at-least-once", "unwritten")],
    ),
)
def test_what_is_forwarded_while_the_worker_dies_is_in_the_target_once(
    deploy: Deploy, instant: str, semantics: str
) -> None:
    """The new owner looks into the target: nothing is lost, and nothing comes twice, whatever reads the target."""
    first = {"semantics": semantics, "forward_to": "next{}"}
    here = deploy({"first": first, "next": {}}, session_timeout="2s").apply()
    process = worker(here).wait_for_shards(2)
    here.write("first", instant)
    dies(process).start().wait_for_shards(2)
    here.write("first", "behind")
    with here.subscriber("next", 5) as subscriber:
        got = [subscriber.receive(20), subscriber.receive(20)]
        assert [one.value for one in got if one] == [instant.encode(), b"behind"]
    until(lambda: here.depth("first")["depth"] == 0, "both have left the queue")
    assert [copy.value() for copy in here.tail(here.name("next")).wait(2)] == [instant.encode(), b"behind"]
    left = [str(one) for event in here.events("first") if event.event == "acknowledged" for one in event.messages]
    assert left == [f"{here.name('first')}:0:0", f"{here.name('first')}:0:1"], "each once"


@pytest.mark.feature("C38", "D3", "L11")
@pytest.mark.parametrize(("instant", "copies"), [("onward", 1), ("unwritten", 0)])
def test_what_expires_while_its_forwarding_is_in_doubt_has_one_fate(deploy: Deploy, instant: str, copies: int) -> None:
    """It has left if the target has it, and expires there. Otherwise it expires here, and the target never gets it."""
    expires = {"expiration": "enabled"}
    here = deploy({"first": {**expires, "forward_to": "next{}"}, "next": expires}, session_timeout="2s").apply()
    process = worker(here).wait_for_shards(2)
    (written,) = here.write("first", instant, headers=[("lapse-ttl-ms", b"2500")])
    dies(process)
    until(lambda: broker_now_ms() > written.timestamp_ms + 2_500, "its lifetime is over")
    process.start().wait_for_shards(2)
    here.write("first", "behind")
    found = here.tail(here.name("next")).wait(copies + 1)
    assert [copy.value() for copy in found] == [instant.encode()] * copies + [b"behind"]
    until(lambda: here.depth("first")["depth"] == 0, "both have left the queue")
    letters = [texts(one)["lapse-reasons"] for one in here.letters("first", 1 - copies)]
    assert letters == ["time_limit"] * (1 - copies)
    fates = [one.event for one in here.events("first") if one.event in ("acknowledged", "dead_lettered")]
    assert fates == ["acknowledged" if copies else "dead_lettered", "acknowledged"]


@pytest.mark.feature("C55", "L10", "L11", "C53")
@pytest.mark.parametrize("semantics", cases(["at-least-once"], long=["at-most-once"]))
def test_what_expires_before_its_journaled_delivery_is_written_is_never_delivered(
    deploy: Deploy, semantics: str
) -> None:
    """Its lifetime ends while nothing runs; nobody saw the delivery, so it does not count."""
    settings = {"expiration": "enabled", "semantics": semantics}
    here = deploy({"brief": settings}, session_timeout="2s").apply()
    process = worker(here).wait_for_shards(1)
    with here.subscriber("brief", 4) as subscriber:
        (written,) = here.write("brief", "before", headers=[("lapse-ttl-ms", b"2500")])
        dies(process)
        until(lambda: broker_now_ms() > written.timestamp_ms + 2_500, "its lifetime is over")
        process.start().wait_for_shards(1)
        here.write("brief", "next")
        following = subscriber.receive(20)
        assert following is not None
        assert following.value == b"next"
        following.acknowledge()
    (letter,) = here.letters("brief", 1)
    facts = texts(letter)
    assert (facts["lapse-reasons"], facts["__dlq.errors.delivery.count"]) == ("time_limit", "0")


@pytest.mark.feature("C55", "Q6", "C79")
@pytest.mark.parametrize(
    ("instant", "payload"),
    cases(
        [("before", "packed"), ("half", "packed"), ("after", "packed"), ("half", "inline")],
        [("before", "inline"), ("after", "inline")],
    ),
)
def test_at_most_once_what_was_only_journaled_arrives_and_what_was_written_never_again(
    deploy: Deploy, instant: str, payload: Literal["packed", "inline"]
) -> None:
    """A crash delivers nothing twice, and nothing is lost but for what a subscriber loses."""
    here = deploy({"gone": {"semantics": "at-most-once"}}, session_timeout="2s").apply()
    process = worker(here).wait_for_shards(1)
    with here.subscriber("gone", 10, payload=payload) as subscriber:
        here.write("gone", "a", instant, "b")
        dies(process)
        process.start().wait_for_shards(1)
        got = [one.value or b"" for one in (subscriber.receive(20) for _ in range(3)) if one]
        assert sorted(got) == sorted([b"a", instant.encode(), b"b"])
        process.kill()
        process.start().wait_for_shards(1)  # what the new owner has written is written
        assert subscriber.receive(3) is None
        assert here.depth("gone")["depth"] == 0
