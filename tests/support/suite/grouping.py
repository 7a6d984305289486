"""Groups the tests that one process runs in a parallel run: those of a file, and those that share a Spark session.

There are three sessions in three processes: for ledgers, for monitors and redrives, and for all else. Each takes 15 s
of CPU to start. With two sessions, one process was at work for a whole run, and others had ended before.
xdist's own groups do not work here: with pytest 9.2, marks of xdist 3.8 reach no scheduler, without an error.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK = ("spark", "spark: ledgers", "spark: monitors and redrives")
_TAKES_SPARK = re.compile(r"^def \w+\([^)]*\bspark\b", re.MULTILINE)
_IN_THIRD = re.compile("monitor|redrive")


@cache
def group_of(file: Path) -> str:
    """Return the group of a file's tests."""
    if not _TAKES_SPARK.search(file.read_text("utf-8")):
        return str(file)
    return SPARK[1] if "ledger" in file.name else SPARK[2] if _IN_THIRD.search(file.name) else SPARK[0]


class Grouped(LoadScopeScheduling):
    """Hands a group of tests to one process, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._root = config.rootpath

    def _split_scope(self, nodeid: str) -> str:
        return group_of(self._root / nodeid.partition("::")[0])
