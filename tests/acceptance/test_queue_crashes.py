"""Everything breaks at once, and the account has to balance: workers, the broker, and a changelog being compacted."""

import random
from collections.abc import Iterator

import pytest

from lapse.embedded import EmbeddedKafka
from support.flow.load import Load, account
from support.kafka.compaction import BROKER, compact_eagerly
from support.kafka.log import header, until
from support.kafka.prepared import PreparedKafka
from support.processes.deployment import Deploy
from support.suite.at_length import AT_LENGTH, cases

FLOWING = {"expiration": "enabled", "lease_period": "2s", "partitions": 2}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    """A broker that is killed at will, and compacts as eagerly as a broker can."""
    with PreparedKafka(properties=BROKER) as own:
        yield own


@pytest.fixture(scope="module")
def kafka(broker: EmbeddedKafka) -> str:
    """The broker of this module alone."""
    return broker.bootstrap_servers


@pytest.mark.feature("Q16", "Q5", "D3", "L10", "L11", "C1", "C13", "X3")
def test_a_killed_broker_comes_back_and_nothing_was_lost(broker: EmbeddedKafka, deploy: Deploy) -> None:
    """SIGKILL to the broker under load, back on the same port and data: publishers, subscribers and worker go on.

    The worker may crash on a failed write; its supervisor starts it again.
    """
    here = deploy({"flow": FLOWING}, store="rocksdb").apply()
    worker = here.worker(supervised=True).wait_for_shards(2)
    with Load(here, "flow", 2, rate=150) as load:
        for _ in range(2 if AT_LENGTH else 1):
            load.flow(200)
            broker.kill()
            broker.start()
        load.flow(200, 60)
        load.drain(90)
    account(here, "flow", set(load.written)).assert_balanced()
    assert worker.running


@pytest.mark.slow
@pytest.mark.feature("Q16", "Q5", "D3", "L10", "C13")
@pytest.mark.parametrize("store", cases(["rocksdb"], ["memory"]))  # in the other tests here it is memory
def test_kills_at_random_while_the_changelog_is_compacted(deploy: Deploy, store: str) -> None:
    """Two supervised workers, one or the other killed four times, over a journal whose tail is compacted all along."""
    chance = random.Random(7)
    here = deploy({"flow": FLOWING}, store=store, session_timeout="2s").apply()
    compact_eagerly(here.servers, f"{here.app_id}-{here.name('flow')}-changelog")
    workers = [here.worker(), here.worker()]
    with Load(here, "flow", 2, rate=600) as load:
        load.flow(300, 60)
        for _ in range(4):
            victim = chance.choice(workers)
            victim.kill()
            victim.start()
            load.flow(chance.randrange(100, 500), 60)
        load.drain(90)
    account(here, "flow", set(load.written)).assert_balanced()


@pytest.mark.feature("D3", "L11", "L14", "Q10")
def test_every_message_that_expires_is_a_dead_letter_whatever_is_killed(deploy: Deploy) -> None:
    """Nobody consumes; lifetimes of a second; the worker is killed while they end: no letter is missing.

    The mode of a RabbitMQ test: publish with a lifetime, read nothing but the dead letters. A crash's duplicates bear
    the same `lapse-id`.
    """
    here = deploy({"dies": {"expiration": "1s", "partitions": 2}}, session_timeout="2s").apply()
    worker = here.worker().wait_for_shards(2)
    written = []
    for burst in range(4):
        for partition in (0, 1):
            values = [f"{burst}-{partition}-{number}" for number in range(1_000)]
            written += [here.bookmark("dies", one).encode() for one in here.write("dies", *values, partition=partition)]
        worker.kill()
        worker.start()
    letters = here.tail(f"dlq.{here.name('dies')}")
    name = here.name("dies")
    expected = {name.encode() + b"/" + place + b"/0" for place in written}
    seen: set[bytes | None] = set()

    def complete() -> bool:
        seen.update(header(letter, "lapse-id") for letter in letters.poll())
        letters.records.clear()
        return seen >= expected

    until(complete, f"{len(expected)} letters", 60)
    assert seen == expected
    assert here.depth("dies")["depth"] == 0
