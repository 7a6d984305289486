"""What a shard is handling now, noted outside the process, to find records that stop the worker repeatedly.

A record or a command may end the process in a way that no handler sees, such as a fault in a decoder's C code. Read
again at every start, it would do so for ever. So what is handed to a machine is noted first, a batch at a time, in a
file that is mapped into memory: it needs no write, and the kernel keeps it however the process ends.

A start that finds such a note takes those records one by one. A record under way at three deaths in a row, twice by
itself, is set aside. An ordinary kill does not meet the same record at the same instant three times.

Each shard has a note of its own. Shards that read the same records (C46) count their deaths together: the first of
them to begin after a death takes all their notes into account, and the others find what it concluded.
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

from lapse.runtime.shard.deaths import Aside, Deaths, Mark, Name
from lapse.runtime.tp import TP
from lapse.runtime.turns import OneByOne

logger = logging.getLogger(__name__)

_HOPELESS_DEATHS: Final = 5
"""A command that stops the worker even while it is refused is passed over without an answer."""

_SIZE: Final = 512
_NOTE: Final = struct.Struct(">8s?iqqH")
_SET: Final = 2


@functools.cache
def _own_token() -> bytes:
    """Token of this process; drawn when it is first asked for, so that a fork has another one."""
    return secrets.token_bytes(8)


class UnderWay:
    """What one shard is doing.

    Args:
        path: the entity's files, without shard and suffix; None = nothing is noted.
        shard: the shard's number.
        shards: how many shards read the same records (C46); 1 = this one alone.
        process: token of the process, eight bytes; None = of this one.
        turns: shared by the shards of a worker, whose first records may come in the same turn of the loop.
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
        self._aside: dict[Name, Aside] = {}

    def look(self, positions: Mapping[TP, int]) -> None:
        """Read what was under way when the process before ended, and draw the conclusions.

        Args:
            positions: next offset per source; what is before it was taken in.
        """
        if self._path is None:
            return
        deaths = Deaths.read(self._file)
        found = {shard: mark for shard in self._together if (mark := self._found(shard)) is not None}
        for mark in found.values():
            deaths.count(mark)
        if not found and deaths.looked != self._process.hex():
            deaths.ended_elsewhere()
        deaths.looked = self._process.hex()
        deaths.begin(self._shard, positions)
        self._suspects = [mark for mark in deaths.suspects if self._shard in mark.ahead]
        self._aside = {name: one for name, one in deaths.aside.items() if self._shard in one.mark.ahead}
        self._remember(deaths, found)

    # What is under way

    async def ready(self) -> None:
        """Have a file to note in. Fifty shards that make theirs in one turn keep all others waiting (C90)."""
        if self._path is not None and self._map is None:
            await self._turns.turn()
            self._open()

    @contextlib.contextmanager
    def noted(self, topic: str, partition: int, first: int, last: int, again: bool = False) -> Iterator[None]:
        """Note what is under way until it is done; an error leaves the note, for it ends the process."""
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
        yield  # an error leaves the note: it ends the process
        mapped[0] = 0

    def is_suspect(self, topic: str, partition: int, first: int, last: int) -> bool:
        """Whether records are to be taken one by one."""
        if not self._suspects and not self._aside:
            return False
        if any(name[:2] == (topic, partition) and first <= name[2] <= last for name in self._aside):
            return True
        return any(
            mark.topic == topic and mark.partition == partition and mark.first <= last and first <= mark.last
            for mark in self._suspects
        )

    def is_set_aside(self, topic: str, partition: int, offset: int) -> bool:
        """Whether a record has stopped the worker too often."""
        return (topic, partition, offset) in self._aside

    def is_hopeless(self, topic: str, partition: int, offset: int) -> bool:
        """Whether a command stopped the worker even while it was refused."""
        found = self._aside.get((topic, partition, offset))
        return found is not None and found.deaths >= _HOPELESS_DEATHS

    def close(self) -> None:
        """Note nothing any more."""
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
            logger.warning("%s: %s; what stops the worker again and again cannot be told", note, error)
            self._path = None
        return self._map

    def _found(self, shard: int) -> Mark | None:
        """What a shard had under way when the process before ended; None if nothing was."""
        try:
            data = self._note(shard).read_bytes()
        except OSError:
            return None
        if len(data) < _SIZE or data[0] != _SET:
            return None
        process, again, partition, first, last, size = _NOTE.unpack_from(data, 1)
        if process == self._process:  # it is at work, in this process
            return None
        name = data[1 + _NOTE.size : 1 + _NOTE.size + size].decode("utf-8", "replace")
        return Mark(process.hex(), name, partition, first, last, again, frozenset(self._together))

    def _remember(self, deaths: Deaths, noted: Mapping[int, Mark]) -> None:
        try:
            deaths.write(self._file)
            for shard in noted:
                self._note(shard).unlink(missing_ok=True)  # what it said counts once
        except OSError as error:
            logger.warning("%s: %s; what stops the worker again and again cannot be told", self._file, error)


NOTHING_NOTED: Final = UnderWay()
"""Stands for it where nothing is noted."""
