"""The dead letters of a SOW shard; `lapse.runtime.letters.shard_letters` has the rules (C27, D3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from lapse.core.sow.removal import pending_letters
from lapse.core.sow.shard import SowShard
from lapse.core.sow.step import Removal, Step
from lapse.protocol import header
from lapse.runtime.kafka.output import Packed
from lapse.runtime.letters.shard_letters import PART
from lapse.runtime.shard.effects import StepInFlight
from lapse.runtime.sow.output import SowOutput
from lapse.runtime.tp import TP

_AT_ONCE: Final = 128
"""How many letters are packed before others have a turn."""

Read = Callable[[str, int, int], Awaitable[Any | None]]
"""Reads one record by topic, partition and offset; returns None if Kafka no longer has it."""


class SowLetters:
    """Makes the letters of one shard.

    Args:
        shard: the shard of the records.
        output: turns removals into letters.
        read: reads one record of an underlying topic, without moving other readers.
    """

    def __init__(self, shard: SowShard, output: SowOutput, read: Read) -> None:
        self._shard = shard
        self._output = output
        self._read = read

    def left(self) -> list[bytes]:
        """Return the names of the pending letters of an earlier epoch, in the order of removal."""
        return sorted(self._shard.state.pending, key=lambda name: self._removal(name).at_ms)

    async def letters_of(self, flight: StepInFlight[Step]) -> AsyncIterator[tuple[Sequence[Packed], Sequence[Removal]]]:
        """Yield the letters of a step with their removals, in the order of removal."""
        letters: list[Packed] = []
        about: list[Removal] = []
        for first in range(0, len(flight.core.letters), _AT_ONCE):
            if len(about) >= PART:
                yield letters, about
                letters, about = [], []
            elif first:
                await asyncio.sleep(0)
            part = flight.core.letters[first : first + _AT_ONCE]
            letters += self._output.letters(list(map(_with_key, part)))
            about += part
        if letters:
            yield letters, about

    def expired(self, flight: StepInFlight[Step]) -> Mapping[TP, int] | None:
        """Return None, because an update in the step before may have replaced a record that expires in this one."""
        return None

    async def pending_letter(self, journal_key: bytes) -> Packed | None:
        """Return the letter of a pending record, to be tried again; None if it is no longer pending."""
        if journal_key not in self._shard.state.pending:
            return None
        removal = self._removal(journal_key)
        if removal.in_log:
            record = await self._read(*removal.bookmark)
            if record is None:
                return next(iter(self._output.letters([removal], lost=True)), None)
            removal = removal._replace(key=record.key, value=record.value, headers=tuple(record.headers))
        return next(iter(self._output.letters([_with_key(removal)])), None)

    def _removal(self, journal_key: bytes) -> Removal:
        state = self._shard.state
        source, offset = pending_letters.source_and_offset(journal_key)
        bookmark, incarnation = state.bookmark(source, offset), state.incarnation(source)
        return pending_letters.unpack(state.pending[journal_key], bookmark)._replace(incarnation=incarnation)


def _with_key(removal: Removal) -> Removal:
    """Add the key from the payload to the letter of a record that was refused on arrival (C84)."""
    if removal.record_key is None:
        return removal
    others = (one for one in removal.headers if one[0] != header.RECORD_KEY)
    return removal._replace(headers=(*others, (header.RECORD_KEY, removal.record_key)))
