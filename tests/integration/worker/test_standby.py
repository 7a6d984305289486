"""A worker that stands by takes shards over with what it has read already (Q16, L11)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.core.sow.arrival.origin import ORIGIN, ORIGIN_TIMESTAMP_MS
from lapse_client import Connection, Publisher, SowClient
from support.flow.sow_state import count, restored
from support.kafka.log import until
from support.processes.deployment import broker_now_ms
from support.processes.worker import Worker
from support.suite.at_length import cases

RECORDS = 5_000


def origin(stamp_ms: int) -> dict[str, bytes]:
    """The headers of an update that was published at another deployment."""
    return {ORIGIN: b"there", ORIGIN_TIMESTAMP_MS: b"%d" % stamp_ms}


def values(client: SowClient, key: str) -> list[bytes | None]:
    return [record.value for record in client.query(keys=[key])]


@pytest.mark.feature("Q16", "S9", "L11", "S10")
@pytest.mark.parametrize("store", cases(["rocksdb"], ["memory"]))
def test_a_shard_is_taken_over_from_where_the_standby_was(
    kafka: str, unique: Callable[[str], str], tmp_path: Path, store: str
) -> None:
    name, app = unique("prices"), unique("app")
    entities = f'standby = true\n[sow."{name}"]\npartitions = 2\nexpiration = "enabled"\n'
    workers = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        workers.append(Worker(tmp_path / str(number), kafka, app, entities, store))
    connection = Connection(kafka)
    first, second = workers
    with first, SowClient(name, connection=connection) as client, Publisher(connection) as publisher:
        for number in range(RECORDS):
            publisher.submit(name, b'{"n": %d}' % number, key=b"k%d" % number)
        publisher.flush()
        until(lambda: count(client) == RECORDS, "all records")
        with second:
            until(lambda: "standing by" in second.text(), "the standby")
            publisher.publish(name, b"{}", key=b"late")  # read by one of them and followed by the other
            publisher.publish(name, None, key=b"k0")
            stamp_ms = broker_now_ms() + 3_600_000  # their clock is ahead, so that only the origin's instant decides
            publisher.publish(name, b'{"by": "later"}', key=b"k1", headers=origin(stamp_ms))
            until(lambda: count(client) == RECORDS, "the last updates")
            until(lambda: values(client, "k1") == [b'{"by": "later"}'], "the replicated update")
            first.kill()
            until(lambda: second.text().count("restored") == 2, "the take-over", 30)
            keys, begun_offset, end_offset = restored(second)[-1]
            assert keys > RECORDS // 3
            assert 0 < begun_offset < end_offset, "only what the standby had not read yet"
            assert end_offset - begun_offset < RECORDS // 3
            until(lambda: count(client) == RECORDS, "all records, at the other worker")
            assert count(client, "k0", "late") == 1
            publisher.publish(name, b'{"by": "earlier"}', key=b"k1", headers=origin(stamp_ms - 1))
            publisher.publish(name, b'{"by": "earlier"}', key=b"k2", headers=origin(stamp_ms - 1))
            until(lambda: values(client, "k2") == [b'{"by": "earlier"}'], "what was replicated after it")
            assert values(client, "k1") == [b'{"by": "later"}'], "an older one loses at the other worker, too"


@pytest.mark.feature("S9", "Q16", "L11")
@pytest.mark.parametrize("store", cases(["rocksdb"], ["memory"]))
def test_a_worker_that_is_started_again_may_begin_with_what_it_had(
    kafka: str, unique: Callable[[str], str], tmp_path: Path, store: str
) -> None:
    name, app = unique("prices"), unique("app")
    worker = Worker(tmp_path, kafka, app, f'[sow."{name}"]\npartitions = 2\nexpiration = "enabled"\n', store)
    connection = Connection(kafka)
    with worker, SowClient(name, connection=connection) as client, Publisher(connection) as publisher:
        for number in range(100):
            publisher.submit(name, b'{"n": %d}' % number, key=b"k%d" % number)
        publisher.flush()
        until(lambda: count(client) == 100, "all records")
        notes = [path.read_text() for path in tmp_path.rglob(f"*{name}.shards")]
        assert notes == ["[0, 1]"]
        worker.kill()
        publisher.publish(name, None, key=b"k0")
        worker.start()
        until(lambda: worker.text().count("restored") == 4, "the take-over", 60)
        assert count(client) == 99
        publisher.publish(name, b"{}", key=b"k0")
        until(lambda: count(client) == 100, "the update behind the restart")
