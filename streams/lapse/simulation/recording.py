"""A recording: the contents of topics, read from Kafka or made in memory, with their original offsets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, overload

from lapse.runtime.tp import TP
from lapse.testing.cluster import Cluster


class Recorded(NamedTuple):
    """A record with the attributes of aiokafka's `ConsumerRecord`.

    Attributes:
        topic: its topic.
        partition: its partition.
        offset: its offset.
        timestamp: ms since the epoch; -1 without one.
        timestamp_type: 0 if a producer set it, 1 if the broker did.
        key: its key.
        value: its value.
        headers: its headers, in order.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class RecordedLog(Sequence[Any]):
    """The records of a partition, indexed by offsets. Some offsets may have no record.

    Args:
        records: the records, by their offsets.
        begins: where the log begins, perhaps with aborted transactions; None = with the first record.
    """

    def __init__(self, records: Sequence[Any], begins: int | None = None) -> None:
        self._records = records
        self._begins = begins
        self._offsets = [record.offset for record in records]

    def __len__(self) -> int:
        return self._offsets[-1] + 1 if self._offsets else 0

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Any]: ...

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            first, stop = at.start or 0, len(self) if at.stop is None else at.stop
            return self._records[bisect_left(self._offsets, first) : bisect_left(self._offsets, stop)]
        found = self[at : at + 1]
        if not found:
            raise IndexError(f"there is no record at offset {at}")
        return found[0]

    @property
    def begins(self) -> int:
        """Offset at which the log begins; 0 if it has no record."""
        if not self._offsets:
            return 0
        return self._offsets[0] if self._begins is None else self._begins


class Recording(Cluster):
    """Recorded topics.

    Args:
        partitions: the number of partitions of each topic.
        records: their records, in any order of topics, those of each partition by their offsets.
        begins: where partitions begin, as far as that is known; others begin with their first records.
    """

    def __init__(
        self, partitions: dict[str, int], records: Iterable[Any], begins: Mapping[TP, int] = MappingProxyType({})
    ) -> None:
        super().__init__(0)
        for topic, count in partitions.items():
            self.create(topic, count)
        some: dict[TP, list[Any]] = {}
        for record in records:
            some.setdefault(TP(record.topic, record.partition), []).append(record)
        self._begins = begins
        self._recorded = {
            tp: RecordedLog(sorted(found, key=lambda one: one.offset), begins.get(tp)) for tp, found in some.items()
        }

    def log(self, topic: str, partition: int) -> Any:
        """See `Cluster`."""
        return self._recorded.get(TP(topic, partition), _NOTHING)

    def offset_at(self, topic: str, partition: int, instant_ms: int) -> int:
        """See `Cluster`."""
        found = (one.offset for one in self.log(topic, partition)[:] if one.timestamp >= instant_ms)
        return next(found, len(self.log(topic, partition)))

    def cut(self, ends: Mapping[TP, int]) -> Recording:
        """Return a copy in which some partitions end below an offset."""
        kept = {tp: log[: ends.get(tp, len(log))] for tp, log in self._recorded.items()}
        return Recording(self.partitions(), (record for records in kept.values() for record in records), self._begins)


_NOTHING = RecordedLog(())
