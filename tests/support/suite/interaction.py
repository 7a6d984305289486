"""The table of interactions: for each pair of features, how they work together, and the test that shows it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

from lapse.core.queue.life.table import Trigger
from support.suite.life_table import in_words

TESTS = Path(__file__).parents[2]
DATA = TESTS / "interactions.toml"
LIFE = "pair"
"""The test of rules that name none: the life of the two features in one queue."""


_HEAD = """# Where two features meet

This page has a rule for every two features of lapse. The numbers are those of [the contract](features.md).

`python tests/interactions.py` prints it from `tests/interactions.toml`. A new feature needs a row with every other
one. Each number of the contract has to belong to a feature, and so has each key of the configuration, each command,
each header, each kind of change and each trigger of [a message's life](message-life.md). What concerns no two features
has a reason [at the end](#outside-the-table). A test checks this. The messages that a trigger takes and spares are
printed from the table on which the shard runs.

*A life of both* is a test that uses the two features in one queue, and compares it with a naive implementation of the
contract after each step (`tests/unit/core/queue/test_interactions.py`). It fails unless both were at work at once: a
purge has to remove something while a message is scheduled, say.

| feature | meaning | numbers |
|---|---|---|
"""


@dataclass(frozen=True)
class Feature:
    """A feature of the table.

    Attributes:
        name: the name in the data.
        says: a description in one line.
        numbers: its numbers of the contract.
        keys: its keys in the configuration of a queue, a SOW topic or a topic.
        deployment: its keys in `[lapse]`.
        headers: its headers, by their names in `lapse.protocol.header`.
        commands: its commands.
        changes: its kinds of changes.
        triggers: its triggers in a message's life, by their names in the code.
    """

    name: str
    says: str
    numbers: tuple[str, ...]
    keys: tuple[str, ...] = ()
    deployment: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name for people."""
        return {"rocksdb": "RocksDB"}.get(self.name, self.name.replace("_", " "))


@dataclass(frozen=True)
class Pair:
    """A pair of features.

    Attributes:
        first: the name of the first feature.
        second: the name of the second feature.
        rule: how they work together, or why one queue cannot have both.
        test: the test that shows the rule, by its name in the list of tests; empty = one queue cannot have both.
    """

    first: str
    second: str
    rule: str
    test: str


@dataclass(frozen=True)
class Table:
    """The whole table.

    Attributes:
        features: the features by name, in the order of the data.
        tests: `path::name` below `tests/`, by the short name that rows use.
        pairs: all rows of the data.
        outside: what concerns no two features, and why, by its kind and its name.
    """

    features: dict[str, Feature]
    tests: dict[str, str]
    pairs: tuple[Pair, ...]
    outside: dict[str, dict[str, str]]

    @property
    def wanted(self) -> list[tuple[str, str]]:
        """All pairs of features that the table must have, in order."""
        return list(combinations(self.features, 2))

    def apart(self) -> set[tuple[str, str]]:
        """Return the pairs that one queue cannot have."""
        return {(pair.first, pair.second) for pair in self.pairs if not pair.test}


@cache
def table() -> Table:
    """Read the data."""
    tree = tomllib.loads(DATA.read_text(encoding="utf-8"))
    features = {
        name: Feature(name, **{key: value if isinstance(value, str) else tuple(value) for key, value in facts.items()})
        for name, facts in tree["features"].items()
    }
    return Table(features, tree["tests"], tuple(_pairs(tree["pairs"])), tree["outside"])


def _pairs(tree: dict[str, dict[str, object]]) -> Iterator[Pair]:
    for first, rows in tree.items():
        for second, row in rows.items():
            match row:
                case str():
                    yield Pair(first, second, row, LIFE)
                case [str(test), str(rule)]:
                    yield Pair(first, second, rule, test)
                case {"apart": str(why)}:
                    yield Pair(first, second, why, "")
                case _:
                    raise ValueError(f"{DATA}: {first} and {second}: neither a rule, nor [test, rule], nor {{ apart }}")


def exists(test: str) -> bool:
    """Return whether a test `path::name` exists below `tests/`."""
    path, _, name = test.partition("::")
    return name in _shown(path)


def shown_by(test: str) -> frozenset[str]:
    """Return the numbers in the `feature` markers of a test `path::name`, and of its module."""
    path, _, name = test.partition("::")
    return _shown(path)[name]


@cache
def _shown(path: str) -> dict[str, frozenset[str]]:
    """Return the numbers that each function of a file shows, by its name."""
    if not (TESTS / path).is_file():
        return {}
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    whole = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(ast.unparse(one) == "pytestmark" for one in node.targets)
    ]
    return {
        node.name: frozenset(number for mark in (*whole, *node.decorator_list) for number in _numbers(mark))
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _numbers(mark: ast.expr) -> Iterator[str]:
    for call in ast.walk(mark):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.feature":
            yield from (ast.literal_eval(argument) for argument in call.args)


def page() -> str:
    """Write the page of the docs from the data."""
    found = table()
    lines = [f"| {one.title} | {one.says} | {', '.join(one.numbers)} |" for one in found.features.values()]
    for first, feature in found.features.items():
        rows = [pair for pair in found.pairs if pair.first == first]
        if rows:
            lines += [
                "",
                f"## {feature.title[0].upper()}{feature.title[1:]}",
                "",
                *(f"- {in_words(Trigger[name])}" for name in feature.triggers),
                *([""] if feature.triggers else []),
                "| with | rule | shown by |",
                "|---|---|---|",
            ]
        for pair in rows:
            shown = "they cannot meet"
            if pair.test:
                shown = "a life of both" if pair.test == LIFE else f"`{found.tests[pair.test].partition('::')[2]}`"
            lines.append(f"| {found.features[pair.second].title} | {pair.rule} | {shown} |")
    lines += ["", "## Outside the table", "", "| what | why it concerns no two features |", "|---|---|"]
    for kind, some in found.outside.items():
        lines += [f"| {name if kind == 'numbers' else f'`{name}`'} | {why} |" for name, why in some.items()]
    return _HEAD + "\n".join(lines) + "\n"
