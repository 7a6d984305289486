"""The dead letters of a queue shard; `lapse.runtime.letters.shard_letters` has the rules (C27, D3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from lapse.core.queue.removal.pending_letters import OfLetter
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Removal
from lapse.core.reason import Reason
from lapse.core.rows import Rows
from lapse.runtime.kafka.output import Packed
from lapse.runtime.letters.expiry_rule import ExpiryRule
from lapse.runtime.letters.shard_letters import PART
from lapse.runtime.queue.gathered_removals import GatheredRemovals, Subjects, gathered
from lapse.runtime.queue.in_flight import QueueStepInFlight
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.records import records_of_departed
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.shard.row_parts import RowParts
from lapse.runtime.tp import TP

_AT_ONCE: Final = 128
"""How many letters are packed before others have a turn."""

_ROWS_AT_ONCE: Final = 1_024
"""The same number for records in columns."""

_TIME_ALONE: Final = (Reason.TIME_LIMIT,)


class QueueLetters:
    """Makes the letters of one shard.

    Args:
        shard: the shard of the messages.
        payloads: the records behind the messages.
        output: turns removals into letters.
        rule: called with each message that leaves; None without an expiry rule (L15).
    """

    def __init__(
        self, shard: QueueShard, payloads: PayloadWindow, output: QueueOutput, rule: ExpiryRule | None
    ) -> None:
        self._shard = shard
        self._payloads = payloads
        self._output = output
        self._rule = rule

    async def letters_of(self, flight: QueueStepInFlight) -> AsyncIterator[tuple[Sequence[Packed], Sequence[OfLetter]]]:
        """Yield the letters of a step with their subjects; call the expiry rule with all messages that left."""
        letters: list[Packed] = []
        about = Subjects()
        for alike in self._gathered(flight.core.removals):
            removal = alike.removal
            for begin, some in self._read_together(removal):
                found = await records_of_departed(some, self._payloads)
                for first, records in _portions(found) if removal.letter else ():
                    if len(about) >= PART:
                        yield letters, about
                        letters, about = [], Subjects()
                    elif first:
                        await asyncio.sleep(0)
                    stop = first + len(records)
                    letters.append(self._output.letters(some, some.messages.cut(first, stop), records))
                    about.add(alike, begin + first, begin + stop)
                if self._rule is not None:
                    flight.ahead += self._rule.removed(some, list(found))
        if letters:
            yield letters, about

    def _gathered(self, removals: Sequence[Removal]) -> Iterator[GatheredRemovals]:
        """Return removals whose records are needed, those together whose letters say the same.

        An expiry rule gets each removal for itself, because the journal keeps its calls so.
        """
        if self._rule is not None:
            return (GatheredRemovals([one]) for one in removals)
        return gathered([one for one in removals if one.letter])

    def _read_together(self, removal: Removal) -> Iterator[tuple[int, Removal]]:
        """Yield a removal in parts, each with the index of its first message; the records of a part are read at once.

        So records are read while letters are on their way. If messages are not in the order of the log, all are read
        at once: else the log would be read for each part.
        """
        offsets = removal.messages.offsets
        if len(offsets) <= _ROWS_AT_ONCE or self._rule is not None or not bool((np.diff(offsets) > 0).all()):
            yield 0, removal
            return
        for first in range(0, len(offsets), _ROWS_AT_ONCE):
            yield first, replace(removal, messages=removal.messages.cut(first, first + _ROWS_AT_ONCE))

    def expired(self, flight: QueueStepInFlight) -> Mapping[TP, int] | None:
        """Return the offset behind the last expired message of each source; None if some left for another reason."""
        behind: dict[TP, int] = {}
        for removal in flight.core.removals:
            if removal.letter and removal.reasons != _TIME_ALONE:
                return None
            source = TP(removal.messages.topic, removal.messages.partition)
            behind[source] = max(behind.get(source, 0), int(removal.messages.offsets.max()) + 1)
        return behind

    async def pending_letter(self, source_offset: tuple[int, int]) -> Packed | None:
        """Return the letter of a dying message, to be tried again; None if it is gone, or no letters are written."""
        state = self._shard.state
        dying = state.pending.get(source_offset)
        if dying is None or not self._shard.settings.dead_letter_topic:
            return None
        source = state.sources[source_offset[0]]
        # The offset may belong to another topic's message now (C42).
        there = state.sources.find(source.topic, source.partition) == source_offset[0]
        there &= Reason.LOG_TRUNCATED not in dying.reasons
        record = await self._payloads.one(source.topic, source.partition, source_offset[1]) if there else None
        removal = dying.removal(source.topic, source.partition, source_offset[1])
        removal = replace(removal, incarnation=source.since_epoch)
        return self._output.letters(removal, removal.messages, [record])


def _portions(records: Sequence[Any | None]) -> Iterator[tuple[int, Sequence[Any | None]]]:
    """Yield records in portions between which others have turns, each with the index of its first record."""
    if isinstance(records, RowParts) and records.order is not None:
        records = list(records)
    parts: Iterable[Sequence[Any | None]] = records.parts if isinstance(records, RowParts) else (records,)
    done = 0
    for part in parts:
        at_once = _ROWS_AT_ONCE if isinstance(part, Rows) else _AT_ONCE
        at_once = -(-len(part) // -(-len(part) // at_once)) if part else at_once  # equal portions
        for first in range(0, len(part), at_once):
            batch = part[first : first + at_once]
            yield done, batch
            done += len(batch)
