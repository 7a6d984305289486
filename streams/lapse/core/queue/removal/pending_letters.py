"""Pending letters: removed messages are kept while the broker refuses their dead letters (C27, D3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change
from lapse.core.queue.decision import Decisions
from lapse.core.queue.life.message_state import State
from lapse.core.queue.life.table import Trigger, route
from lapse.core.queue.removal.pending_letter import PendingLetter
from lapse.core.queue.step import Removal, Step
from lapse.core.reason import Reason
from lapse.core.shard.event import ShardEvent

OfLetter = tuple[Removal, int]
"""The subject of a letter: a removal, and the index of a message in it."""


class PendingLetters:
    """Keeps messages whose letters are refused, and drops them once the letters are written."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._state = decisions.state

    def keep_refused(self, refused: Sequence[tuple[OfLetter, str]], step: Step) -> list[tuple[int, int]]:
        """Keep the messages whose letters were refused, each with the reason.

        Args:
            refused: messages of the step's removals, which are reduced here to the messages with safe letters.
            step: the step that contains the removals, which receives the decisions.

        Returns:
            The kept messages as (source, offset), in the same order.
        """
        by_removal: dict[int, tuple[Removal, dict[int, str]]] = {}
        for (removal, at), why in refused:
            by_removal.setdefault(id(removal), (removal, {}))[1][at] = why
        kept = {known: self._keep_of_removal(*some, step) for known, some in by_removal.items()}
        return [kept[id(removal)][at] for (removal, at), _ in refused]

    def _keep_of_removal(self, removal: Removal, refused: Mapping[int, str], step: Step) -> dict[int, tuple[int, int]]:
        """Keep messages of one removal. `refused` says why, by the message's index; return (source, offset) by it."""
        messages = removal.messages
        number = self._state.sources.number(messages.topic, messages.partition)
        reasons = ", ".join(removal.reasons)
        by_fault: dict[str, list[int]] = {}
        source_offsets: dict[int, tuple[int, int]] = {}
        left = State.EXPIRED if Reason.TIME_LIMIT in removal.reasons else State.GONE
        row = route(Trigger.REFUSE_LETTER).row(left)
        for at, fault in sorted(refused.items()):
            by_fault.setdefault(fault, []).append(at)
            dying = PendingLetter(
                removal.reasons,
                removal.at_ms,
                NEVER if messages.deadlines_ms is None else int(messages.deadlines_ms[at]),
                int(messages.deliveries[at]),
                0 if messages.cancels is None else int(messages.cancels[at]),
                removal.detail,
                removal.subscription,
                removal.place(at),
            )
            offset = int(messages.offsets[at])
            source_offsets[at] = number, offset
            self._decisions.apply_change(
                Change(row.changes[0], source=number, offset=offset, facts=dying.facts()), step
            )
        for fault, some in by_fault.items():
            detail = f"{reasons}; its dead letter was refused and is tried again: {fault}"
            kept = messages.select(np.array(some, np.intp))
            step.events.append(ShardEvent(row.event, removal.at_ms, kept, removal.subscription, detail))
        at = next(place for place, one in enumerate(step.removals) if one is removal)
        safe = np.array([place for place in range(len(messages)) if place not in refused], np.intp)
        if len(safe):
            removal.messages = messages.select(safe)
            removal.places = None if removal.places is None else removal.places[safe]
        else:
            del step.removals[at]
        return source_offsets

    def letter_written(self, letter_key: tuple[int, int], step: Step) -> None:
        """Drop a kept message, because its letter is safe, or not wanted. Do nothing if it was dropped before."""
        source, offset = letter_key
        dying = self._state.pending.get(letter_key)
        if dying is None:
            return
        of = self._state.sources[source]
        removal = dying.removal(of.topic, of.partition, offset)
        removal.letter = bool(self._decisions.settings.dead_letter_topic)
        step.events.append(removal.event())
        self._decisions.apply_change(
            Change(route(Trigger.WRITE_LETTER).row(State.PENDING).changes[0], source=source, offset=offset), step
        )
