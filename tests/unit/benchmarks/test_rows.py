"""Every row names programs that there are, and arguments that they have."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from benchmarks.comparison.load import QUICK
from benchmarks.comparison.row import Contestant
from benchmarks.comparison.rows import rows

ROOT = Path(__file__).parents[3] / "benchmarks"
CONTESTANTS = {(one.module, *sorted(one.arguments)): one for row in rows(QUICK) for one in row.contestants}


@pytest.mark.parametrize("contestant", CONTESTANTS.values(), ids=[one[0] for one in CONTESTANTS])
def test_a_contestant_is_a_program_with_these_arguments(contestant: Contestant) -> None:
    text = (ROOT / f"{contestant.module.replace('.', '/')}.py").read_text("utf-8")
    (run,) = (part for part in ast.parse(text).body if isinstance(part, ast.FunctionDef) and part.name == "run")
    taken = {one.arg for one in (*run.args.args, *run.args.kwonlyargs)}
    assert contestant.arguments.keys() <= taken
    assert 'if __name__ == "__main__":' in text
