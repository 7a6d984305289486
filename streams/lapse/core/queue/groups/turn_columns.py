"""Turn columns: the waiting groups of a queue without priorities, filters and barriers, in columns by code (Q20, Q25).

A group has one key: the tag of its turn while it competes, else `NEVER`. Of its messages only the segments are kept
that may hold available ones. Which these are is found in the segments themselves, so messages may leave without any
note here. Like the lines of `waiting_groups`, all of it is derived from the segments when it is first needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.trait import OWN_GROUP
from lapse.core.queue.groups.available_messages import AvailableMessages
from lapse.core.queue.groups.found_ahead import END, FoundAhead
from lapse.core.queue.groups.group_codes import GroupCodes, enlarged
from lapse.core.queue.groups.group_turn import COST, GroupTurn
from lapse.core.queue.groups.turn_front import TurnFront
from lapse.core.queue.segments.segment import NOBODY, Segment, Where, count_of, slots_of
from lapse.core.queue.segments.summary import Outline

_LOADED_AT_ONCE: Final = 65_536
"""About how many messages are derived from the segments in one turn (C60)."""

_UNBOUNDED: Final = 1 << 40
"""The room of messages without a group."""

_GREAT_TAG: Final = 1 << 61
"""Tags are lowered when they reach this one, so that 64 bits hold them."""


class TurnColumns(AvailableMessages):
    """The waiting groups of a shard.

    Args:
        look: returns a segment for reading; None = it was dropped.
        outline: returns the outline of a segment.
        codes: the codes of the groups.
        turn: the turn among the groups, as it was so far.
        limit: the greatest number of leased messages of a group.
        first: index of the first segment from which groups are derived.

    Attributes:
        codes: the codes of the groups.
        turn: the turn, of which only `now` is kept up to date: see `export_tags`.
        first: by code, index of the first segment that may hold available messages of the group; `NOBODY` = none does.
        last: by code, index of the last one; `NOBODY` = there is none.
        heads: the same as `first`; while messages are chosen, the first segment with one that can be delivered.
        given, left, found: by code, 0; scratch space of whoever chooses messages.
        ahead: messages of groups that were found before they are delivered.
        front: the groups whose turn comes first, if there are very many.
        ends: by code, the tag with which the group would be served next.
        costs: by code, what a message adds to that tag.
        keys: by code, `ends` if the group competes, else `NEVER`.
        waits_ms: by code, until when the group waits for its rate, ms since the epoch; `NEVER` = until deliveries are
            written, 0 = it does not.
    """

    def __init__(
        self,
        look: Callable[[int], Segment | None],
        outline: Callable[[int], Outline],
        codes: GroupCodes,
        turn: GroupTurn,
        limit: int,
        first: int,
    ) -> None:
        super().__init__(look, outline, first)
        self.codes = codes
        self.turn = turn
        self._limit = limit
        nothing = np.zeros(0, np.int64)
        self.first = self.last = self.ends = self.costs = self.keys = self.waits_ms = nothing
        self.heads = self.given = self.left = self.found = nothing
        self.front = TurnFront()
        self.ahead = FoundAhead()
        self._later: dict[int, list[int]] = {}
        """By code, the indexes of segments behind `first` that may hold some, ascending; `last` is the last of all."""
        numbered = [(codes.code(group), cost) for group, cost in turn.costs.items()]
        tagged = [(codes.code(group), end) for group, end in turn.ends.items()]
        self.fit()
        for code, cost in numbered:
            self.costs[code] = cost
        for code, end in tagged:
            self.ends[code] = end

    def fit(self) -> None:
        """Make room for all codes."""
        room = len(self.codes.bound)
        if len(self.keys) < room:
            self.first, self.last = enlarged(self.first, room, NOBODY), enlarged(self.last, room, NOBODY)
            self.ends, self.costs = enlarged(self.ends, room, 0), enlarged(self.costs, room, COST)
            self.keys, self.waits_ms = enlarged(self.keys, room, NEVER), enlarged(self.waits_ms, room, 0)
            self.heads = enlarged(self.heads, room, NOBODY)
            self.given, self.left, self.found = (enlarged(one, room, 0) for one in (self.given, self.left, self.found))
            self.ahead.fit(room)

    @property
    def own_messages_wait(self) -> bool:
        """Whether messages without a group may wait."""
        self.sort_fresh()
        return bool(self.first[OWN_GROUP] != NOBODY)

    # Messages

    def load_part(self, last: int) -> bool:
        """Derive groups from some of the segments up to index `last`. Return whether all are derived."""
        return self._load(last, _LOADED_AT_ONCE)

    def _enter_available(self, segment: Segment, slots: NDArray[np.intp]) -> int:
        """See `AvailableMessages._enter_available`; the work is that of as many messages."""
        codes, index = self.codes.of(segment, slots), segment.index
        self.fit()
        first = self.first[codes]
        self._link(codes[(first != NOBODY) & (first != index) & (self.last[codes] != index)], index)
        new = codes[first == NOBODY]
        if len(new):
            self.first[new] = self.last[new] = self.heads[new] = index
            self.codes.changed.append(new)
        self.ahead.note_available(codes, slots, index, self.first)
        return len(slots)

    def note_left(self, segment: Segment, where: Where) -> None:
        """Note that messages are not available any more."""
        ahead = self.ahead
        if ahead.expected:
            ahead.expected -= count_of(where)
        elif segment.base < ahead.behind:
            codes = self.codes.of(segment, where)
            self.fit()
            ahead.note_left(codes, slots_of(where), segment.base, self.first)

    def _link(self, codes: NDArray[np.int32], index: int) -> None:
        """Add a segment to those of groups that have others."""
        for code in set(codes.tolist()):
            later = self._later.setdefault(code, [])
            if index > self.last[code]:
                later.append(index)
                self.last[code] = index
            elif index < self.first[code]:
                later.insert(0, int(self.first[code]))
                self.first[code] = self.heads[code] = index
            else:
                at = bisect_left(later, index)
                if later[at] != index:
                    later.insert(at, index)

    def next_behind(self, code: int, index: int) -> int:
        """Return the index of a group's first segment behind another one; `END` if there is none."""
        later = self._later.get(code, ())
        at = bisect_right(later, index)
        return later[at] if at < len(later) else END

    def leave_before(self, codes: NDArray[np.intp], indexes: NDArray[np.int64]) -> None:
        """Note that the segments before an index each, the first ones among them, hold nothing of groups any more."""
        firsts: list[int] = []
        for code, index in zip(codes.tolist(), indexes.tolist(), strict=True):
            later = self._later.get(code)
            at = 0 if later is None or later[0] >= index else bisect_left(later, index)
            if later is None or at == len(later):
                firsts.append(NOBODY)
                self._later.pop(code, None)
                continue
            firsts.append(later[at])
            del later[: at + 1]
            if not later:
                del self._later[code]
        self.first[codes] = self.heads[codes] = np.array(firsts, np.int64)
        empty = codes[self.first[codes] == NOBODY]
        self.last[empty] = NOBODY
        self.keys[empty] = NEVER

    # The turn

    def room(self, codes: NDArray[Any]) -> NDArray[np.int64]:
        """Return how many more messages of groups their limit lets be leased."""
        held = self.codes.bound[codes]
        if self._limit > 1:
            held = held - self.codes.delayed[codes]
        room: NDArray[np.int64] = self._limit - held
        room[codes == OWN_GROUP] = _UNBOUNDED
        return room

    def refresh(self) -> None:
        """Bring the keys up to date."""
        self.sort_fresh()
        self.fit()
        if self.turn.now >= _GREAT_TAG:
            self._lower_tags()
        changed = self.codes.changed
        if not changed:
            return
        codes = changed[0] if len(changed) == 1 else np.concatenate(changed)
        changed.clear()
        competes = (self.first[codes] != NOBODY) & (self.waits_ms[codes] == 0) & (self.room(codes) > 0)
        self.keys[codes] = np.where(competes, self.ends[codes], NEVER)
        self.front.add(codes)

    def _lower_tags(self) -> None:
        self.front.forget()
        now, self.turn.now = self.turn.now, 0
        self.ends = np.maximum(self.ends - now, 0)
        self.keys = np.where(self.keys == NEVER, NEVER, np.maximum(self.keys - now, 0))

    def restore_due(self, now_ms: int, written: bool) -> list[int]:
        """Let groups compete again whose rate permits more, or all that waited for a write if anything was `written`.

        Return for which instants others wait, ms since the epoch, the earliest one first; `NEVER` = for a write.
        """
        waiting = np.flatnonzero(self.waits_ms)
        if not len(waiting):
            return []
        until_ms = self.waits_ms[waiting]
        due = (until_ms <= now_ms) | ((until_ms == NEVER) & written)
        if due.any():
            self.waits_ms[waiting[due]] = 0
            self.codes.changed.append(waiting[due].astype(np.int32))
            until_ms = until_ms[~due]
        timed = until_ms[until_ms < NEVER]
        return [*([int(timed.min())] if len(timed) else []), *([NEVER] if len(timed) < len(until_ms) else [])]

    def export_tags(self) -> None:
        """Give the tags of all groups back to the turn."""
        ahead = np.flatnonzero(self.ends > self.turn.now)
        ahead = ahead[ahead < len(self.codes)]
        self.turn.ends = dict(zip(self.codes.hashes[ahead].tolist(), self.ends[ahead].tolist(), strict=True))

    def forget_unneeded(self) -> None:
        """Forget the groups that have no messages and whose tags have passed."""
        self.refresh()
        self.front.forget()
        self.ahead.clear(self.first)
        weighted = self.costs != COST
        kept = self.codes.keep((self.first != NOBODY) | (self.ends > self.turn.now) | (self.waits_ms > 0) | weighted)
        room = len(self.codes.bound)
        self._later = {new: self._later[old] for new, old in enumerate(kept.tolist()) if old in self._later}
        self.first, self.last = (enlarged(one[kept], room, NOBODY) for one in (self.first, self.last))
        self.ends, self.costs = enlarged(self.ends[kept], room, 0), enlarged(self.costs[kept], room, COST)
        self.keys, self.waits_ms = enlarged(self.keys[kept], room, NEVER), enlarged(self.waits_ms[kept], room, 0)
        self.heads = self.first.copy()
        self.given, self.left, self.found = np.zeros((3, room), np.int64)
        self.ahead = FoundAhead()
        self.ahead.fit(room)
        self.ahead.at = np.where(self.first == NOBODY, END, self.first)
