"""The glossary and the code use the same words: a word that was retired does not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from support.suite.statement import without_texts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "glossary.md"
LAPSE = ROOT / "streams" / "lapse"
EXEMPT = {PAGE, Path(__file__), ROOT / "CHANGELOG.md"}
"""They name retired words on purpose: the table, this test, and the history."""
_FILE = "\0"
"""What begins a file's name in `texts`."""


def retired() -> Iterator[tuple[str, str]]:
    """Every retired word with where it must not stand."""
    table = PAGE.read_text().partition("## Retired words")[2]
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0] not in ("retired", "---"):
            for word in cells[0].split(", "):
                yield word, cells[1]


@cache
def texts() -> str:
    """Code, tests and pages in one, each behind its file's name: one search is cheaper than a thousand."""
    folders = ("streams", "connectors", "tests", "benchmarks", "docs")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*.md"))
    return "".join(
        f"\n{_FILE}{path.relative_to(ROOT)}\n{path.read_text()}"
        for path in paths
        if path.suffix in (".py", ".md", ".toml") and path not in EXEMPT
    )


@cache
def in_small_letters() -> str:
    return texts().lower()


def found(spelt: re.Pattern[str]) -> list[str]:
    """Where something stands, as `file: hit`."""
    text = texts()
    return [f"{_file_of(text, hit.start())}: {hit[0]}" for hit in spelt.finditer(text)]


def _file_of(text: str, at: int) -> str:
    begin = text.rindex(_FILE, 0, at) + len(_FILE)
    return text[begin : text.index("\n", begin)]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def names(package: Path, gone: Callable[[str], bool]) -> Iterator[tuple[Path, str]]:
    """What of a package has a retired name: modules, classes, functions, parameters and attributes.

    A file without such a word in its code is not parsed: to search it takes a tenth of that.
    """
    for path in package.rglob("*.py"):
        if any(map(gone, words_in(path))):
            yield from ((path, name) for name in names_in(path) if gone(name))


@cache
def words_in(path: Path) -> frozenset[str]:
    """The words of a module's code, without those of its comments and strings, and its own name."""
    return frozenset((path.stem, *re.findall(r"[A-Za-z_]\w*", without_texts(path.read_text()))))


@cache
def names_in(path: Path) -> frozenset[str]:
    """The same of a module."""
    return frozenset((path.stem, *_identifiers(tree(path))))


def _identifiers(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name):
                yield name


@cache
def parts(name: str) -> list[str]:
    """The words of an identifier: `SubscriberFanOut` and `subscriber_fan_out` have the same three."""
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


ALL = list(retired())


def test_the_table_is_read() -> None:
    assert ("reign", "everywhere") in ALL
    assert len(ALL) > 25


@pytest.mark.parametrize("word", [word for word, where in ALL if where == "everywhere"])
def test_a_retired_word_stands_nowhere(word: str) -> None:
    if not any(word.replace(" ", between) in in_small_letters() for between in ("", " ", "_", "-")):
        return  # much cheaper than the pattern
    spelt = re.compile(rf"(?<![a-z]){word.replace(' ', '[ _-]?')}s?(?![a-z])", re.IGNORECASE)
    assert found(spelt) == []


def test_users_are_they() -> None:
    spelt = re.compile(r"\b(he|his|him|himself|she|her|hers|herself)\b", re.IGNORECASE)
    assert [one for one in found(spelt) if not one.startswith("tests/")] == []


@pytest.mark.parametrize(
    "package", ["core", "core/queue", "core/sow", "doctor", "protocol", "recorded", "runtime", "transfer"]
)
def test_nothing_is_named_by_a_retired_word(package: str) -> None:
    gone = {word for word, where in ALL if f"`{package}`" in where}
    tests = ROOT / "tests" / "unit" / package

    def is_gone(name: str) -> bool:
        return not gone.isdisjoint(parts(name))

    of_tests = ((path, name) for path, name in names(tests, is_gone) if not _is_sentence_or_constant(name))
    kept = [*names(LAPSE / package, is_gone), *of_tests]
    assert sorted(f"{path.relative_to(ROOT)}: {name}" for path, name in kept) == []


