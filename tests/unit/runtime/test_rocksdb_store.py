"""The copy on local disk: it holds what was written, and is not trusted when it is too old (S9, Q16)."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from lapse.runtime.store import RocksDBStore


class Store(RocksDBStore):
    def __init__(self, directory: Path) -> None:
        self.app = SimpleNamespace(conf=SimpleNamespace(tabledir=directory))
        self.table_name = "prices"
        self._databases = {}


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
    store._write(0, [(b"rc", b"3")], 1, 1)
    store._close(0)
    assert store._open(0).latest == {b"rc": b"3"}
    store._close(0)
