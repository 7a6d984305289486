"""Plain updates: takes in many updates at once, with the same result as one by one, but less CPU.

An update is plain if its headers state at most a lifetime, and it replaces a record of the same partition, or none.
Neighbouring updates mostly have the same headers, whose meaning is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.rows import Rows
from lapse.core.sow.arrival.header_cache import HeaderCache
from lapse.core.sow.journal import RECORD
from lapse.core.sow.records.record import HEAD_BYTES
from lapse.core.sow.state import RECORD_BYTES, SowState
from lapse.core.sow.step import Step

LEAST: Final = 32
"""The least number of updates for which this is faster than one by one."""

_MOST: Final = 512

_HEAD: Final = [
    ("deadline_ms", ">i8"),
    ("timestamp_ms", ">i8"),
    ("sequence", ">i8"),
    ("offset", ">i8"),
    ("source", ">u4"),
    ("headers_bytes", ">u4"),
]
"""The layout of a packed record's head, as in `lapse.core.sow.records.record`."""


class PlainUpdates:
    """Takes in plain updates of one shard.

    Args:
        state: the shard's state.
        header_cache: the cache of headers' meanings.

    Attributes:
        least: the least number of updates that are taken together.
    """

    __slots__ = ("_header_cache", "_heads", "_settings", "_state", "least")

    def __init__(self, state: SowState, header_cache: HeaderCache) -> None:
        self.least = LEAST
        self._state = state
        self._settings = state.settings
        self._header_cache = header_cache
        self._heads: dict[int, np.dtype[Any]] = {}

    def take(self, rows: Rows, source: int, step: Step, clock_ms: int = NEVER) -> int:
        """Take in the first records, as far as they are plain updates with the same headers.

        Args:
            rows: records of one underlying partition.
            source: number of the source.
            step: receives the changes.
            clock_ms: the broker's clock, ms since the epoch. `NEVER` = no timestamp is later.

        Returns:
            How many were taken; 0 = the first ones must be taken one by one.
        """
        state = self._state
        if not state.takes_many or (count := min(rows.alike(), _MOST)) < self.least:
            return 0
        run = rows[:count]
        header_facts = self._header_cache.meaning_of(run.headers())
        if header_facts is None:
            return 0
        block, absolute_ms, relative_ms = header_facts
        stamps_ms = run.timestamps_ms
        deadlines_ms = self._deadlines_ms(stamps_ms, absolute_ms, relative_ms)
        change_bytes = self._change_bytes(run, len(block))
        if deadlines_ms is None or not 0 < change_bytes < self._settings.max_step_bytes - step.change_bytes:
            return 0
        keys = run.keys()
        journal_keys = [RECORD + key for key in keys]
        if not self._are_simple(journal_keys, keys):
            return 0
        olds = list(map(state.entries.get, journal_keys))
        before_ms = self._deadlines_before(olds, stamps_ms, source, block)
        if before_ms is None:
            return 0
        entries = self._packed(run, deadlines_ms, source, block)
        new = [journal_key for journal_key, old in zip(journal_keys, olds, strict=True) if old is None]
        earlier = np.flatnonzero(deadlines_ms < before_ms).tolist()
        earlier_ms = [
            (journal_keys[at], deadline_ms)
            for at, deadline_ms in zip(earlier, deadlines_ms[earlier].tolist(), strict=True)
        ]
        state.put_many(journal_keys, entries, new, earlier_ms, change_bytes, step)
        state.now_ms = max(state.now_ms, min(int(stamps_ms.max()), clock_ms))
        return count

    def _deadlines_ms(
        self, stamps_ms: NDArray[np.int64], absolute_ms: int, relative_ms: int
    ) -> NDArray[np.int64] | None:
        """Return the deadlines of the updates, ms since the epoch; None if any is invalid or has passed."""
        first_ms, last_ms = int(stamps_ms.min()), int(stamps_ms.max())
        if first_ms < 0 or last_ms + relative_ms >= NEVER:
            return None
        deadlines_ms = np.full(len(stamps_ms), absolute_ms, np.int64)
        if relative_ms >= 0:
            np.minimum(deadlines_ms, stamps_ms + relative_ms, out=deadlines_ms)
        if self._settings.expiration.enabled and (deadlines_ms <= stamps_ms).any():
            return None
        return deadlines_ms

    def _change_bytes(self, run: Rows, block_bytes: int) -> int:
        """Return the size of the changes, bytes; 0 if any update has no key or value, or is large."""
        keys, values = run.sizes()
        small_bytes = self._settings.max_record_bytes // 4
        if keys.min() < 0 or values.min() < 0:
            return 0
        if block_bytes + keys.max() >= small_bytes or values.max() >= small_bytes:
            return 0
        each = len(RECORD) + HEAD_BYTES + block_bytes + RECORD_BYTES
        return int(keys.sum(dtype=np.int64) + values.sum(dtype=np.int64)) + len(run) * each

    def _are_simple(self, journal_keys: Sequence[bytes], keys: Sequence[bytes]) -> bool:
        """Return whether all keys are distinct, and none has a scheduled update or a tombstone."""
        state = self._state
        return (
            len(set(journal_keys)) == len(journal_keys)
            and (not state.tombstones or state.tombstones.keys().isdisjoint(journal_keys))
            and (not state.schedule or state.schedule.by_key.keys().isdisjoint(keys))
        )

    def _deadlines_before(
        self, olds: Sequence[bytes | None], stamps_ms: NDArray[np.int64], source: int, block: bytes
    ) -> NDArray[np.int64] | None:
        """Return the deadlines of the replaced records, `NEVER` without one; None if any update is not plain.

        Args:
            olds: the replaced records; None = none.
            stamps_ms: timestamps of the updates, ms since the epoch.
            source: number of the updates' source.
            block: the updates' packed headers, which are known not to be a replicated record's.
        """
        known = [old for old in olds if old is not None]
        before_ms = np.full(len(olds), NEVER, np.int64)
        if not known:
            return before_ms
        there: Any = slice(None)
        if len(known) < len(olds):
            there = np.array([at for at, old in enumerate(olds) if old is not None], np.intp)
        head = self._head(len(block))
        width = head.itemsize
        heads = b"".join([old[:width] for old in known])
        if len(heads) != width * len(known):
            return None
        found = np.frombuffer(heads, head)
        before_ms[there] = found["deadline_ms"]
        alike = found["headers_bytes"] == len(block)
        if block:
            blocks = np.frombuffer(heads, np.uint8).reshape(-1, width)[:, HEAD_BYTES:]
            alike &= (blocks == np.frombuffer(block, np.uint8)).all(axis=1)
            alike |= found["headers_bytes"] == 0
        plain = alike & (found["source"] == source) & (found["timestamp_ms"] <= stamps_ms[there])
        if self._settings.expiration.enabled:
            plain &= before_ms[there] > stamps_ms[there]
        return before_ms if plain.all() else None

    def _packed(self, run: Rows, deadlines_ms: NDArray[np.int64], source: int, block: bytes) -> list[bytes]:
        """Return the updates as packed records: see `lapse.core.sow.records.record`."""
        count, sequence = len(run), self._state.sequence + 1
        head = self._head(len(block))
        heads = np.empty(count, head)
        heads["deadline_ms"], heads["timestamp_ms"] = deadlines_ms, run.timestamps_ms
        heads["sequence"], heads["offset"] = np.arange(sequence, sequence + count), run.offsets
        heads["source"], heads["headers_bytes"] = source, len(block)
        if block:
            heads["block"] = np.void(block)
        packed, width = heads.tobytes(), head.itemsize
        starts = range(0, count * width, width)
        return [packed[at : at + width] + value for at, value in zip(starts, run.values(), strict=True)]

    def _head(self, block_bytes: int) -> np.dtype[Any]:
        """Return the column layout of head and headers."""
        found = self._heads.get(block_bytes)
        if found is None:
            fields: list[Any] = [*_HEAD, ("block", f"V{block_bytes}")] if block_bytes else list(_HEAD)
            found = self._heads[block_bytes] = np.dtype(fields)
        return found
