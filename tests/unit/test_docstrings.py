"""Docstrings name parameters and exceptions that there are."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Function = ast.FunctionDef | ast.AsyncFunctionDef
ENTRY = re.compile(r"    (\*?[A-Za-z_][\w.]*(?:(?:, | or )\*?[A-Za-z_][\w.]*)*):")


@cache
def trees() -> dict[str, ast.Module]:
    paths = [path for root in ("streams", "connectors") for path in (ROOT / root).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


def documented() -> Iterator[tuple[str, str, set[str] | None]]:
    """Each docstring with its file, and the parameters that belong to it; None = it has none of its own."""
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if not isinstance(node, Function | ast.ClassDef) or (text := ast.get_docstring(node)) is None:
                continue
            own = node if not isinstance(node, ast.ClassDef) else next(iter(_makers(node)), None)
            yield f"{file}: {node.name}", text, None if own is None else _parameters(own)


def _makers(kind: ast.ClassDef) -> list[ast.FunctionDef]:
    return [one for one in kind.body if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__")]


def _parameters(function: Function) -> set[str]:
    given = function.args
    rest = [one for one in (given.vararg, given.kwarg) if one is not None]
    return {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)}


def entries(text: str, heading: str) -> Iterator[str]:
    """The names in a section of a docstring."""
    section = re.search(rf"^{heading}:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    for line in section[1].splitlines() if section else ():
        if (entry := ENTRY.match(line)) is not None:
            yield from re.split(", | or ", entry[1])


@pytest.mark.slow
def test_a_parameter_that_a_docstring_explains_exists() -> None:
    docs = [one for one in documented() if one[2] is not None]
    assert len(docs) > 3_000
    wrong = {
        f"{where}: {name}"
        for where, text, parameters in docs
        for name in entries(text, "Args")
        if parameters is not None and name.lstrip("*") not in parameters
    }
    assert sorted(wrong) == []


@pytest.mark.slow
def test_an_exception_that_a_docstring_names_exists() -> None:
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    known = {node.name for node in nodes if isinstance(node, ast.ClassDef)} | set(dir(builtins))
    known |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    modules = {alias.asname or alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    wrong = {
        f"{where}: {name}"
        for where, text, _ in documented()
        for name in entries(text, "Raises")
        if name.rpartition(".")[2] not in known and name.partition(".")[0] not in modules
    }
    assert sorted(wrong) == []
