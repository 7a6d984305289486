"""Measures the CPU of writing and reading deliveries, packed and one by one, in one process without Kafka.

The worker's part goes from records to the bytes of a RecordBatch. The client's part goes from a record's bytes to
settlements that are ready to be sent, with key and value read. The client library's own work is not included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
from aiokafka.record.default_records import DefaultRecordBatch
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from benchmarks.comparison.contestant import Figures, alone
from lapse.core.queue.step import Delivery as Handed
from lapse.core.queue.step import Messages
from lapse.core.queue.subscriptions.subscription import Payload
from lapse.protocol import packed_delivery
from lapse.runtime.kafka.output import MAX_BATCH_BYTES
from lapse.runtime.kafka.record_batch import PackedBatch
from lapse.runtime.queue.output import QueueOutput
from lapse_client.delivery.lot import Lot, PackedLot, SingleLot
from lapse_client.delivery.prefetched import Prefetched
from lapse_client.session.shard import Shard
from lapse_client.subscriber.acknowledgments import Acknowledgments

_AT_ONCE = 2_000
_ROUNDS = 40


class Record(NamedTuple):
    """A record with the fields that a worker or a client reads."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Message:
    """A record with the interface of the client library's message."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> list[tuple[str, bytes]]:
        return list(self._record.headers)

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_LOG_APPEND_TIME, self._record.timestamp

    def set_headers(self, headers: object) -> None:
        pass


def run(value_bytes: int = 200, at_once: int = _AT_ONCE) -> Figures:
    """Write and read deliveries of `at_once` messages.

    Args:
        value_bytes: the size of each payload; the key has 8 bytes, and the lifetime is the only header.
        at_once: how many messages are delivered together.
    """
    figures: Figures = {"messages": at_once * _ROUNDS}
    for payload in ("inline", "packed"):
        figures |= _of(cast("Payload", payload), value_bytes, at_once)
    return figures


def _of(payload: Payload, value_bytes: int, at_once: int) -> Figures:
    records = [
        Record(at, 1_700_000_000_000 + at // 9, b"%08d" % at, bytes(value_bytes), (("lapse-ttl-ms", b"600000"),))
        for at in range(at_once)
    ]
    offsets = np.arange(at_once, dtype=np.int64)
    deadlines_ms = np.array([record.timestamp + 600_000 for record in records])
    messages = Messages("orders", 0, offsets, deadlines_ms, np.ones(at_once, np.uint32), None)
    handed = Handed("inky", messages, 1_800_000_000_000, payload)
    output = QueueOutput("orders", 0, 5, "dlq.orders", 1)

    def write() -> bytes:
        batch = PackedBatch()
        packed = output.deliveries(handed, records).records
        batch.add_packed(packed, 0, len(packed), MAX_BATCH_BYTES)
        return bytes(batch._build())

    written = write()
    arrived = [
        Record(0, 0, one.key, one.value, tuple((str(name), value or b"") for name, value in one.headers))
        for one in DefaultRecordBatch(written)
    ]
    shard = Shard(0, "orders", 0)
    sent: list[list[str]] = []
    waiting = Acknowledgments([shard], lambda _: 1 << 60, lambda _, ranges, count: sent.append(ranges))

    def read() -> None:
        prefetched = Prefetched(lambda: 0.0, lambda *_: None)
        prefetched.put([_lot(shard, one) for one in arrived])
        got = prefetched.take(at_once)
        for one in got:
            one.key, one.value  # noqa: B018  # read, as an application does
        waiting.add(got)
        waiting.flush_all()
        assert len(sent.pop()) == 1, "they leave as one range"

    write_us, read_us = (_cost_us(work, at_once) for work in (write, read))
    return {
        f"{payload}_write_us": write_us,
        f"{payload}_read_us": read_us,
        f"{payload}_bytes": len(written) / at_once,
    }


def _lot(shard: Shard, record: Record) -> Lot:
    fields = dict(record.headers)
    if fields["lapse-kind"] == packed_delivery.KIND:
        return PackedLot(None, shard, packed_delivery.decode(record.value or b""), fields)  # type: ignore[arg-type]
    return SingleLot(None, shard, Message(record), fields)  # type: ignore[arg-type]


def _cost_us(work: Callable[[], object], messages: int) -> float:
    """Return the CPU per message, µs, in the best of several rounds: other processes can only increase it."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.process_time_ns()
        work()
        best = min(best, time.process_time_ns() - began)
    return best / 1e3 / messages


if __name__ == "__main__":
    alone(run)
