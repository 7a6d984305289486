"""The horizon of a sweep: it takes no message that was published behind its instant (C1, C37).

A shard reads commands and messages from different logs, so a purge may be read after messages that are younger.
Timestamps show which are. The state does not have these, so Kafka is asked, unless all messages are known to be older.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.lifetime import NEVER
from lapse.core.queue.shard import QueueShard
from lapse.core.rows import Rows
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.tp import TP

_APART_MS: Final = 100
_MOST_NOTED: Final = 64
"""How many instants of receipt are kept of a partition, with its read position at each, and the least time between
two of them, ms."""


UNKNOWN: Final = Refusal(
    ErrorCode.SHARD_UNAVAILABLE,
    "it is not known which messages are younger than this command, for a partition has no leader that answers; send it "
    "again",
)
"""The refusal of a sweep while Kafka does not answer."""


class SweepHorizon:
    """Finds the offset of each partition from which on its messages are younger than an instant.

    Args:
        shard: the shard of the messages.
        payloads: the logs behind them.
    """

    def __init__(self, shard: QueueShard, payloads: PayloadWindow) -> None:
        self._shard = shard
        self._payloads = payloads
        self._latest_ms: dict[tuple[str, int], int] = {}
        """The latest timestamp of the messages taken in, by partition, ms since the epoch; `NEVER` if it is unknown."""
        self._received: dict[tuple[str, int], deque[tuple[int, int]]] = {}
        """By partition, instants of the broker's clock with the read position at each. They count because producers
        may set any timestamp."""

    def begin(self, now_ms: int) -> None:
        """Note that everything in the journal was read before the epoch began."""
        for source in self._shard.state.sources.current():
            name = source.topic, source.partition
            self._received[name] = deque([(now_ms, source.next_offset)], _MOST_NOTED)
            if source.next_offset:
                self._latest_ms[name] = NEVER

    def note_batch(self, topic: str, partition: int, records: Sequence[Any], taken: int, clock_ms: int | None) -> None:
        """Note a batch.

        Args:
            topic: its topic.
            partition: its partition.
            records: the batch.
            taken: how many of its records were taken in.
            clock_ms: when it arrived, ms since the epoch; None if the broker set its timestamps, which then ascend.
        """
        if not taken:
            return
        name = topic, partition
        last = records[taken - 1]
        if clock_ms is None:
            self._latest_ms[name] = last.timestamp
            return
        if isinstance(records, Rows):
            latest_ms = int(records.timestamps_ms[:taken].max())
        else:
            latest_ms = max(record.timestamp for record in records[:taken])
        self._latest_ms[name] = max(self._latest_ms.get(name, -1), latest_ms)
        noted = self._received.setdefault(name, deque(maxlen=_MOST_NOTED))
        if len(noted) > 1 and clock_ms - noted[-2][0] < _APART_MS:
            noted.pop()
        noted.append((clock_ms, last.offset + 1))

    def forget(self, topics: Collection[str]) -> None:
        """Forget topics that were created anew (C42)."""
        for known in (self._latest_ms, self._received):
            for name in [name for name in known if name[0] in topics]:
                del known[name]

    def is_open(self, at_ms: int) -> bool:
        """Return whether Kafka must be asked which messages are younger than an instant, ms since the epoch."""
        return any(True for _ in self._unsure(at_ms))

    def _unsure(self, at_ms: int) -> Iterable[TP]:
        """Yield the partitions from which a younger message may have been taken in."""
        for source in self._shard.state.sources.current():
            name = source.topic, source.partition
            if source.next_offset and self._latest_ms.get(name, NEVER) > at_ms:
                yield TP(*name)

    async def set(self, at_ms: int) -> Refusal | None:
        """Set the shard's horizon to an instant, ms since the epoch; return a refusal if Kafka does not answer."""
        try:
            self._shard.horizon.ends = await self.ends(at_ms)
        except TimeoutError:
            return UNKNOWN
        return None

    async def ends(self, at_ms: int) -> dict[int, int]:
        """Return, by number of the source, the first offset taken in that is younger than an instant, if one is.

        Args:
            at_ms: the instant, ms since the epoch.

        Raises:
            TimeoutError: Kafka does not answer.
        """
        unsure, sources, ends = [*self._unsure(at_ms)], self._shard.state.sources, dict[int, int]()
        stood = await self._payloads.log.offset_at(unsure, at_ms + 1) if unsure else {}
        for tp, stamped in stood.items():
            end, number = max(stamped, self._read_by(tp, at_ms)), sources.number(*tp)
            if end < sources[number].next_offset:
                ends[number] = end
            elif self._latest_ms.get(tp, NEVER) == NEVER:
                self._latest_ms[tp] = at_ms
        return ends

    def _read_by(self, tp: TP, at_ms: int) -> int:
        """Return the offset up to which a partition was certainly read at an instant, whatever the timestamps."""
        return max((offset for read_ms, offset in self._received.get(tp, ()) if read_ms <= at_ms), default=0)
