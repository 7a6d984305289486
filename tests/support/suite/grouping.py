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
from xdist.workermanage import WorkerController

SPARK = ("spark", "spark: letters")
_TAKES_SPARK = re.compile(r"^def \w+\([^)]*\bspark\b", re.MULTILINE)
_ON_LETTERS = re.compile("monitor|redrive|delta|dead_letter")
_FEW = 2
"""A process that still has so many tests gets further ones."""


@cache
def group_of(file: Path) -> str:
    """Return the group of a file's tests."""
    if not _TAKES_SPARK.search(file.read_text("utf-8")):
        return str(file)
    return SPARK[1] if _ON_LETTERS.search(file.name) else SPARK[0]


class Grouped(LoadScopeScheduling):
    """Hands a group of tests to one process, in the order in which they were collected.

    With each test, xdist counts all tests that a process has had, and it looks for a test's number among all tests: 1 s
    of CPU in `make test-fast`.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._root = config.rootpath
        self._places: dict[WorkerController, dict[str, int]] = {}

    def _split_scope(self, nodeid: str) -> str:
        return group_of(self._root / nodeid.partition("::")[0])

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        """Return the number of tests that a process still has, or some number above `_FEW` if it has more."""
        pending = 0
        for group in reversed(workload.values()):  # those before the last are mostly done
            pending += list(group.values()).count(False)
            if pending > _FEW:
                break
        return pending

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node not in self._places:
            self._places[node] = {nodeid: place for place, nodeid in enumerate(self.registered_collections[node])}
        scope, tests = self.workqueue.popitem(last=False)
        self.assigned_work.setdefault(node, {})[scope] = tests
        places = self._places[node]
        node.send_runtest_some([places[nodeid] for nodeid, completed in tests.items() if not completed])
