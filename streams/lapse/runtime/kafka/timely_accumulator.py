"""Batches with deliveries under a lease, which are not sent to Kafka when it is too late for them (L10).

What was never sent is dropped. What was sent without an answer may be in Kafka already. So the batch is sent again with
the same numbers, and empty records stand for the deliveries. Kafka keeps only the first of the two that reaches it.
The same is done with a batch that got its numbers and then waited for a connection.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any, Final

from aiokafka.producer.message_accumulator import MessageAccumulator, MessageBatch
from aiokafka.structs import TopicPartition

from lapse.protocol import header
from lapse.runtime.kafka.output import MAX_BATCH_BYTES
from lapse.runtime.kafka.record_batch import Leased, PackedBatch, RecordBatch, Row

_PRODUCER: Final = struct.Struct(">qhi")
"""The producer's id and epoch, and the sequence number of the first record."""

_PRODUCER_AT: Final = 43
"""Where it begins in a RecordBatch."""

_VOID: Final[Row] = (None, None, [(header.KIND, b"void")])
"""Stands for a delivery that is not sent. Clients drop records of a kind that they do not know."""


def without_leased(batch: RecordBatch | PackedBatch, leased: Leased, is_numbered: bool) -> RecordBatch:
    """Return a batch without its deliveries under a lease. If it has its numbers, empty records take their places.

    Args:
        batch: the batch.
        leased: what is leased in it.
        is_numbered: whether the batch has its sequence numbers. If so, Kafka may have it already.
    """
    rows = [None] * batch.record_count() if leased.rows is None else leased.rows
    kept = [_VOID if row is None else row for row in rows if is_numbered or row is not None]
    left = RecordBatch(batch.stamp_ms)
    left.add_rows(kept, 0, len(kept), MAX_BATCH_BYTES)
    if is_numbered:
        left._set_producer_state(*_PRODUCER.unpack_from(batch._build(), _PRODUCER_AT))
    return left


def leave_out_late(batch: Any, is_numbered: bool) -> None:
    """Take the deliveries out of an aiokafka batch if it is too late for them."""
    leased: Leased | None = getattr(batch._builder, "leased", None)
    if leased is not None and leased.is_late(time.monotonic()):
        batch._builder = without_leased(batch._builder, leased, is_numbered)


def note_sent(batch: Any) -> None:
    """Note that an aiokafka batch is being sent, so that Kafka may have its deliveries."""
    leased: Leased | None = getattr(batch._builder, "leased", None)
    if leased is not None:
        leased.note_sent()


class TimelyAccumulator(MessageAccumulator):
    """aiokafka's unsent batches. It looks at leases when a batch is about to be sent, however long it has waited."""

    _batches: dict[TopicPartition, Any]
    on_batch: Callable[[], None] | None = None
    """Called when a batch was added."""

    def _append_batch(self, builder: Any, tp: TopicPartition) -> MessageBatch:
        batch = super()._append_batch(builder, tp)
        if self.on_batch is not None:
            self.on_batch()
        return batch

    def _pop_batch(self, tp: TopicPartition) -> MessageBatch:
        batch = self._batches[tp][0]
        leave_out_late(batch, is_numbered=batch.retry_count > 0)
        return super()._pop_batch(tp)
