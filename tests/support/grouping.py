"""Which tests stay together in a parallel run: those of a file, and all that share the Spark session.

xdist's own groups are of no use here: with pytest 9.2, marks of xdist 3.8 reach no scheduler, and nothing says so.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SPARK = "spark"
_TAKES_SPARK = re.compile(r"^def \w+\([^)]*\bspark\b", re.MULTILINE)


@cache
def group_of(file: Path) -> str:
    """The group of a file's tests."""
    return SPARK if _TAKES_SPARK.search(file.read_text("utf-8")) else str(file)


class Grouped(LoadScopeScheduling):
    """Hands a group of tests to one process, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._root = config.rootpath

    def _split_scope(self, nodeid: str) -> str:
        return group_of(self._root / nodeid.partition("::")[0])
