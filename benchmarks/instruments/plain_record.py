"""Records that go straight into a shard of the core, without Kafka."""

from typing import NamedTuple


class PlainRecord(NamedTuple):
    """What the core asks of a record."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
