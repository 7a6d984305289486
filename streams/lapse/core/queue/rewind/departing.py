"""Departing: notes leaving messages that a rewind brings back only on request, or never (Q22, C62).

Messages that were handed over to another deployment, or forwarded, live on elsewhere. Records that a transfer put here
and never confirmed were not messages of this queue. All other messages that left can come back, and need no note.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lapse.core.generation import offset_of
from lapse.core.letter import FORWARDER
from lapse.core.queue.arrival.offset_ranges import Range
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions, Slots
from lapse.core.queue.life.table import Trigger
from lapse.core.queue.rewind.rewinds import CHUNK_BITS
from lapse.core.queue.step import Step

_CHUNK: Final = 1 << CHUNK_BITS


def goes_elsewhere(trigger: Trigger, subscription: str | None) -> bool:
    """Return whether messages that a trigger removes live on elsewhere."""
    return trigger is Trigger.CONFIRM_TRANSFER or (trigger is Trigger.ACKNOWLEDGE and subscription == FORWARDER)


def note_slots_elsewhere(decisions: Decisions, slots: Slots, step: Step) -> None:
    """Note messages with places as living on elsewhere."""
    by_source: dict[int, list[Range]] = {}
    for segment, some in slots:
        for number, messages in decisions.state.sources.by_source(segment, some):
            by_source.setdefault(number, []).extend(messages.ranges())
    for number, ranges in by_source.items():
        note_departed(decisions, number, ranges, step)


def note_departed(
    decisions: Decisions, number: int, ranges: Iterable[Range], step: Step, *, never: bool = False
) -> None:
    """Note ranges of a source's messages: as living on elsewhere, or with `never` as not messages of this queue.

    A change has only what is new. The journal holds the whole note about a stretch, once for each step.
    """
    by_stretch: dict[int, list[Range]] = {}
    for low, high in ranges:
        first, last = offset_of(low), offset_of(high)
        while first <= last:
            stretch = first >> CHUNK_BITS
            stop = min(last, (stretch + 1) * _CHUNK - 1)
            by_stretch.setdefault(stretch, []).append((first, stop))
            first = stop + 1
    for stretch, some in by_stretch.items():
        facts = {"never" if never else "elsewhere": some}
        decisions.apply_change(Change(ChangeKind.DEPARTED, source=number, offset=stretch, facts=facts), step)


def forget_below(decisions: Decisions, number: int, begin_offset: int, step: Step) -> None:
    """Forget notes about messages whose records Kafka has removed."""
    for source, stretch in list(decisions.state.rewinds.departed):
        if source == number and (stretch + 1) * _CHUNK <= begin_offset:
            decisions.apply_change(Change(ChangeKind.DEPARTED, source=source, offset=stretch), step)
