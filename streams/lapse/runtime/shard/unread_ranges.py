"""Finds and reports records that Kafka removed from an underlying log before a shard read them (C80, Q16)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from aiokafka.errors import KafkaError

from lapse.runtime.shard.log_reader import LogReader
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
"""Logs are asked at most this often, s. A topic with transactions has gaps in its offsets everywhere."""

_MOST_NOTED: Final = 1_000


class Gap(NamedTuple):
    """A range of offsets of an underlying partition that were never read, both ends included."""

    tp: TP
    first: int
    last: int

    def parts(self, ranges: Iterable[tuple[int, int]]) -> list[Gap]:
        """Return parts of this gap, one for each range of offsets."""
        return [Gap(self.tp, *one) for one in ranges]


class Gaps:
    """Finds out which offsets were skipped because Kafka had removed their records.

    A missing offset alone means nothing, because transactions and compaction leave gaps too. Records were removed only
    where the log now begins behind them.

    Args:
        entity: name of the queue, for log messages.
        log: says where the logs begin.
        on_news: called when a gap was found.
        found: gaps that were found at take-over.
    """

    def __init__(self, entity: str, log: LogReader, on_news: Callable[[], None], found: Iterable[Gap] = ()) -> None:
        self._entity = entity
        self._log = log
        self._on_news = on_news
        self._found = list(found)
        self._known_to = {gap.tp: gap.last for gap in self._found}
        """The last offset of each partition that is known to be removed. Gaps are found in ascending order."""
        self._noted: list[Gap] = []
        self._task: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._found)

    def note(self, gaps: Sequence[Gap]) -> None:
        """Note ranges of offsets that a shard expected and did not get."""
        self._noted += gaps[: _MOST_NOTED - len(self._noted)]
        if not self._noted:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look(), name=f"gaps of {self._entity}")

    def find(self, gaps: Iterable[Gap]) -> None:
        """Add gaps, without the offsets that are known already, and log a warning for each."""
        for tp, first, last in gaps:
            cut = Gap(tp, max(first, self._known_to.get(tp, -1) + 1), last)
            if cut.last >= cut.first:
                warn(self._entity, cut)
                self._known_to[tp] = cut.last
                self._found.append(cut)
                self._on_news()

    def take(self) -> dict[TP, list[tuple[int, int]]]:
        """Return the gaps as first and last offsets, by partition. Each is returned only once."""
        found: dict[TP, list[tuple[int, int]]] = {}
        for tp, first, last in self._found:
            found.setdefault(tp, []).append((first, last))
        self._found = []
        return found

    def stop(self) -> None:
        """Stop looking for gaps."""
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        while self._noted:
            noted, self._noted = self._noted, []
            try:
                begins = await self._log.begins({gap.tp for gap in noted})
            except (KafkaError, TimeoutError) as error:
                logger.debug("%s: could not ask where its underlying logs begin: %s", self._entity, error)
                begins = {}
            self.find(Gap(tp, first, min(last, begins.get(tp, 0) - 1)) for tp, first, last in noted)
            await asyncio.sleep(_EVERY_S)


def warn(entity: str, gap: Gap) -> None:
    """Log a warning that Kafka has removed records that were not read."""
    logger.warning(
        "%s: Kafka has removed %s:%d up to offset %d, which was read up to %d only; reading goes on at %d",
        entity,
        *gap.tp,
        gap.last,
        gap.first - 1,
        gap.last + 1,
    )
