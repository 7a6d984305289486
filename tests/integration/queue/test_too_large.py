"""Messages that no topic of lapse takes, as a producer's compression let them in: others pass, no worker stops."""

import json
import os
import time
from itertools import islice

import pytest
from benchmarks.instruments.turns import longest

from lapse.protocol import topic
from support.kafka.created_topic import take_at_most
from support.kafka.log import until
from support.processes.deployment import Deploy
from support.processes.noted_turns import permitted_ms

HUGE = b" " * 9_000_000
LARGE, LARGE_BYTES = 60, 2_000_000
SQUEEZED = {"compression.type": "zstd", "message.max.bytes": 100_000_000}


@pytest.mark.feature("X7", "C27", "Q9", "S1")
def test_a_message_that_is_too_large_to_be_delivered_or_lettered_stops_nobody(deploy: Deploy) -> None:
    deployment = deploy({})
    deployment.configure({"orders": {"max_deliveries": 1, "lease_period": "3s"}}, {"prices": {}})
    worker = deployment.apply().worker().wait_for_shards(2)
    deployment.write("orders", HUGE, **SQUEEZED)
    deployment.write("orders", b"next")
    deployment.write("prices", HUGE, key=b"k", **SQUEEZED)
    deployment.write("prices", b"1", key=b"k")
    with deployment.subscriber("orders", 2) as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        assert delivery.value == b"next"
        delivery.acknowledge()
        until(lambda: deployment.depth("orders")["dying"] == 1, "the message at its end")
    assert deployment.depth("orders")["depth"] == 0
    (record,) = deployment.tail(f"lapse.sow.{deployment.name('prices')}").wait(1)
    assert record.value() == b"1"
    (emitted,) = deployment.awaited("prices", "dying")
    assert emitted.reasons == ("undecodable",)
    assert "9,000,001 bytes" in emitted.detail
    assert worker.running


@pytest.mark.feature("X7", "Q21", "C38")
@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
def test_a_message_that_is_too_large_for_the_target_is_a_letter_and_others_are_forwarded(
    deploy: Deploy, semantics: str
) -> None:
    deployment = deploy({"source": {"forward_to": "target{}", "semantics": semantics}, "well": {}}).apply()
    take_at_most(deployment.servers, deployment.name("target"), 20_000)
    large = os.urandom(50_000)  # no compression makes it smaller
    worker = deployment.worker().wait_for_shards(2)
    deployment.write("source", b"before", large, b"after")
    tail = deployment.tail(deployment.name("target"))
    assert [one.value() for one in tail.wait(2, 20)] == [b"before", b"after"]
    (letter,) = deployment.letters("source", 1)
    stated = {name: value.decode() for name, value in letter.headers() or ()}
    assert letter.value() == large
    assert stated["lapse-reasons"] == "undecodable"
    assert stated["__dlq.errors.message"].startswith("cannot be forwarded: ")
    assert "raise its max.message.bytes" in stated["__dlq.errors.message"]
    deployment.write("source", b"later")
    assert [one.value() for one in tail.wait(3, 20)] == [b"before", b"after", b"later"]
    until(lambda: deployment.depth("source")["depth"] == 0, "all have left")
    assert worker.running


@pytest.mark.feature("Q12", "Q21", "D3", "C38")
def test_a_barrier_that_is_too_large_for_the_target_is_a_letter_and_subscribers_get_it(deploy: Deploy) -> None:
    ends = {"forward_to": "target{}", "ordering": "total", "barrier": "/type = 'EOD'"}
    deployment = deploy({"source": ends, "well": {}}).apply()
    take_at_most(deployment.servers, deployment.name("target"), 20_000)
    barrier = json.dumps({"type": "EOD", "more": os.urandom(40_000).hex()})  # no compression makes it small enough
    deployment.worker().wait_for_shards(2)
    with deployment.subscriber("source", 0, timeout_s=20) as subscriber:
        deployment.write("source", b'"before"', barrier, b'"after"')
        tail = deployment.tail(deployment.name("target"))
        assert [one.value() for one in tail.wait(2, 20)] == [b'"before"', b'"after"']
        delivery = subscriber.receive(20)
        assert delivery is not None
        assert (delivery.is_barrier, delivery.value) == (True, barrier.encode())
        (letter,) = deployment.letters("source", 1)
        assert letter.value() == barrier.encode()
        why = dict(letter.headers() or ())["__dlq.errors.message"].decode()
        assert why.startswith("cannot be forwarded: ")
        assert "; the barrier was released to " in why
    assert len(deployment.awaited("source", "dead_lettered")) == 1
    assert "barrier_released" not in {one.event for one in deployment.events("source")}
    assert deployment.depth("source")["depth"] == 0


