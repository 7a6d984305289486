"""The pages for contributors name files and functions that are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("streams/lapse", "connectors", "tests", "schemas", "docs", "benchmarks", ".")
FILE = re.compile(r"`([\w./-]+\.(?:py|md|toml|avsc|c|html|lock|yml))(?::[\w:]+)?`")
PAGES = ("CONTRIBUTING.md", "docs/architecture.md", "docs/testing.md", "tests/README.md", "docs/glossary.md")
USERS = {"lapse.toml", "consumer.py"}
"""Files that users have and the project has not, or not in one place."""


@cache
def files() -> set[str]:
    found = {path for source in SOURCES[:-1] for path in (ROOT / source).rglob("*") if path.is_file()}
    return {path.relative_to(ROOT).as_posix() for path in [*found, *ROOT.iterdir()]}


def is_there(named: str) -> bool:
    return any(file == named or file.endswith(f"/{named}") for file in files())


@pytest.mark.parametrize("page", PAGES)
def test_files_that_pages_for_contributors_name_exist(page: str) -> None:
    named = set(FILE.findall((ROOT / page).read_text("utf-8"))) - USERS
    assert named
    assert sorted(one for one in named if not is_there(one)) == []


def stations() -> Iterator[tuple[str, str]]:
    """The functions of the life of one message, each with its file."""
    table = (ROOT / "docs/architecture.md").read_text("utf-8").partition("### The life of one message")[2]
    for line in table.partition("\n### ")[0].splitlines():
        cells = line.strip("|").split("|")
        if len(cells) == 3:
            names = FILE.findall(cells[1])
            for function in re.findall(r"`([\w.]+)`", cells[2]):
                yield function, ", ".join(names)


def defined(file: Path) -> set[str]:
    """What a module defines: `Class.method`, functions, classes and constants."""
    found = set()
    for node in ast.parse(file.read_text("utf-8")).body:
        match node:
            case ast.ClassDef(name=name, body=body):
                found |= {name, *(f"{name}.{one.name}" for one in body if hasattr(one, "name"))}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case _:
                pass
    return found


@pytest.mark.parametrize(("function", "where"), list(stations()))
def test_each_station_of_a_messages_life_is_where_the_page_says(function: str, where: str) -> None:
    paths = [root / name for name in where.split(", ") for root in (ROOT / "streams/lapse", ROOT / "connectors")]
    assert any(function in defined(path) for path in paths if path.exists())


CODE = ("streams/lapse", "connectors", "tests", "benchmarks")
DOTTED = re.compile(r"`((?:lapse|lapse_client|lapse_spark|lapse_gateway|lapse_kombu)(?:\.\w+)+)(?:\(\))?`")
METHOD = re.compile(r"`([A-Z]\w+)\.(\w+)(?:\(\))?`")
CLASS = re.compile(r"^class (\w+)(?:\((.*)\))?:", re.MULTILINE)


@cache
def code() -> dict[str, str]:
    return {
        file: (ROOT / file).read_text("utf-8") for file in files() if file.startswith(CODE) and file.endswith(".py")
    }


def module_of(name: str) -> tuple[str, list[str]]:
    """The text of the module or package in which a dotted name ends, and the rest of the name; empty without one."""
    parts = name.split(".")
    for count in range(len(parts), 1, -1):
        path = "/".join(parts[:count])
        for root in ("streams", "connectors"):
            for file in (f"{root}/{path}.py", f"{root}/{path}/__init__.py"):
                if file in code():
                    return code()[file], parts[count:]
    return "", parts[1:]


def test_modules_that_code_names_exist() -> None:
    """A name such as `lapse.redriven` is that of a topic, and no module's."""
    lost = set()
    for file, text in code().items():
        for name in DOTTED.findall(text):
            module, rest = module_of(name)
            if module and not all(re.search(rf"\b{one}\b", module) for one in rest):
                lost.add(f"{file}: {name}")
    assert sorted(lost) == []


def test_methods_that_code_names_are_in_their_classes() -> None:
    homes: dict[str, list[tuple[str, list[str]]]] = {}
    for text in code().values():
        for name, bases in CLASS.findall(text):
            homes.setdefault(name, []).append((text, re.findall(r"\w+", bases)))

    def has(name: str, method: str) -> bool:
        if name not in homes:
            return True  # another package's
        return any(
            re.search(rf"\b{method}\b", text) or any(has(one, method) for one in bases if one != name and one in homes)
            for text, bases in homes[name]
        )

    named = {(file, *one) for file, text in code().items() for one in METHOD.findall(text)}
    assert len(named) > 100
    assert sorted(f"{file}: {name}.{method}" for file, name, method in named if not has(name, method)) == []
