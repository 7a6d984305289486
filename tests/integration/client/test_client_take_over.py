"""What a client has asked survives the worker that was answering (X3, S5)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lapse_client import Connection, Publisher, SowClient
from support.kafka.log import until
from support.processes.worker import Worker

RECORDS = 20_000


@pytest.mark.feature("X3", "S5")
def test_a_query_that_a_crash_cuts_short_is_asked_again_and_tells_every_record_once(
    kafka: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("prices")
    worker = Worker(tmp_path, kafka, unique("app"), f'[sow."{name}"]\npartitions = 2\n')
    connection = Connection(kafka)
    with worker, SowClient(name, connection=connection) as client, Publisher(connection) as publisher:
        for number in range(RECORDS):
            publisher.submit(name, b'{"n": %d}' % number, key=b"k%d" % number)
        publisher.flush()
        until(lambda: sum(1 for _ in client.query()) == RECORDS, "all records")

        plain = client.query(batch_size=10)
        ordered = client.query(order_by="/n DESC", batch_size=10)
        keys = [next(plain).key]
        worker.kill()
        (cut,) = client._queries
        assert len(cut.arrivals) < RECORDS / 2, "it was killed while it answered"
        worker.start()
        keys.extend(record.key for record in plain)
        assert sorted(keys) == sorted(b"k%d" % number for number in range(RECORDS))

        first = next(ordered).key
        worker.kill()
        worker.start()
        assert [first, *(record.key for record in ordered)] == [b"k%d" % number for number in reversed(range(RECORDS))]
