"""Keeps a SOW topic busy, with an oracle that computes every deadline from the broker's timestamps of the updates.

All updates of a key are on one partition, so the order of the log and the timestamps decide. The record of a key at an
instant follows from its updates alone, whatever was killed meanwhile.
"""

import json
import random
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from confluent_kafka import Message, Producer

from lapse_client import LapseError, SowClient
from lapse_client.sow.record import SowRecord
from support.kafka.log import Tail, texts
from support.processes.deployment import Deployment

NEVER = 1 << 62


class Update(NamedTuple):
    """The record of a key after an update; `document` None = the record is deleted."""

    offset: int
    stamp_ms: int
    deadline_ms: int
    document: Mapping[str, int] | None

    def lives_at(self, now_ms: int) -> bool:
        """Return whether the key has a record at an instant if no later update changes it."""
        return self.document is not None and self.deadline_ms > now_ms


def now_ms() -> int:
    """Return the broker's time, ms since the epoch. The broker runs on this machine."""
    return time.time_ns() // 1_000_000


class SowLoad:
    """Publishes, merges and deletes at random, and checks the results of queries; a context manager."""

    def __init__(self, here: Deployment, stem: str, *, keys: int, rate: int, longest_ms: int, seed: int) -> None:
        self.here = here
        self.name = here.name(stem)
        self.written = self.expired = self.judged = self.looked = 0
        self._longest_ms = longest_ms
        self._rate = rate
        self._keys = [b"k%d" % number for number in range(keys)]
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._last: dict[bytes, Update] = {}
        self._by_place: dict[tuple[int, int], tuple[bytes, Update]] = {}
        self._under_way: dict[bytes, int] = dict.fromkeys(self._keys, 0)
        self._stopping = threading.Event()
        self._faults: list[object] = []
        self._producer = Producer({"bootstrap.servers": here.servers, "linger.ms": 2, "acks": "all"})
        self._thread = threading.Thread(target=self._write, name="sow load")

    def __enter__(self) -> "SowLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop publishing, and check that Kafka has all updates."""
        self._stopping.set()
        self._thread.join()
        assert not self._faults, self._faults
        assert not any(self._under_way.values())

    def _write(self) -> None:
        try:
            while not self._stopping.wait(0.01):
                for _ in range(max(1, self._rate // 100)):
                    self._write_next()
                self._producer.poll(0)
            assert self._producer.flush(60) == 0
        except BaseException as error:  # noqa: BLE001  # `stop` reports it
            self._faults.append(error)

    def _write_next(self) -> None:
        chance, number = self._chance, self.written
        key = chance.choice(self._keys)
        headers: dict[str, bytes] = {}
        lifetime_ms: int | None = None
        document: dict[str, int] | None = {"n": number}
        match chance.random():
            case part if part < 0.1:
                document = None
            case part if part < 0.2:
                pass  # never expires
            case part if part < 0.25:
                headers["lapse-expires-at-ms"] = b"1000"  # already expired, so it removes the existing record
            case _:
                lifetime_ms = int(self._longest_ms * chance.random() ** 3) + 1
                headers["lapse-ttl-ms"] = b"%d" % lifetime_ms
        delta = document is not None and chance.random() < 0.2
        if delta:
            headers["lapse-command"] = b"delta"
            document = {"d": number}

        def safe(error: object, message: Message) -> None:
            if error is not None:
                self._faults.append(error)
                return
            stamp_ms = message.timestamp()[1]
            with self._lock:
                before = self._last.get(key)
                merged = document
                if delta and before is not None and before.lives_at(stamp_ms):
                    merged = {**(before.document or {}), **(document or {})}
                deadline_ms = NEVER if lifetime_ms is None else stamp_ms + lifetime_ms
                if "lapse-expires-at-ms" in headers:
                    deadline_ms = 1000
                update = Update(message.offset() or 0, stamp_ms, deadline_ms, merged)
                self.expired += before is not None and before.document is not None and before.deadline_ms <= stamp_ms
                self._last[key] = update
                self._by_place[message.partition() or 0, update.offset] = key, update
                self._under_way[key] -= 1

        with self._lock:
            self._under_way[key] += 1
        value = None if document is None else json.dumps(document).encode()
        self._producer.produce(self.name, value, key, headers=list(headers.items()), on_delivery=safe)
        self.written += 1

    def check_query(self, client: SowClient) -> bool:
        """Query all records, and check them. Return False if no worker answered, as after a kill."""
        asked_ms = now_ms()
        with self._lock:
            known = dict(self._last)
        try:
            shown = list(client.query())
        except LapseError:
            return False
        answered_ms = now_ms()
        for record in shown:
            self._check_record(record, asked_ms, known)
        places = {record.key: record.bookmark for record in shown}
        assert len(places) == len(shown), "a key is shown twice"
        with self._lock:
            unchanged = {
                key: update
                for key, update in known.items()
                if self._last[key] is update and not self._under_way[key] and update.lives_at(answered_ms)
            }
        missing = {key: update for key, update in unchanged.items() if key not in places}
        assert not missing, f"not shown, though they live: {missing}"
        self.judged += len(shown)
        self.looked += 1
        return True

    def _check_record(self, record: SowRecord, asked_ms: int, known: Mapping[bytes, Update]) -> None:
        assert record.bookmark is not None
        place = record.bookmark.partition, record.bookmark.offset
        deadline = time.monotonic() + 10
        while place not in self._by_place:  # the worker may read an update before its publisher gets the report
            assert time.monotonic() < deadline, f"{record} is of no update"
            time.sleep(0.01)
        key, update = self._by_place[place]
        assert record.key == key
        assert json.loads(record.value or b"null") == update.document
        assert (record.expires_at_ms or NEVER) == update.deadline_ms
        assert update.deadline_ms > asked_ms, f"{record} had expired {asked_ms - update.deadline_ms} ms before"
        before = known.get(key)
        assert before is None or before.offset <= update.offset, f"{record} was replaced by {before}"

    def remaining(self) -> dict[bytes, Mapping[str, int]]:
        """Return the current records. Call it after `stop`."""
        at_ms = now_ms()
        return {key: update.document or {} for key, update in self._last.items() if update.lives_at(at_ms)}

    def compacted(self) -> dict[bytes, Mapping[str, int]]:
        """Return the current records in the compacted topic, read by a plain Kafka consumer."""
        tail = Tail(self.here.servers, f"lapse.sow.{self.name}")
        try:
            latest = {message.key() or b"": message for message in tail.drain()}
        finally:
            tail.close()
        at_ms = now_ms()
        return {
            key: json.loads(message.value() or b"")
            for key, message in latest.items()
            if message.value() is not None and int(texts(message).get("lapse-expires-at-ms", NEVER)) > at_ms
        }
