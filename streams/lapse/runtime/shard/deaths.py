"""Counts the deaths of worker processes, with the records being handled then, in a file read at every start (X7).

Shards that read the same records (C46) share one file, so that a death counts once, whichever shard was at work. Each
shard passes records on its own. A record leaves the file once every shard has passed it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)

_MOST_DEATHS: Final = 3
_MOST_KEPT: Final = 100
STOPPED: Final = "stopped the worker three times"
"""The fault text of a record that was set aside."""

Name = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class Mark(NamedTuple):
    """The records that were under way when a process ended.

    Attributes:
        process: token of the process, so that its death counts once.
        topic: topic of the records.
        partition: their partition.
        first: offset of the first one.
        last: offset of the last one.
        again: whether they were taken in before, and were only read again.
        ahead: numbers of the shards that have not passed the records.
    """

    process: str
    topic: str
    partition: int
    first: int
    last: int
    again: bool
    ahead: frozenset[int] = frozenset()

    @property
    def is_single(self) -> bool:
        """Whether it is a single record."""
        return self.first == self.last

    def meets(self, other: Mark) -> bool:
        """Return whether both have a record in common."""
        same = self.topic == other.topic and self.partition == other.partition and self.again == other.again
        return same and self.first <= other.last and other.first <= self.last

    def passed(self, shard: int, positions: Mapping[TP, int]) -> Mark:
        """Return the mark after a shard begins at these positions.

        A topic that the shard does not read counts as passed.
        """
        if self.again or positions.get(TP(self.topic, self.partition), self.last + 1) <= self.last:
            return self
        return self._replace(ahead=self.ahead - {shard})

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.first}" + ("" if self.is_single else f"-{self.last}")


class SetAside(NamedTuple):
    """A record that is set aside.

    Attributes:
        mark: the record, and the last process that ended with it.
        deaths: how often a process ended with it.
    """

    mark: Mark
    deaths: int


class Deaths:
    """The deaths that the shards of one entity know of.

    Attributes:
        suspects: records to be taken one by one, in the order of the deaths.
        row: tokens of consecutive processes that ended with the same records.
        aside: the records that are set aside.
        last: the last process whose death was counted.
        looked: the last process that read the file.
    """

    def __init__(self) -> None:
        self.suspects: list[Mark] = []
        self.row: list[str] = []
        self.aside: dict[Name, SetAside] = {}
        self.last = ""
        self.looked = ""

    def count(self, mark: Mark) -> None:
        """Count a death. The third in a row with one record, the last two with it alone, sets the record aside."""
        if mark.process == self.last:
            return
        self.last = mark.process
        name = (mark.topic, mark.partition, mark.first)
        if mark.is_single and name in self.aside:
            self.aside[name] = SetAside(mark, self.aside[name].deaths + 1)
            return
        in_row = [one for one in self.suspects if one.process in self.row and one.meets(mark)] + [mark]
        self.row = [one.process for one in in_row]
        self.suspects.append(mark)
        logger.warning("%s was under way when the previous process ended; its records are now taken one by one", mark)
        if len(in_row) >= _MOST_DEATHS and all(one.is_single for one in in_row[-2:]):
            self.aside[name] = SetAside(mark, len(in_row))
            self.row = []
            logger.error("%s %s: it is set aside", mark, STOPPED)

    def forget_reread(self) -> None:
        """Forget records that were only read again: the process before ended for another reason."""
        self.suspects = [mark for mark in self.suspects if not mark.again]
        self.aside = {name: one for name, one in self.aside.items() if not one.mark.again}
        self._tidy()

    def begin(self, shard: int, positions: Mapping[TP, int]) -> None:
        """Note that a shard begins at these positions; forget records that every shard has passed.

        Passed records need no note. A topic that is created again has other records at their offsets.
        """
        self.suspects = [mark.passed(shard, positions) for mark in self.suspects]
        begun = {name: SetAside(one.mark.passed(shard, positions), one.deaths) for name, one in self.aside.items()}
        self.suspects = [mark for mark in self.suspects if mark.ahead]
        self.aside = {name: one for name, one in begun.items() if one.mark.ahead}
        self._tidy()

    def _tidy(self) -> None:
        left = {mark.process for mark in self.suspects}
        self.row = [process for process in self.row if process in left]
        self.suspects = self.suspects[-_MOST_KEPT:] if self.row or self.aside else []
        self.aside = dict(list(self.aside.items())[-_MOST_KEPT:])

    # The file

    @classmethod
    def read(cls, path: Path) -> Deaths:
        """Read what earlier processes left; return an empty object if the file is missing or damaged."""
        found = cls()
        try:
            known: dict[str, Any] = json.loads(path.read_text("utf-8"))
            found.suspects = [_mark(one) for one in known["suspects"]]
            asides = [SetAside(_mark(one), deaths) for one, deaths in known["aside"]]
            found.aside = {(one.mark.topic, one.mark.partition, one.mark.first): one for one in asides}
            found.row = [str(process) for process in known["row"]]
            found.last, found.looked = str(known["last"]), str(known["looked"])
        except (OSError, ValueError, KeyError, TypeError):
            return cls()
        return found

    def write(self, path: Path) -> None:
        """Replace the file; remove it if there is nothing to remember."""
        if not self.suspects and not self.aside:
            path.unlink(missing_ok=True)
            return
        known = {
            "last": self.last,
            "looked": self.looked,
            "row": self.row,
            "suspects": [_plain(mark) for mark in self.suspects],
            "aside": [[_plain(one.mark), one.deaths] for one in self.aside.values()],
        }
        written = path.with_name(path.name + ".new")
        written.write_text(json.dumps(known), "utf-8")
        written.replace(path)


def _plain(mark: Mark) -> list[Any]:
    return [*mark[:-1], sorted(mark.ahead)]


def _mark(known: Sequence[Any]) -> Mark:
    return Mark._make([*known[:-1], frozenset(known[-1])])
