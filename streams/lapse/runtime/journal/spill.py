"""Holds the records of a changelog during a restore, without keeping all of them in memory (Q16)."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final

from lapse.runtime.journal.spill_file import SpillFile

_LARGE: Final = 2_048


class Spill(MutableMapping[bytes, bytes]):
    """A mapping that keeps small values in memory, and large ones on disk. Large values are segments.

    Args:
        directory: directory of the file for large values, which is created with the first one.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._small: dict[bytes, bytes] = {}
        self._large: SpillFile[bytes] | None = None

    def __getitem__(self, key: bytes) -> bytes:
        value = self._small.get(key)
        if value is not None:
            return value
        if self._large is None:
            raise KeyError(key)
        return self._large[key]

    def __setitem__(self, key: bytes, value: bytes) -> None:
        if len(value) < _LARGE:
            if self._large is not None:
                self._large.pop(key, None)
            self._small[key] = value
            return
        self._small.pop(key, None)
        if self._large is None:
            self._large = SpillFile(self._directory)
        self._large[key] = value

    def __delitem__(self, key: bytes) -> None:
        if key in self._small:
            del self._small[key]
        elif self._large is not None:
            del self._large[key]
        else:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return key in self._small or (self._large is not None and key in self._large)

    def __iter__(self) -> Iterator[bytes]:
        yield from self._small
        if self._large is not None:
            yield from self._large

    def __len__(self) -> int:
        return len(self._small) + (0 if self._large is None else len(self._large))

    def clear(self) -> None:
        """Remove everything, and close the file."""
        self._small.clear()
        if self._large is not None:
            self._large.close()
            self._large = None
