"""The copy on local disk: it holds what was written, and is not trusted when it is too old (S9, Q16)."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from lapse.runtime.journal.rocksdb_store import CopyInUse, RocksDBStore


class Store(RocksDBStore):
    owner = SimpleNamespace(records=dict)

    def __init__(self, directory: Path) -> None:
        self.app = SimpleNamespace(conf=SimpleNamespace(tabledir=directory))
        self.table_name = "prices"
        self._databases = {}
        self._lost = self._troubled = SimpleNamespace(settle=bool)
        self._standby = None
        self._topic_id = "id"


@pytest.mark.feature("S9", "Q16")
def test_a_copy_older_than_kafka_keeps_tombstones_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    assert store._open(0).latest == {}
    store._write(0, [(b"ra", b"1"), (b"rb", b"2")], 2, 1)
    store._write(0, [(b"rb", None)], 3, 1)
    store._close(0)
    kept = store._open(0)
    assert (kept.latest, kept.next_offset, kept.epoch) == ({b"ra": b"1"}, 3, 1)
    store._close(0)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 12 * 3600 + 1)
    fresh = store._open(0)
    assert (fresh.latest, fresh.next_offset, fresh.epoch) == ({}, 0, 0)
    store._write(0, [(b"rc", b"3"), (b"\x00p", b"{}")], 1, 1)
    store._close(0)
    again = store._open(0)
    assert (again.latest, again.runtime) == ({b"rc": b"3"}, {b"\x00p": b"{}"})
    store._close(0)


@pytest.mark.feature("S9", "Q16", "C3")
def test_a_copy_from_a_clock_that_was_ahead_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its age is not known: what was removed long ago would come back from it."""
    now = time.time()
    store = Store(tmp_path)
    store._open(0)
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: now + 365 * 86_400)
        store._write(0, [(b"ra", b"1")], 1, 1)
    store._close(0)
    assert store._open(0).latest == {}
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time", lambda: now + 30)
        store._write(0, [(b"ra", b"1")], 1, 1)
    store._close(0)
    assert store._open(0).latest == {b"ra": b"1"}, "a small step"
    store._close(0)


@pytest.mark.feature("Q16")
def test_steps_that_end_while_the_worker_stops_are_kept(tmp_path: Path) -> None:
    """Faust stops a store before the shards finish their steps. A worker that got SIGTERM ended with an error there."""
    store = Store(tmp_path)
    store._open(0)

    async def stop() -> None:
        await store.on_stop()
        store._write(0, [(b"ra", b"1")], 1, 1)

    asyncio.run(stop())
    store.close_copies()
    kept = store._open(0)
    assert (kept.latest, kept.next_offset) == ({b"ra": b"1"}, 1)
    store._close(0)


@pytest.mark.feature("C42", "Q16")
def test_a_copy_of_a_changelog_that_was_deleted_and_created_again_is_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store._open(0)
    store._write(0, [(b"ra", b"1")], 1, 7)
    store._close(0)
    store._topic_id = "another"
    fresh = store._open(0)
    assert (fresh.latest, fresh.next_offset, fresh.epoch) == ({}, 0, 0)
    store._write(0, [(b"rb", b"2")], 1, 8)
    store._close(0)
    assert store._open(0).latest == {b"rb": b"2"}
    store._close(0)


@pytest.mark.feature("X7", "Q16")
def test_a_copy_that_another_worker_has_open_is_named_with_the_remedy(tmp_path: Path) -> None:
    store = Store(tmp_path)
    opens = (
        "import sys, rocksdict; db = rocksdict.Rdict(sys.argv[1], rocksdict.Options(raw_mode=True)); print(); input()"
    )
    path = store._path(0)
    with subprocess.Popen(
        [sys.executable, "-c", opens, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline(), "it is open there"
        with pytest.raises(
            CopyInUse, match=r"prices-0\.rocksdb: another process has it open\. Each worker needs a data"
        ):
            store._open(0)
        other.kill()
    assert store._open(0).latest == {}
    store._close(0)
