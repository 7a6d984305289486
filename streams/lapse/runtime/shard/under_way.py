"""What a shard is doing now, noted where it survives the process: which record stopped the worker again and again.

A record or a command may end the process in a way that no handler sees, such as a fault in a decoder's C code. Read
again at every start, it would do so for ever. So what is handed to a machine is noted first, a batch at a time, in a
file that is mapped into memory: it needs no write, and the kernel keeps it however the process ends.

A start that finds such a note takes those records one by one. A record under way at three deaths in a row, twice by
itself, is set aside. An ordinary kill does not meet the same record at the same instant three times.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from faust.types import TP

logger = logging.getLogger(__name__)

_MOST_DEATHS: Final = 3
_HOPELESS_DEATHS: Final = 5
"""A command that stops the worker even while it is refused is passed over without an answer."""

_SIZE: Final = 512
_NOTE: Final = struct.Struct(">?iqqH")
_MOST_KEPT: Final = 100
STOPPED: Final = "stopped the worker three times"
"""What is told of a record that was set aside."""


class Mark(NamedTuple):
    """What was under way.

    Attributes:
        topic: the records' topic.
        partition: their partition.
        first: offset of the first one.
        last: offset of the last one.
        again: whether they were taken in before, and are only looked at again.
    """

    topic: str
    partition: int
    first: int
    last: int
    again: bool

    def meets(self, other: Mark) -> bool:
        """Whether the two have a record in common."""
        same = self.topic == other.topic and self.partition == other.partition and self.again == other.again
        return same and self.first <= other.last and other.first <= self.last


class Aside(NamedTuple):
    """Why a record is set aside.

    Attributes:
        deaths: how often the process ended with it.
        again: whether it was taken in before, and was only looked at again.
    """

    deaths: int
    again: bool


Name = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class UnderWay:
    """What one shard is doing.

    Args:
        path: the file, without its suffix; None = nothing is noted.
        others: those of the entity's other shards, which may have to read the same records (C46).
    """

    def __init__(self, path: Path | None = None, others: Iterable[Path] = ()) -> None:
        self._path = path
        self._others = tuple(others)
        self._map: mmap.mmap | None = None
        self._marks: list[Mark] = []
        self._narrow: list[Mark] = []
        self._aside: dict[Name, Aside] = {}

    def look(self, positions: Mapping[TP, int]) -> None:
        """Read what was under way when the process before ended, and draw the conclusions.

        Args:
            positions: next offset per source; what is before it was taken in.
        """
        if self._path is None:
            return
        found = self._found()
        self._marks, self._narrow, self._aside = _remembered(self._path)
        for other in self._others:
            self._aside = _remembered(other)[2] | self._aside
        # What was passed, or has left, is done with: a topic that is created again has other records at its offsets.
        self._aside = {
            name: one
            for name, one in self._aside.items()
            if (found is not None if one.again else positions.get(TP(*name[:2]), 0) <= name[2])
        }
        if found is None:
            self._marks = [mark for mark in self._marks if not mark.again]
        else:
            self._note_death(found)
        ahead = {TP(*mark[:2]) for mark in (*self._marks, *self._narrow)} & positions.keys()
        over = {tp: positions[tp] for tp in ahead}
        self._marks = [mark for mark in self._marks if mark.again or over.get(TP(*mark[:2]), 0) <= mark.last]
        narrow = [*self._narrow, *self._marks]
        self._narrow = [mark for mark in narrow if mark.again or over.get(TP(*mark[:2]), 0) <= mark.last]
        self._narrow = self._narrow[-_MOST_KEPT:] if self._marks or self._aside else []
        self._remember()

    def _note_death(self, mark: Mark) -> None:
        name = (mark.topic, mark.partition, mark.first)
        shown = f"{mark.topic}:{mark.partition}:{mark.first}" + (f"-{mark.last}" if mark.last > mark.first else "")
        if mark.first == mark.last and name in self._aside:
            self._aside[name] = self._aside[name]._replace(deaths=self._aside[name].deaths + 1)
            return
        self._marks = [one for one in self._marks if one.meets(mark)] + [mark]
        logger.warning("%s was under way when the worker before ended; it is taken record by record now", shown)
        single = [one.first == one.last for one in self._marks[-2:]]
        if len(self._marks) >= _MOST_DEATHS and all(single):
            self._aside[name] = Aside(len(self._marks), mark.again)
            self._narrow += self._marks
            self._marks = []
            logger.error("%s %s: it is set aside", shown, STOPPED)

    # What is under way

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
        note = _NOTE.pack(again, partition, first, last, len(name)) + name
        mapped[1 : 1 + len(note)] = note
        mapped[0] = 1
        yield  # an error leaves the note: it ends the process
        mapped[0] = 0

    def is_suspect(self, topic: str, partition: int, first: int, last: int) -> bool:
        """Whether records are to be taken one by one."""
        if not self._narrow and not self._aside:
            return False
        if any(name[:2] == (topic, partition) and first <= name[2] <= last for name in self._aside):
            return True
        return any(
            mark.topic == topic and mark.partition == partition and mark.first <= last and first <= mark.last
            for mark in self._narrow
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

    def _open(self) -> mmap.mmap | None:
        assert self._path is not None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with _beside(self._path, _NOW).open("w+b") as file:
                file.truncate(_SIZE)
                self._map = mmap.mmap(file.fileno(), _SIZE)
        except OSError as error:
            logger.warning("%s: %s; what stops the worker again and again cannot be told", self._path, error)
            self._path = None
        return self._map

    def _found(self) -> Mark | None:
        """What was under way when the process before ended; None if nothing was."""
        assert self._path is not None
        try:
            data = _beside(self._path, _NOW).read_bytes()
        except OSError:
            return None
        if len(data) < _SIZE or data[0] != 1:
            return None
        again, partition, first, last, size = _NOTE.unpack_from(data, 1)
        name = data[1 + _NOTE.size : 1 + _NOTE.size + size]
        return Mark(name.decode("utf-8", "replace"), partition, first, last, again)

    def _remember(self) -> None:
        assert self._path is not None
        file, now = _beside(self._path, _BEFORE), _beside(self._path, _NOW)
        known = {
            "marks": self._marks,
            "narrow": self._narrow,
            "aside": [[*name, *one] for name, one in list(self._aside.items())[-_MOST_KEPT:]],
        }
        try:
            if any(known.values()):
                written = _beside(file, ".new")
                written.write_text(json.dumps(known), "utf-8")
                written.replace(file)
            else:
                file.unlink(missing_ok=True)
            now.unlink(missing_ok=True)  # what it said counts once
        except OSError as error:
            logger.warning("%s: %s; what stops the worker again and again cannot be told", file, error)


def _remembered(path: Path) -> tuple[list[Mark], list[Mark], dict[Name, Aside]]:
    """Marks, what is to be taken one by one, and what is set aside, as the processes before left them."""
    try:
        known: dict[str, Any] = json.loads(_beside(path, _BEFORE).read_text("utf-8"))
        aside = {(topic, partition, offset): Aside(*one) for topic, partition, offset, *one in known["aside"]}
        return [Mark(*mark) for mark in known["marks"]], [Mark(*mark) for mark in known["narrow"]], aside
    except (OSError, ValueError, KeyError, TypeError):
        return [], [], {}


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)  # an entity's name may have dots


_NOW: Final = ".under-way"
_BEFORE: Final = ".deaths"
NOTHING_NOTED: Final = UnderWay()
"""Stands for it where nothing is noted."""
