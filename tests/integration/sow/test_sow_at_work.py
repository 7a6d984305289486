"""A SOW topic of many records on a real worker: queries, subscriptions and deletions while updates go on (S3 to S7)."""

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lapse_client import Connection, SowClient
from support.flow.sow_state import count
from support.kafka.log import Tail, header, until, write
from support.processes.worker import Worker

RECORDS = 20_000


class Publisher:
    """Writes the records, and updates that count up: of each key the number that it has."""

    def __init__(self, servers: str, topic: str) -> None:
        self.numbers = [0] * RECORDS
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": servers, "linger.ms": 2, "queue.buffering.max.messages": 2 * RECORDS}
        )

    def one(self, key: int) -> None:
        value = json.dumps({"k": key, "n": self.numbers[key], "side": "buy" if key % 4 else "sell"})
        self._producer.produce(self._topic, value, b"k%d" % key)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    @contextmanager
    def updating(self, first: int, last: int) -> Iterator[None]:
        """Update some of the keys all along."""
        over = threading.Event()

        def go_on() -> None:
            chance = random.Random(1)
            while not over.wait(0.002):
                for _ in range(5):
                    key = chance.randrange(first, last)
                    self.numbers[key] += 1
                    self.one(key)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.flush()


@pytest.fixture
def topic(kafka: str, unique: Callable[[str], str], tmp_path: Path) -> Iterator[tuple[str, Worker, Publisher]]:
    """A topic of two partitions, filled."""
    name = unique("orders")
    entity = f'[sow."{name}"]\npartitions = 2\nexpiration = "enabled"\nhash_index = ["/side", "/k"]\n'
    with Worker(tmp_path, kafka, unique("app"), entity) as worker:
        publisher = Publisher(kafka, name)
        for key in range(RECORDS):
            publisher.one(key)
        publisher.flush()
        yield name, worker, publisher


@pytest.mark.slow
@pytest.mark.feature("S6", "S7", "C45")
def test_a_subscription_sees_every_change_once_while_its_query_is_answered(
    kafka: str, topic: tuple[str, Worker, Publisher]
) -> None:
    """Numbers only count up: what is skipped is a gap, what comes twice a duplicate."""
    name, _, publisher = topic
    with SowClient(name, connection=Connection(kafka)) as client:
        until(lambda: count(client, "k0", f"k{RECORDS - 1}") == 2, "the records")
        seen: dict[int, int] = {}
        with publisher.updating(0, 1_000), client.sow_and_subscribe("/k < 10000") as updates:
            for record in updates.updates(60):
                if record.kind == "group-end":
                    break
                row = json.loads(record.value or b"")
                if record.kind == "sow":
                    assert row["k"] not in seen, "a result of what was told already"
                elif row["k"] in seen:
                    assert row["n"] == seen[row["k"]] + 1
                seen[row["k"]] = row["n"]
            assert len(seen) == 10_000
        shown = {row["k"]: row["n"] for row in map(_row, client.query("/k < 10000"))}
    assert shown == dict(enumerate(publisher.numbers[:10_000]))


def _row(record: object) -> dict[str, int]:
    row: dict[str, int] = json.loads(record.value)  # type: ignore[attr-defined]  # a SowRecord
    return row


@pytest.mark.feature("S5", "S11", "X1")
def test_pages_in_an_order_are_the_whole_in_that_order(kafka: str, topic: tuple[str, Worker, Publisher]) -> None:
    name, _, publisher = topic
    with SowClient(name, connection=Connection(kafka)) as client:
        until(lambda: count(client, "k0", f"k{RECORDS - 1}") == 2, "the records")
        with publisher.updating(10_000, RECORDS):
            for order, sign in (("/k % 7 * 100000 + /k", 1), ("/k % 7 * 100000 + /k DESC", -1)):
                pages = [
                    [
                        _row(record)["k"]
                        for record in client.query(
                            "/side = 'sell' AND /k < 200", order_by=order, skip=skip, top_n=9, batch_size=4
                        )
                    ]
                    for skip in range(0, 60, 9)
                ]
                expected = sorted(range(0, 200, 4), key=lambda key: sign * (key % 7 * 100_000 + key))
                assert list(itertools.chain(*pages)) == expected
        # By index: in a conjunction, on either side, and not where it would leave something out.
        for expression, keys in (
            ("/k = 17 AND /side = 'buy'", {17}),
            ("17 = /k AND /n = 0", {17}),
            ("/k = 17.0", {17}),
            ("/k = 17 AND /k = 18", set()),
            ("/k = 16 AND /side = 'buy'", set()),
            ("/k = 17 OR /k = 18", {17, 18}),
            ("NOT (/k != 17)", {17}),
            ("/k IN (17, 18) AND /side = 'buy'", {17, 18}),
            ("/k = '17'", set()),
        ):
            assert {_row(record)["k"] for record in client.query(expression)} == keys, expression


@pytest.mark.slow
@pytest.mark.feature("S3", "S8", "S9", "C1", "Q16")
def test_a_deletion_by_filter_is_done_whole_though_the_worker_is_killed_meanwhile(
    kafka: str, topic: tuple[str, Worker, Publisher]
) -> None:
    """It is killed when the first records have left; updates go on before, meanwhile and after."""
    name, worker, publisher = topic
    state, published = Tail(kafka, f"lapse.sow.{name}"), Tail(kafka, f"lapse.{name}.deliveries")
    with SowClient(name, connection=Connection(kafka)) as client:
        until(lambda: count(client, "k0", f"k{RECORDS - 1}") == 2, "the records")
        with publisher.updating(15_000, RECORDS):
            assert client.delete(filter="/side = 'sell' AND /k < 100") == 25
            command = b'{"command": "sow_delete", "id": "most", "filter": "/k < 15000"}'
            for partition in (0, 1):
                write(kafka, f"lapse.{name}.commands", [command], partition=partition)
            state.wait_for(lambda records: sum(one.value() is None for one in records) > 100, "the first to leave")
            worker.kill()
            worker.start()

            def answers() -> dict[int, str]:
                """What each shard says; after a crash it may say it twice."""
                some = [one for one in published.poll() if header(one, "lapse-command-id") == b"most"]
                return {one.partition() or 0: json.loads(one.value() or b"")["status"] for one in some}

            until(lambda: set(answers()) == {0, 1}, "the answer of each shard", 60)
            assert set(answers().values()) == {"ok"}
            assert count(client) == RECORDS - 15_000
        shown = {row["k"]: row["n"] for row in map(_row, client.query())}
        assert shown == {key: publisher.numbers[key] for key in range(15_000, RECORDS)}
    latest = {one.key(): one.value() for one in state.drain()}
    assert {key for key, value in latest.items() if value is not None} == {b"k%d" % key for key in shown}
    state.close()
    published.close()
