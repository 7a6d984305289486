"""The tool of `make mutation`: what it changes, and that it changes nothing else."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mutation
from support.suite.mutant import mutants, sample

SOURCE = '''
"""A module."""
LIMIT: int = 3

def clamp(value: int, low: int = 0) -> int:
    """A docstring with 1 < 2."""
    if not value and low < LIMIT:
        return min(value, LIMIT)
    for one in range(value):
        if one:
            break
    seen.add(value)
    return value + low
'''


def found():
    return mutants("one", Path("one.py"), SOURCE)[0]


def test_every_operator_finds_what_it_changes_and_leaves_annotations_and_docstrings_alone() -> None:
    changes = {(one.kind, one.was, one.now) for one in found()}
    assert changes == {
        ("constant", "3", "4"),
        ("constant", "3", "2"),
        ("constant", "0", "1"),
        ("constant", "0", "-1"),
        ("condition", "if not value and low < LIMIT:     ...", "if not (not value and low < LIMIT):     ..."),
        ("boolean", "not value and low < LIMIT", "not value or low < LIMIT"),
        ("boolean", "not value", "value"),
        ("comparison", "low < LIMIT", "low <= LIMIT"),
        ("comparison", "low < LIMIT", "low > LIMIT"),
        ("return None", "return min(value, LIMIT)", "return None"),
        ("min/max", "min(value, LIMIT)", "max(value, LIMIT)"),
        ("condition", "if one:     ...", "if not one:     ..."),
        ("break", "break", "continue"),
        ("deletion", "seen.add(value)", "pass"),
        ("return None", "return value + low", "return None"),
        ("arithmetic", "value + low", "value - low"),
    }


def test_a_mutant_is_one_change_and_knows_which_function_it_is_in() -> None:
    for number, one in enumerate(found()):
        some, tree = mutants("one", Path("one.py"), SOURCE)
        same = some[number]
        assert same.key == one.key
        same.apply()
        before, after = ast.unparse(ast.parse(SOURCE)).splitlines(), ast.unparse(tree).splitlines()
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
        assert one.replaced == ("" if one.was in ("3", "0") else "clamp")
        compile(tree, "one.py", "exec")


def test_the_sample_is_always_the_same_and_survives_a_move_of_lines() -> None:
    moved, _ = mutants("one", Path("one.py"), "\n\n\n" + SOURCE)
    first, second = sample(found(), 5), sample(moved, 5)
    assert len(first) == 5
    assert [one.key for one in first] == [one.key for one in second]
    assert all(a.line + 3 == b.line for a, b in zip(first, second, strict=True))


@pytest.mark.slow
def test_the_tests_are_collected_as_the_tool_collects_them() -> None:
    """It forks by itself, and leaves xdist out: a hook of ours that needs xdist ended it at its start."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--collect-only"]
    done = subprocess.run(
        [*command, f"--rootdir={root}", "tests/unit/core/test_days.py"], cwd=root, capture_output=True
    )
    assert done.returncode == 0, done.stdout.decode()[-2000:]


@pytest.mark.slow
def test_every_mutant_that_is_listed_is_one_of_the_code_as_it_is() -> None:
    """What moved or changed is tried again, and listed anew if no test notices it."""
    entries = tomllib.loads(mutation.LISTED.read_text())["equivalent"]
    files = {entry["where"].partition(" ")[0] for entry in entries}
    there = {one.key: one for core in mutation.TESTS for one in mutation.find(core, files)[0]}
    assert [entry for entry in entries if entry["key"] not in there] == []
    assert len({entry["key"] for entry in entries}) == len(entries)
    for entry in entries:
        one = there[entry["key"]]
        line = one.path.read_text().splitlines()[one.line - 1].strip()
        found = (f"{one.path.name} {one.function}".strip(), line, one.was, one.now)
        assert found == (entry["where"], entry["line"], entry["was"], entry["now"])


@pytest.mark.slow
def test_a_sample_of_a_module_or_folder_is_of_its_own_mutants() -> None:
    """It was those of a sample of all, which are four of most modules."""
    group_files = {path.name for path in (mutation.CORE / "queue/groups").iterdir()}
    found, _ = mutation.find("queue", group_files | {"shard.py", "step.py"})
    ahead = mutation.named_by("found_ahead.py", found)
    assert {one.path.name for one in ahead} == {"found_ahead.py"}
    assert len(sample(ahead, 60)) > 50
    of_folder = mutation.named_by("groups/", found)
    assert {one.path.parent.name for one in of_folder} == {"groups"}
    assert len(mutation.named_by("", found)) == len(found)
