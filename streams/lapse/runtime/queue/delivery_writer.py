"""Writes a step's deliveries: by reference, with payloads, or forwarded to another topic (D4, Q21)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lapse.core.letter import FORWARDER
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Delivery, Step
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.queue.forwarder import Forwarder
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.records import records_of
from lapse.runtime.shard.effects import Effects
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.shard.row_parts import RowParts

_LEAST_PATIENCE_S: Final = 5.0
"""With less patience, a hiccup of the broker would end workers. So leases may be shorter than this, s."""

_MOST_PATIENCE_S: Final = 30.0

_TURN_BYTES: Final = 8 << 20
"""From so many bytes on, others have their turn between two messages: each is copied twice (C60)."""


def sendable_s(lease_ms: int) -> float:
    """Return how long after its decision a delivery may still be sent to Kafka, s: less than its lease (L10)."""
    return 0.9 * lease_ms / 1000


def patience_s(lease_ms: int) -> float:
    """Return how long Kafka may take for a delivery that was sent, s. After that the worker ends."""
    return min(max(sendable_s(lease_ms), _LEAST_PATIENCE_S), _MOST_PATIENCE_S)


class DeliveryWriter:
    """Writes the deliveries of one shard.

    Args:
        shard: the shard. Messages whose records Kafka no longer has leave it.
        payloads: the records behind its messages.
        output: turns deliveries into records.
        forwarder: gets the messages that go to another topic.
    """

    def __init__(self, shard: QueueShard, payloads: PayloadWindow, output: QueueOutput, forwarder: Forwarder) -> None:
        self._shard = shard
        self._payloads = payloads
        self._output = output
        self._forwarder = forwarder

    async def write(self, step: Step, effects: Effects, now_ms: int) -> None:
        """Put a step's deliveries into its effects. Those of the forwarder are written by the next step.

        Args:
            step: the step. Messages that are lost are removed with it.
            effects: gets the records.
            now_ms: the instant, ms since the epoch.
        """
        for delivery in step.deliveries:
            if delivery.subscription == FORWARDER:
                self._forwarder.hold(delivery)
                continue
            effects.must_arrive |= delivery.barrier
            if delivery.payload == "reference" and not delivery.barrier:
                _put(effects, delivery, self._by_reference(delivery))
            else:
                await self._with_payloads(delivery, effects, now_ms, step)

    def _by_reference(self, delivery: Delivery) -> Output | Packed:
        messages = delivery.messages
        self._payloads.note_unread_payloads(messages.topic, messages.partition, np.sort(messages.offsets))
        return self._output.reference(delivery)

    async def _with_payloads(self, delivery: Delivery, effects: Effects, now_ms: int, step: Step) -> None:
        messages = delivery.messages
        records = await records_of(messages, self._payloads)
        if isinstance(records, RowParts):
            _put(effects, delivery, self._output.deliveries(delivery, records))
            return
        for first, stop in _runs(records):
            if first:
                await asyncio.sleep(0)
            part = replace(delivery, messages=messages.cut(first, stop)) if stop - first < len(records) else delivery
            _put(effects, delivery, self._output.deliveries(part, records[first:stop]))
        lost = [offset for offset, one in zip(messages.offsets.tolist(), records, strict=True) if one is None]
        if lost:
            self._shard.remove_truncated(
                messages.topic, messages.partition, sorted(lost), now_ms, step, handed_out=True
            )


def _put(effects: Effects, delivery: Delivery, output: Output | Packed) -> None:
    """Add the record of a delivery, or of a part of it, to a step's effects."""
    if delivery.until_ms and not delivery.barrier:
        effects.leased.add(len(effects.after))
    effects.after.append(output)


def _runs(records: Sequence[Any | None]) -> Iterator[tuple[int, int]]:
    """Yield where records begin and end that are encoded in one turn of the loop: one, or some below a limit."""
    first = size_bytes = 0
    for at, record in enumerate(records):
        if record is None or not record.value:
            continue
        size_bytes += len(record.value)
        if size_bytes > _TURN_BYTES and at > first:
            yield first, at
            first, size_bytes = at, len(record.value)
    yield first, len(records)
