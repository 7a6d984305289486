"""Reads packed records with the client library's own reader."""

from collections.abc import Iterable

from aiokafka.record.default_records import DefaultRecordBatch

from lapse.runtime.kafka.output import MAX_BATCH_BYTES, Output, Packed
from lapse.runtime.kafka.record_batch import PackedBatch, Row


def read(batch: PackedBatch) -> list[Row]:
    """Return key, value and headers of each record of a batch, as a consumer gets them.

    Raises:
        AssertionError: the checksum or an offset is wrong.
    """
    found = DefaultRecordBatch(bytes(batch._build()))
    assert found.validate_crc()
    records = list(found)
    assert [record.offset for record in records] == list(range(len(records)))
    return [(record.key, record.value, list(record.headers)) for record in records]


def rows_of(records: list[bytes]) -> list[Row]:
    """Return key, value and headers of packed records that fit into one batch."""
    if not records:
        return []
    batch = PackedBatch()
    assert batch.add_packed(records, 0, len(records), MAX_BATCH_BYTES) == len(records)
    return read(batch)


def outputs_of(some: Iterable[Output | Packed]) -> list[Output]:
    """Return outputs one by one: packed records become outputs as well."""
    outputs: list[Output] = []
    for one in some:
        if isinstance(one, Packed):
            outputs += [Output(one.topic, one.partition, *row) for row in rows_of(one.records)]
        else:
            outputs.append(one)
    return outputs
