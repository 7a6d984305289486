"""Records that measurements give to a shard of the core directly, without Kafka."""

from typing import NamedTuple


class PlainRecord(NamedTuple):
    """A record with the fields that the core reads."""

    offset: int
    timestamp: int
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
