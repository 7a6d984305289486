"""Record names: a list of all records' names, so that queries and deletes can work in portions.

A dictionary can be gone through in one go only: it must not grow meanwhile. A list grows at its end, and whoever goes
through it knows where it ended. A record that leaves stays on it until it is written anew; one that comes back takes
its old place, so no name stands there twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_SLACK: Final = 65_536
"""How many names of records that have left may always remain."""


class Walk:
    """A way through some names, in portions.

    Args:
        journal_keys: the keys; what is appended to them later is not on the way.
    """

    __slots__ = ("_at", "_end", "_names")

    def __init__(self, journal_keys: Sequence[bytes]) -> None:
        self._names = journal_keys
        self._at = 0
        self._end = len(journal_keys)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left."""
        return self._at >= self._end

    @property
    def left(self) -> int:
        """How many names are left."""
        return self._end - self._at

    def take(self, most: int) -> Sequence[bytes]:
        """Return the next names, so many at most; none at the end."""
        first = self._at
        self._at = min(first + most, self._end)
        return self._names[first : self._at]

    def end(self) -> None:
        """Go no further."""
        self._names = ()
        self._at = self._end = 0


class RecordNames:
    """Names of the records of one shard.

    Args:
        entries: the records by their names.
    """

    __slots__ = ("_entries", "_left", "_names")

    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self._entries = entries
        self._names: list[bytes] = []
        self._left: set[bytes] = set()
        """Names on the list whose records have left."""

    def add(self, journal_key: bytes) -> None:
        """Add a record that was not there."""
        if journal_key in self._left:
            self._left.discard(journal_key)
        else:
            self._names.append(journal_key)

    def add_all(self, journal_keys: Sequence[bytes]) -> None:
        """Add records that were not there."""
        back = self._left.intersection(journal_keys) if self._left else ()
        if back:
            self._left.difference_update(back)
            journal_keys = [journal_key for journal_key in journal_keys if journal_key not in back]
        self._names.extend(journal_keys)

    def discard(self, journal_keys: Sequence[bytes]) -> None:
        """Note that records have left: they are no longer among the entries."""
        self._left.update(journal_keys)
        if len(self._left) > len(self._entries) + _SLACK:
            self.rewrite()

    def rewrite(self) -> None:
        """Write it anew; whoever is on the way through the old list goes on with that."""
        self._names = list(self._entries)
        self._left = set()

    def walk(self) -> Walk:
        """Begin a way through all names that are on it now; of some the record has left."""
        return Walk(self._names)
