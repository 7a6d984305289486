"""Groups the tests that one process runs in a parallel run: those of a file, and those that share a Spark session.

There are two sessions in two processes: for letters, and for all else. Each takes half a minute of CPU to start and
to load what it needs. With one session, its process would be at work when the others have ended.
xdist's own groups do not work here: with pytest 9.2, marks of xdist 3.8 reach no scheduler, without an error.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK = ("spark", "spark: letters")
_TAKES_SPARK = re.compile(r"^def \w+\([^)]*\bspark\b", re.MULTILINE)
_ON_LETTERS = re.compile("monitor|redrive|delta|dead_letter")


@cache
def group_of(file: Path) -> str:
    """Return the group of a file's tests."""
    if not _TAKES_SPARK.search(file.read_text("utf-8")):
        return str(file)
    return SPARK[1] if _ON_LETTERS.search(file.name) else SPARK[0]


class Grouped(LoadScopeScheduling):
    """Hands a group of tests to one process, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._root = config.rootpath

    def _split_scope(self, nodeid: str) -> str:
        return group_of(self._root / nodeid.partition("::")[0])