@pytest.mark.feature("C52", "D3", "X7", "Q16")
def test_what_kafka_refuses_to_a_shard_stops_this_shard_only_until_it_is_mended(deploy: Deploy) -> None:
    """Events, journal and ticks in turn. Its worker does not end, and nothing of the shard is lost.

    Another queue over the same topic gets everything meanwhile.
    """
    orders = {"expiration": "enabled", "lease_period": "2s"}
    deployment = deploy({"orders": orders, "other": {"topics": ["orders{}"]}}).apply()
    name = deployment.name("orders")
    worker = deployment.worker().wait_for_shards(2)
    own = (topic.events(name), topic.changelog(deployment.app_id, name), topic.commands(name))
    for number, refusing in enumerate(own, 1):
        take_at_most(deployment.servers, refusing, 1)
        deployment.write("orders", b"early", headers=[("lapse-ttl-ms", b"50")])
        deployment.write("orders", *(b"%d" % value for value in range(5)))
        refused = f"{name}, partition 0: Kafka refuses what it writes"
        until(lambda refused=refused, number=number: worker.text.count(refused) >= number, "it is given up")
        with deployment.subscriber("other", 20, timeout_s=20) as subscriber:
            passes = [one for _ in range(6) if (one := subscriber.receive(20)) is not None]
            assert [one.value for one in passes] == [b"early", *(b"%d" % value for value in range(5))]
            subscriber.settle("acknowledge", passes, wait=True)
        take_at_most(deployment.servers, refusing, 1 << 20)
        with deployment.subscriber("orders", 20, timeout_s=60) as subscriber:
            got = [one for _ in range(5) if (one := subscriber.receive(30)) is not None]
            assert sorted(one.value for one in got) == [b"%d" % value for value in range(5)]
            subscriber.settle("acknowledge", got, wait=True)
        until(lambda: deployment.depth("orders")["depth"] == 0, "all are acknowledged")
        assert worker.running
    letters = deployment.tail(topic.dead_letters(name)).wait(len(own))
    assert {one.value() for one in letters} == {b"early"}
    assert len({dict(one.headers() or ())["lapse-id"] for one in letters}) == len(own), "each once, as after crashes"
    assert f"{name}, partition 0: is taken over after all" in worker.text


@pytest.mark.feature("C60", "D4")
def test_many_large_messages_that_are_handed_out_together_leave_others_their_turns(deploy: Deploy) -> None:
    """Each is copied twice for its delivery. All of them were in one turn of the loop."""
    here = deploy({"large": {}, "other": {}}).apply()
    turns_file, data = here.directory / "turns", str(here.directory / "data")
    noted = ["-m", "benchmarks.instruments.turns", str(turns_file), "worker", "--config", str(here.config)]
    here.run([*noted, "--data-dir", data, "--no-supervise"], fresh=True).wait_for_shards(2)
    values = [bytes([number]) * LARGE_BYTES for number in range(LARGE)]
    here.write("large", *values, **SQUEEZED)
    until(lambda: here.depth("large")["available"] == LARGE, "all of them", 40)
    since_s = time.time()
    with here.subscriber("large", LARGE) as subscriber:
        got = [delivery.value for delivery in islice(subscriber.messages(timeout=30), LARGE)]
    assert got == values
    longest_ms, _ = longest(turns_file, since_s, time.time())
    assert 0 < longest_ms < permitted_ms(), "of CPU, whatever else the processor does"
