"""One event loop for the many short coroutines of the tests: a new loop for each costs more than most of them."""

import asyncio
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. It fails if a task is left behind, which would run in the next test."""
    runner = _runner()
    result = runner.run(coroutine)
    left = asyncio.all_tasks(runner.get_loop())
    assert not left, f"the coroutine leaves tasks behind: {left}"
    return result
