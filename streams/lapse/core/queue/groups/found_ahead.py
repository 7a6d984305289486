"""Found ahead: the next messages of waiting groups, which were found before they are delivered (Q25).

A segment that is searched holds messages of many groups, most of which are delivered later. They are kept here, so that
each segment is searched once or twice, and not at every delivery. Messages that leave or come back end what is known of
their groups.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.groups.group_codes import enlarged
from lapse.core.queue.segments.segment import NOBODY, SIZE
from lapse.core.spans import numbers_of

END: Final = 1 << 62
"""Behind all segments."""

_NONE: Final = np.zeros(0, np.int64)
_NO_GROUPS: Final = np.zeros(0, np.intp)

_MOST_LOOKED: Final = 64
"""From this number of searches on, the codes of searched groups are joined."""

_MOST: Final = 131_072
"""From this number of messages on, all are forgotten: they are of too many groups to be delivered soon."""


_FEW_CODES: Final = 65_536
"""For up to this number of codes, a look at each takes less time than a sort of those that are needed."""


class FoundIn(NamedTuple):
    """Messages of groups that were found together, in columns.

    Attributes:
        groups: the codes of the groups, each once.
        counts: for each, how many there are.
        places: their places: those of the first group, ascending, then those of the next one.
    """

    groups: NDArray[np.intp]
    counts: NDArray[np.int64]
    places: NDArray[np.int64]


class FoundAhead:
    """Messages of groups that are known to be the next ones, in columns by code.

    Attributes:
        places: the places of the messages, by group.
        begin: by code, the index of the group's next message in `places`.
        stop: by code, the index behind its last one.
        until: by code, a place: each message of the group before it that can be delivered is among them.
        at: by code, index of the first segment that must be searched for more; `END` if there is none.
        stays: by code, index of the first segment with a message that was passed over because of its deadline.
        behind: no `until` is greater.
        min_deadline_ms: no message among them expires before this instant, ms since the epoch.
        latest_ms: the latest instant of a search, ms since the epoch.
        expected: how many messages leave now because they are delivered.
        uses: for how many deliveries the last search was enough.
        unfinished: how many searches since the last finished one must go on in another turn.
    """

    def __init__(self) -> None:
        self.begin = self.stop = self.until = self.at = self.stays = self.places = self._sizes = _NONE
        self._groups = _NO_GROUPS
        self.behind = self.expected = self.uses = self.unfinished = self.latest_ms = 0
        self.min_deadline_ms = NEVER
        self._looked: list[NDArray[np.intp]] = []

    def __len__(self) -> int:
        return len(self.places)

    def fit(self, room: int) -> None:
        """Make room for all codes."""
        self.begin, self.stop, self.until, self._sizes = (
            enlarged(one, room, 0) for one in (self.begin, self.stop, self.until, self._sizes)
        )
        self.at, self.stays = enlarged(self.at, room, END), enlarged(self.stays, room, END)

    def segments_of_next(self, codes: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return the index of the segment of the next message of groups; each has one."""
        return self.places[self.begin[codes]] // SIZE

    # What comes and leaves

    def note_available(
        self, codes: NDArray[np.int32], slots: NDArray[np.intp], index: int, first: NDArray[np.int64]
    ) -> None:
        """Note that messages are available.

        Args:
            codes: the codes of their groups.
            slots: their slots, ascending.
            index: index of their segment.
            first: by code, index of the first segment that may hold some.
        """
        base = index * SIZE
        if len(slots) and base + int(slots[0]) < self.behind:
            self.forget(codes[slots + base < self.until[codes]], first)
        self.at[codes] = np.minimum(self.at[codes], index)

    def note_left(self, codes: NDArray[np.int32], slots: NDArray[np.intp], base: int, first: NDArray[np.int64]) -> None:
        """Note that messages are not available any more, though they were not delivered. See `note_available`."""
        self.forget(codes[slots + base < self.until[codes]], first)

    def forget(self, codes: NDArray[Any], first: NDArray[np.int64]) -> None:
        """Forget the messages of groups. They are searched for from their first segment on."""
        if len(codes):
            self.begin[codes] = self.stop[codes]
            self.until[codes] = 0
            self.stays[codes] = END
            segments = first[codes]
            self.at[codes] = np.where(segments == NOBODY, END, segments)

    def clear(self, first: NDArray[np.int64]) -> None:
        """Forget the messages of all groups."""
        for codes in self._looked:
            self.forget(codes, first)
        self._looked.clear()
        self.places, self._groups = _NONE, _NO_GROUPS
        self.behind = self.expected = self.uses = 0
        self.min_deadline_ms = NEVER

    def begin_search(self, first: NDArray[np.int64], now_ms: int) -> None:
        """Begin to choose messages at an instant, ms since the epoch; negative = deadlines do not count."""
        if now_ms >= self.min_deadline_ms or now_ms < self.latest_ms or len(self) >= _MOST or self.expected:
            self.clear(first)
        self.latest_ms = now_ms
        self.uses += 1

    # What is found

    def add(
        self,
        codes: NDArray[np.intp],
        at: NDArray[np.int64],
        found: list[FoundIn],
    ) -> None:
        """Add messages that were found.

        Args:
            codes: the codes of the groups that were searched for, and of no others.
            at: for each, the first segment that must be searched for more.
            found: the messages by segment; those of a group ascend, and are behind those known.
        """
        self.at[codes] = at
        self._looked.append(codes)
        if len(self._looked) > _MOST_LOOKED:
            self._looked = [np.unique(np.concatenate(self._looked))]
        self.behind = max(self.behind, int(self.until[codes].max(initial=0)))
        self.uses = 0
        if not found:
            return
        parts = [self._rest(), *found]
        sizes = self._sizes
        for part in parts:
            sizes[part.groups] += part.counts
        few = len(sizes) <= _FEW_CODES
        groups = np.flatnonzero(sizes) if few else np.unique(np.concatenate([part.groups for part in parts]))
        counts = sizes[groups]
        ends = counts.cumsum()
        sizes[groups] = 0
        self.begin[groups] = self.stop[groups] = ends - counts
        self._groups, self.places = groups, np.empty(int(ends[-1]), np.int64)
        for part in parts:
            self.places[numbers_of(self.stop[part.groups], part.counts)] = part.places
            self.stop[part.groups] += part.counts

    def _rest(self) -> FoundIn:
        """Remove and return the messages that are not delivered yet."""
        groups = self._groups
        begins, counts = self.begin[groups], self.stop[groups] - self.begin[groups]
        self.begin[groups] = self.stop[groups] = 0
        return FoundIn(groups, counts, self.places[numbers_of(begins, counts)])
