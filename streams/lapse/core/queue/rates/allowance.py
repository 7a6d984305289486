"""Allowance: how many messages a queue's rates permit now, and when they permit more (Q25, C71)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.broker_offset import STEP_MS
from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.trait import OWN_GROUP
from lapse.core.queue.change import Change, ChangeKind, Places, count_places
from lapse.core.queue.decision import Decisions
from lapse.core.queue.rates.counted import EVERYTHING, Batch, Of
from lapse.core.queue.step import Step

_PATIENCE_MS: Final = 30_000
"""A worker ends if a delivery takes longer than its lease and this time (see `runtime.queue.delivery_writer`), ms."""


class Allowance:
    """Counts deliveries against the rates of a queue and of its groups.

    Args:
        decisions: the shard's decisions.

    Attributes:
        is_bounded: whether the queue has any rate.
        by_group: whether the queue has a rate of groups.
        counts_as_written: whether `note_written` is called, so that deliveries count from when they were written; else
            they count from their decision.
        written_within_ms: how long after its decision a former owner's delivery is written at the latest, ms.
        frees_ms: the earliest instant at which a message that waits for a rate may go, ms since the epoch; `NEVER` if
            none waits.
    """

    def __init__(self, decisions: Decisions) -> None:
        self.counts_as_written = False
        self.written_within_ms = decisions.settings.lease_ms + _PATIENCE_MS
        self.frees_ms = NEVER
        self._waits_for_writing = self._was_written = self._was_set_back = False
        self._decisions = decisions
        self._state = decisions.state
        self._rate = decisions.settings.rate
        self._group_rate = None if decisions.settings.traits.group is None else decisions.settings.group_rate
        self.is_bounded = self._rate is not None or self._group_rate is not None
        self.by_group = self._group_rate is not None
        self._total = 0
        self._of_groups: dict[int, int] = {}
        self._places: list[int] = []

    def at_ms(self, now_ms: int) -> int:
        """Return the instant from which a delivery decided now counts. It does not go back if the clock does."""
        return max(now_ms, self._state.counted.newest_ms)

    def queue_room(self, now_ms: int) -> int:
        """Return how many messages the queue's rate permits now."""
        if self._rate is None:
            return 1 << 62
        return self._state.counted.room_for(EVERYTHING, self._rate, self.at_ms(now_ms))

    def note_queue_wait(self) -> None:
        """Note that a message waits for the rate of the queue."""
        if self._rate is not None:
            self.note_wait_until(self._state.counted.frees_ms(EVERYTHING, self._rate))

    def group_room(self, of: Of, now_ms: int, enough: int = 1 << 62) -> int:
        """Return how many messages of a group the rate of groups permits now: see `Counted.room_for`."""
        if self._group_rate is None:
            return 1 << 62
        return self._state.counted.room_for(of, self._group_rate, self.at_ms(now_ms), enough)

    def group_rooms(self, groups: Sequence[int], now_ms: int, enough: int) -> list[tuple[int, int]]:
        """Return the index of each group that the rate may permit less than `enough`, and how many it permits.

        Args:
            groups: the hashes of the groups.
            now_ms: the instant, ms since the epoch.
            enough: a number of messages.
        """
        if self._group_rate is None:
            return []
        return self._state.counted.rooms_for(groups, self._group_rate, self.at_ms(now_ms), enough)

    def note_group_wait(self, of: Of) -> int:
        """Note that a message waits for its group's rate. Return when it may go, ms since the epoch."""
        if self._group_rate is None:
            return NEVER
        frees_ms = self._state.counted.frees_ms(of, self._group_rate)
        self.note_wait_until(frees_ms)
        return frees_ms

    def note_wait_until(self, frees_ms: int) -> None:
        """Note that a message waits until an instant, ms since the epoch; `NEVER` = until a delivery is written."""
        self._waits_for_writing |= frees_ms >= NEVER
        self.frees_ms = min(self.frees_ms, frees_ms)

    def clear_waits(self) -> None:
        """Forget what waits, since a delivery computes that again."""
        self.frees_ms, self._waits_for_writing = NEVER, False

    def clear_reached(self, now_ms: int) -> None:
        """Clear `frees_ms` if it has come, so that the next delivery computes it again."""
        if self.frees_ms <= now_ms:
            self.frees_ms = NEVER

    def waited_to_ms(self, now_ms: int) -> int:
        """Return up to which instant waits of messages are over; all are once after `set_back`, ms since the epoch."""
        set_back, self._was_set_back = self._was_set_back, False
        return NEVER - 1 if set_back else self.at_ms(now_ms)

    def set_back(self, now_ms: int) -> None:
        """Forget until when messages wait, since the broker's clock was set back: see `Counted.set_back`."""
        self._state.counted.set_back(now_ms)
        self._was_set_back, self.frees_ms = True, NEVER

    def set_back_restored(self, now_ms: int) -> None:
        """Do the same with restored counts from before the broker's clock was set back."""
        if self._state.counted.newest_ms - now_ms > STEP_MS:
            self.set_back(now_ms)

    def was_written(self) -> bool:
        """Return whether any counted deliveries were written since the last call."""
        written, self._was_written = self._was_written, False
        return written

    @property
    def counted_to(self) -> int:
        """Number of the last counted batch."""
        return self._state.counted.next_number - 1

    def note_written(self, to: int, at_ms: int) -> bool:
        """Note that counted batches up to a number were written by an instant, ms since the epoch (C71).

        Returns:
            Whether a message waited for that and must be examined, because only now it is known when it may go.
        """
        if not self._state.counted.note_written(to, at_ms):
            return False
        self._was_written = True
        if not self._waits_for_writing:
            return False
        self.frees_ms, self._waits_for_writing = min(self.frees_ms, at_ms), False
        return True

    def count_deliveries(self, places: Places) -> None:
        """Count messages as handed out."""
        self._total += count_places(places)
        if not self.by_group:
            return
        index = self._state.index
        every: list[NDArray[np.int32]] = []
        for segment, slots in self._decisions.slots(places):
            codes = index.codes.of(segment, slots)
            every.append(codes)
            if not codes.all():
                self._places += (slots[codes == OWN_GROUP] + segment.base).tolist()
        counted = index.codes.counted(every[0] if len(every) == 1 else np.concatenate(every))
        if not self._of_groups:
            self._of_groups = dict(counted)
            return
        for group, count in counted:
            self._of_groups[group] = self._of_groups.get(group, 0) + count

    def journal_counts(self, now_ms: int, step: Step) -> None:
        """Journal the deliveries counted since the last call, and forget batches outside all windows."""
        if not self._total:
            return
        counted, at_ms = self._state.counted, self.at_ms(now_ms)
        settings = self._decisions.settings
        rates = [one for one in (settings.rate, settings.group_rate) if one is not None]
        for number in counted.outdated(rates, at_ms):
            self._decisions.apply_change(Change(ChangeKind.UNCOUNTED, offset=number), step)
        number = counted.next_number
        groups, counts = list(self._of_groups), list(self._of_groups.values())
        batch = Batch(at_ms, self._total, groups, counts, self._places, counted.written_ms(number - 1))
        self._total, self._of_groups, self._places = 0, {}, []
        self._decisions.apply_change(Change(ChangeKind.COUNTED, offset=number, facts=batch.facts()), step)
        if self.counts_as_written:
            counted.note_writing(number)

    def take_over(self, now_ms: int, step: Step, unwritten: bool) -> None:
        """Begin to own the shard: see `Counted.take_over`. Without a rate all batches are forgotten."""
        counted = self._state.counted
        if not self.is_bounded:
            for number in list(counted.batches):
                self._decisions.apply_change(Change(ChangeKind.UNCOUNTED, offset=number), step)
        elif self.counts_as_written:
            counted.take_over(now_ms, self.written_within_ms, unwritten)
