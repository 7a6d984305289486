"""Notes outside the process what a shard is handling, to find records that stop the worker repeatedly.

A record or a command may end the process in a way that no handler sees, such as a fault in a decoder's C code. The
worker would read it again at every start, and end again. So each batch is noted before the machine gets it. The note is
in a file that is mapped into memory. It needs no write, and the kernel keeps it however the process ends.

A worker that finds such a note at its start takes those records one by one. A record is set aside after three deaths in
a row, the last two of them with this record alone. An ordinary kill does not meet the same record three times.

Each shard has its own note. Shards that read the same records (C46) count their deaths together. The first shard that
begins after a death evaluates all notes, and the others read its results.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import mmap
import secrets
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from lapse.runtime.event_loop_turns import OneByOne
from lapse.runtime.shard.deaths import Deaths, Mark, Name, SetAside
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)

_HOPELESS_DEATHS: Final = 5
"""How many deaths a command may cause before it is skipped without an answer. It stops the worker even while it is
refused."""

_SIZE: Final = 512
_NOTE: Final = struct.Struct(">8s?iqqH")
_SET: Final = 2


@functools.cache
def _own_token() -> bytes:
    """Return the token of this process. It is drawn at the first call, so that a fork gets another one."""
    return secrets.token_bytes(8)


class UnderWay:
    """Notes what one shard is handling.

    Args:
        path: path of the entity's files, without shard and suffix; None to note nothing.
        shard: the shard's number.
        shards: how many shards read the same records (C46); 1 if only this one does.
        process: token of the process, eight bytes; None for this process.
        turns: shared by the shards of a worker. The first records of many may arrive in one turn of the loop.
    """

    def __init__(
        self,
        path: Path | None = None,
        shard: int = 0,
        shards: int = 1,
        process: bytes | None = None,
        turns: OneByOne | None = None,
    ) -> None:
        self._path = path
        self._turns = turns or OneByOne()
        self._shard = shard
        self._together = range(shards) if shards > 1 else range(shard, shard + 1)
        self._process = process or (b"" if path is None else _own_token())
        self._map: mmap.mmap | None = None
        self._suspects: list[Mark] = []
        self._aside: dict[Name, SetAside] = {}

    def look(self, positions: Mapping[TP, int]) -> None:
        """Find out what the process before was handling when it ended, and which records to suspect or set aside.

        Args:
            positions: next offset per source; records before it were taken in.
        """
        if self._path is None:
            return
        deaths = Deaths.read(self._file)
        found = {shard: mark for shard in self._together if (mark := self._found(shard)) is not None}
        for mark in found.values():
            deaths.count(mark)
        if not found and deaths.looked != self._process.hex():
            deaths.forget_reread()
        deaths.looked = self._process.hex()
        deaths.begin(self._shard, positions)
        self._suspects = [mark for mark in deaths.suspects if self._shard in mark.ahead]
        self._aside = {name: one for name, one in deaths.aside.items() if self._shard in one.mark.ahead}
        self._remember(deaths, found)

    # What is under way

    async def ready(self) -> None:
        """Create and map the note's file, if that is not done yet.

        Each shard waits for a turn: if fifty shards did this in one turn of the loop, all others would wait (C90).
        """
        if self._path is not None and self._map is None:
            await self._turns.turn()
            self._open()

    @contextlib.contextmanager
    def noted(self, topic: str, partition: int, first: int, last: int, again: bool = False) -> Iterator[None]:
        """Note records while they are handled. An error leaves the note in place, because it ends the process."""
        if self._path is None:
            yield
            return
        mapped = self._map or self._open()
        if mapped is None:
            yield
            return
        name = topic.encode()
        note = _NOTE.pack(self._process, again, partition, first, last, len(name)) + name
        mapped[1 : 1 + len(note)] = note
        mapped[0] = _SET
        yield  # an error leaves the note, because it ends the process
        mapped[0] = 0

    def is_suspect(self, topic: str, partition: int, first: int, last: int) -> bool:
        """Return whether these records must be taken one by one."""
        if not self._suspects and not self._aside:
            return False
        if any(name[:2] == (topic, partition) and first <= name[2] <= last for name in self._aside):
            return True
        return any(
            mark.topic == topic and mark.partition == partition and mark.first <= last and first <= mark.last
            for mark in self._suspects
        )

    def is_set_aside(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether a record has stopped the worker too often."""
        return (topic, partition, offset) in self._aside

    def is_hopeless(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether a command stopped the worker even while it was refused."""
        found = self._aside.get((topic, partition, offset))
        return found is not None and found.deaths >= _HOPELESS_DEATHS

    def close(self) -> None:
        """Stop noting."""
        if self._map is not None:
            self._map.close()
            self._map = None

    # Files

    @property
    def _file(self) -> Path:
        return self._beside("" if len(self._together) > 1 else f"-{self._shard}", ".deaths")

    def _note(self, shard: int) -> Path:
        return self._beside(f"-{shard}", ".under-way")

    def _beside(self, shard: str, suffix: str) -> Path:
        assert self._path is not None
        return self._path.with_name(f"{self._path.name}{shard}{suffix}")  # an entity's name may have dots

    def _open(self) -> mmap.mmap | None:
        note = self._note(self._shard)
        try:
            try:
                file = note.open("w+b")
            except FileNotFoundError:
                note.parent.mkdir(parents=True, exist_ok=True)
                file = note.open("w+b")
            with file:
                file.truncate(_SIZE)
                self._map = mmap.mmap(file.fileno(), _SIZE)
        except OSError as error:
            logger.warning("%s: %s; records that stop the worker again and again cannot be found", note, error)
            self._path = None
        return self._map

    def _found(self, shard: int) -> Mark | None:
        """Return what a shard was handling when the process before ended; None if nothing."""
        try:
            data = self._note(shard).read_bytes()
        except OSError:
            return None
        if len(data) < _SIZE or data[0] != _SET:
            return None
        process, again, partition, first, last, size = _NOTE.unpack_from(data, 1)
        if process == self._process:  # the shard runs in this process, so nothing ended
            return None
        name = data[1 + _NOTE.size : 1 + _NOTE.size + size].decode("utf-8", "replace")
        return Mark(process.hex(), name, partition, first, last, again, frozenset(self._together))

    def _remember(self, deaths: Deaths, noted: Mapping[int, Mark]) -> None:
        try:
            deaths.write(self._file)
            for shard in noted:
                self._note(shard).unlink(missing_ok=True)  # each note counts once
        except OSError as error:
            logger.warning("%s: %s; records that stop the worker again and again cannot be found", self._file, error)


NOTHING_NOTED: Final = UnderWay()
"""For shards that note nothing."""