def _is_sentence_or_constant(name: str) -> bool:
    """A test's name is a sentence, and a constant may be another package's."""
    return name.startswith("test_") or name.isupper()


@pytest.mark.parametrize("root", ["streams/lapse", "connectors", "benchmarks"])
def test_no_package_has_a_name_with_a_word_that_is_retired_in_all(root: str) -> None:
    gone = {tuple(word.split()) for word, where in ALL if where == "names"}
    assert gone
    kept = names(ROOT / root, lambda name: not gone.isdisjoint(_runs(parts(name))))
    assert sorted(f"{path.relative_to(ROOT)}: {name}" for path, name in kept) == []


def test_names_in_tests_say_what_was_received() -> None:
    gone = {word for word, where in ALL if "`tests`" in where}
    assert gone
    named = names(ROOT / "tests", lambda name: not (name.isupper() or gone.isdisjoint(parts(name))))
    assert sorted(f"{path.name}: {name}" for path, name in named) == []


def _runs(words: list[str]) -> Iterator[tuple[str, ...]]:
    """The words of a name, single and in pairs."""
    yield from ((word,) for word in words)
    yield from pairwise(words)


@pytest.mark.parametrize("root", ["streams/lapse", "connectors"])
def test_a_place_is_no_partition(root: str) -> None:
    """A place orders messages. A partition of a topic is `tp`, and its key `topic:partition` a `source_key`.

    Nor is it a bookmark, so no type of topic and partition, with or without an offset, has its name.
    """
    partition = re.compile(r"\b(TopicPartition|TP)\b")
    place = re.compile(r"^[Pp]laces?$")
    wrong = set()
    for path in (ROOT / root).rglob("*.py"):
        if not (any(map(place.search, words_in(path))) and partition.search(path.read_text())):
            continue
        for node in ast.walk(tree(path)):
            match node:
                case ast.arg(arg=name, annotation=ast.expr() as kind) if partition.search(ast.unparse(kind)):
                    given = [name]
                case ast.Assign(targets=[ast.Name(id="Place")], value=ast.Subscript() as value):
                    wrong.add(f"{path.relative_to(ROOT)}: {ast.unparse(value)}")
                    continue
                case ast.Assign(targets=targets, value=value) if partition.search(ast.unparse(value)):
                    given = [ast.unparse(target) for target in targets]
                case _:
                    continue
            wrong |= {f"{path.relative_to(ROOT)}: {name}" for name in given if re.search(r"\bplaces?$", name)}
    assert sorted(wrong) == []


def attributes(package: Path, wanted: str) -> Iterator[str]:
    """The files with objects that have something of this name: a field, property, method, or member of an `Enum`."""
    for path in package.rglob("*.py"):
        if wanted not in {word.lower() for word in words_in(path)}:
            continue
        found = set[str]()
        for node in ast.walk(tree(path)):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    found.add(name.lower())
                case ast.ClassDef(body=body):
                    for one in body:
                        match one:
                            case (
                                ast.FunctionDef(name=name)
                                | ast.AnnAssign(target=ast.Name(id=name))
                                | ast.Assign(targets=[ast.Name(id=name)])
                            ):
                                found.add(name.lower())
                            case _:
                                pass
                case _:
                    pass
        if wanted in found:
            yield path.stem


def test_held_is_a_state_and_nothing_else() -> None:
    """A message in a transfer is `transferring`, a place with a message is `occupied`."""
    held = set(attributes(LAPSE / "core", "held"))
    assert held == {"message_state", "event", "scheduled", "scheduled_messages", "agenda", "step"}


@pytest.mark.parametrize("package", ["core/queue", "core/sow", "runtime/sow/output.py"])
def test_a_parameter_says_of_what_it_is_the_name(package: str) -> None:
    """Here a bare `name` could be that of a record, message, subscription, transfer or rewind."""
    bare = {
        f"{path.relative_to(LAPSE)}: {function.name}"
        for path in ((LAPSE / package).rglob("*.py") if "." not in package else [LAPSE / package])
        if not words_in(path).isdisjoint({"name", "names"})
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef)
        and not function.name.startswith("_meaning")
        and {"name", "names"} & {argument.arg for argument in (*function.args.posonlyargs, *function.args.args)}
    }
    assert sorted(bare) == []
