"""Turn front: of very many waiting groups those whose turn comes first, so that a delivery looks at few (Q25)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SIZE: Final = 8_192
"""How many groups a front has at first. It is worth its while from twice this number of waiting groups on."""

_NONE: Final = np.zeros(0, np.intp)


class TurnFront:
    """Some waiting groups, among them all that come before a bound.

    A group's next tag and its first segment only become greater, unless the group changes: its first message comes, or
    one comes back that was leased or delayed. So groups behind the bound stay there, and those that change join the
    front.

    Attributes:
        bound: a tag, and the index of a segment. Each competing group outside the front has a greater tag, or the same
            one and no message in an earlier segment. None = there is no front, and all groups must be looked at.
        codes: the codes of the groups in the front, each once; some of them may not compete.
    """

    def __init__(self) -> None:
        self.bound: tuple[int, int] | None = None
        self.codes = _NONE
        self._belongs = np.zeros(0, np.bool_)

    def build(self, codes: NDArray[np.intp], starts: NDArray[np.int64], segments: NDArray[np.int64]) -> None:
        """Choose a front, if there are very many groups.

        Args:
            codes: the codes of all groups that compete.
            starts: the tag with which each is served next.
            segments: index of the first segment of each.
        """
        self.forget()
        if len(codes) < 2 * _SIZE:
            return
        tag = int(starts.min())
        if np.count_nonzero(starts == tag) < _SIZE:
            tag = int(np.partition(starts, _SIZE - 1)[_SIZE - 1])
        earlier, alike = starts < tag, starts == tag
        wanted = _SIZE - int(np.count_nonzero(earlier))
        of_alike = segments[alike]
        lowest = int(of_alike.min())
        behind = lowest + 1 + int(np.searchsorted(np.bincount(of_alike - lowest).cumsum(), wanted))
        self.bound = tag, behind
        self.codes = codes[earlier | (alike & (segments < behind))]
        self._belongs = np.zeros(int(codes.max()) + 1, np.bool_)
        self._belongs[self.codes] = True

    def add(self, codes: NDArray[Any]) -> None:
        """Let groups join that have changed, so that they may come before the bound."""
        if self.bound is None:
            return
        codes = np.unique(codes)
        highest = int(codes[-1])
        if highest >= len(self._belongs):
            self._belongs = np.concatenate((self._belongs, np.zeros(highest + 1, np.bool_)))
        new = codes[~self._belongs[codes]]
        if not len(new):
            return
        if len(self.codes) + len(new) > 4 * _SIZE:
            self.forget()
            return
        self._belongs[new] = True
        self.codes = np.concatenate((self.codes, new.astype(np.intp)))

    def forget(self) -> None:
        """Forget the front."""
        self.bound, self.codes = None, _NONE
