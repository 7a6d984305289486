"""Warns of records whose producer's clock is ahead of the broker's. They are used unchanged (C6)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from lapse.core.rows import Rows
from lapse.runtime.timers.clock import WorkerClock
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)

_BY_THE_PRODUCER: Final = 0
"""Kafka's number for the timestamp type of a `CreateTime` topic."""

_QUIET_MS: Final = 60_000
"""The least time between two warnings about a partition, ms of the broker's clock."""


class EarlyStamps:
    """Warns of timestamps ahead of the broker's clock.

    Args:
        entity: name of the entity, for log messages.
        clock: the broker's clock.
    """

    __slots__ = ("_clock", "_entity", "_quiet_until_ms")

    def __init__(self, entity: str, clock: WorkerClock) -> None:
        self._entity = entity
        self._clock = clock
        self._quiet_until_ms: dict[TP, int] = {}

    def look(self, tp: TP, records: Sequence[Any]) -> None:
        """Check the timestamps of a batch. With `LogAppendTime`, only the timestamp type of its last record is read."""
        if records[-1].timestamp_type != _BY_THE_PRODUCER:
            return
        now_ms = self._clock.now_ms()
        if isinstance(records, Rows):
            latest = records[int(records.timestamps_ms.argmax())]
        else:
            latest = max(records, key=lambda record: int(record.timestamp))
        ahead_ms = latest.timestamp - now_ms
        if ahead_ms <= self._clock.max_skew_ms or now_ms < self._quiet_until_ms.get(tp, 0):
            return
        self._quiet_until_ms[tp] = now_ms + _QUIET_MS
        logger.warning(
            "%s: %s:%d:%d is stamped %d ms ahead of the broker's clock. Its producer's clock is wrong, or the stamp is "
            "no time of arrival; it is used as it is. With LogAppendTime the broker stamps (C6)",
            self._entity,
            tp.topic,
            tp.partition,
            latest.offset,
            ahead_ms,
        )
