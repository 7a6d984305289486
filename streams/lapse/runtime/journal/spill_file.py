"""The spill store on disk: values by key in a file without a name (Q16).

Everything in it is also in the changelog, or derived from that. So it is never synced, and is created anew at each
take-over. Since the file has no name, no other worker can open it, and the system frees it however the process ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable, Iterator, MutableMapping
from pathlib import Path
from typing import Final, Generic, TypeVar

_BLOCK: Final = 4096

Key = TypeVar("Key", bound=Hashable)


class SpillFile(MutableMapping[Key, bytes], Generic[Key]):
    """A mapping whose values are on disk.

    Args:
        directory: directory of the file, created if it does not exist.

    Raises:
        SpillError: the file cannot be created, or later written or read.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: dict[Key, tuple[int, int]] = {}
        self._holes: dict[int, list[int]] = {}
        self._end = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  # closed by `close`
        except OSError as error:
            raise SpillError(directory, error) from error

    def __getitem__(self, key: Key) -> bytes:
        at, size = self._places[key]
        try:
            data = os.pread(self._file.fileno(), size, at)
        except OSError as error:
            raise SpillError(self._directory, error) from error
        if len(data) != size:
            raise SpillError(self._directory, OSError(f"{size} bytes were written, {len(data)} can be read"))
        return data

    def __setitem__(self, key: Key, data: bytes | memoryview) -> None:
        room = _room(len(data))
        known = self._places.get(key)
        if known is not None and _room(known[1]) == room:
            at = known[0]
        else:
            self.pop(key, None)
            holes = self._holes.get(room)
            if holes:
                at = holes.pop()
            else:
                at, self._end = self._end, self._end + room
        self._places[key] = at, len(data)
        try:
            written = os.pwrite(self._file.fileno(), data, at)
        except OSError as error:
            raise SpillError(self._directory, error) from error
        if written != len(data):
            raise SpillError(self._directory, OSError("no space left on device"))

    def __delitem__(self, key: Key) -> None:
        at, size = self._places.pop(key)
        self._holes.setdefault(_room(size), []).append(at)
        if not self._places:
            self.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[Key]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def clear(self) -> None:
        """Remove everything, and free the space on disk."""
        self._places.clear()
        self._holes.clear()
        self._end = 0
        if not self._file.closed:
            self._file.truncate(0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SpillError(OSError):
    """State cannot be kept on disk."""

    def __init__(self, directory: Path, error: OSError) -> None:
        super().__init__(
            f"{directory}: state cannot be kept there: {error.strerror or error}; make space, give [lapse] another "
            'data_dir, or give the queue state = "memory"'
        )


def _room(size: int) -> int:
    """Return the space on disk for a value: few different sizes, so that holes are reused.

    Less than a block is wasted, or less than a quarter of the size of a value beyond four blocks.
    """
    unit = max(_BLOCK, 1 << (size - 1).bit_length() >> 3) if size else _BLOCK
    return -(-size // unit) * unit or unit
