"""Turns outputs of a shard into single records: records packed for Kafka's RecordBatches are decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.kafka.packed_record import unpacked


def outputs_of(some: Iterable[Output | Packed]) -> Iterator[Output]:
    """Yield the outputs, record by record."""
    for one in some:
        if isinstance(one, Output):
            yield one
        else:
            for packed in one.records:
                key, value, headers, _ = unpacked(bytes(packed))
                yield Output(one.topic, one.partition, key, value, headers)  # type: ignore[arg-type]
