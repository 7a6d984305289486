"""Record names: a list of all records' journal keys, so that queries and deletions can work in portions.

A dictionary must not grow during an iteration. A list grows only at its end, so an iteration can stop at the former
end. The name of a removed record stays on the list until that is rewritten. A record that comes back keeps its old
entry, so no name is on the list twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_SLACK: Final = 65_536
"""How many names of removed records may remain in any case."""


class Walk:
    """An iteration over names, in portions.

    Args:
        journal_keys: the names; names appended later are not visited.
    """

    __slots__ = ("_at", "_end", "_names")

    def __init__(self, journal_keys: Sequence[bytes]) -> None:
        self._names = journal_keys
        self._at = 0
        self._end = len(journal_keys)

    @property
    def is_over(self) -> bool:
        """Whether no name is left."""
        return self._at >= self._end

    @property
    def left(self) -> int:
        """How many names are left."""
        return self._end - self._at

    def take(self, most: int) -> Sequence[bytes]:
        """Return at most `most` next names; none at the end."""
        first = self._at
        self._at = min(first + most, self._end)
        return self._names[first : self._at]

    def put_back(self, count: int) -> None:
        """Put the last `count` of the taken names back."""
        self._at -= count

    def end(self) -> None:
        """End the iteration, and release the names."""
        self._names = ()
        self._at = self._end = 0


class RecordNames:
    """The journal keys of one shard's records.

    Args:
        entries: the records by journal key.
    """

    __slots__ = ("_entries", "_left", "_names")

    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self._entries = entries
        self._names: list[bytes] = []
        self._left: set[bytes] = set()
        """Names on the list whose records were removed."""

    def add(self, journal_key: bytes) -> None:
        """Add a new record's name."""
        if journal_key in self._left:
            self._left.discard(journal_key)
        else:
            self._names.append(journal_key)

    def add_all(self, journal_keys: Sequence[bytes]) -> None:
        """Add new records' names."""
        back = self._left.intersection(journal_keys) if self._left else ()
        if back:
            self._left.difference_update(back)
            journal_keys = [journal_key for journal_key in journal_keys if journal_key not in back]
        self._names.extend(journal_keys)

    def discard(self, journal_keys: Sequence[bytes]) -> None:
        """Note that records were removed, and are no longer among the entries."""
        self._left.update(journal_keys)
        if len(self._left) > len(self._entries) + _SLACK:
            self.rewrite()

    def rewrite(self) -> None:
        """Rewrite the list. Iterations in progress go on with the old one."""
        self._names = list(self._entries)
        self._left = set()

    def walk(self) -> Walk:
        """Begin an iteration over all current names, including those of removed records."""
        return Walk(self._names)
