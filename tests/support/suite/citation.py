"""Finds the source files that cite the contract's numbers, and the test files that show them."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.suite.contract import promises
from support.suite.statement import statements

ROOT = Path(__file__).parents[3]
SOURCES = ("streams/lapse", "connectors/lapse_client", "connectors/lapse_gateway", "connectors/lapse_spark")
_CITED = re.compile(r"\b([LSQDXC])(\d+)\b(?: to \1?(\d+)\b)?")
_SHOWN = re.compile(r"\bfeature\(([^)]*)\)")
_MODULE, _CLASS, _FUNCTION = 100, 20, 5


class Citation(NamedTuple):
    """A file that cites a number of the contract, or shows it.

    Attributes:
        path: the path from the root of the repository.
        weight: how much the file is about the number. Docstrings of modules and classes count most, above all if
            their first line names few numbers.
        name: the first class or function whose docstring cites it; empty = none.
        line: the line of that class or function, or of the first marker in a test file.
    """

    path: str
    weight: int
    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" + (f"  {self.name}" if self.name else "")


def numbers_in(text: str) -> Iterator[str]:
    """Yield the numbers that a text names; `C13 to C18` names six."""
    for letter, first, last in _CITED.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letter}{number}"


def contract_map() -> dict[str, tuple[list[Citation], list[Citation]]]:
    """Return for each number of the contract the files that cite it and the test files that show it, by weight."""
    found: dict[str, tuple[list[Citation], list[Citation]]] = {number: ([], []) for number in promises()}
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for number, citation in _cited(path).items():
                if number in found:
                    found[number][0].append(citation)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for number, citation in _shown(path).items():
            if number in found:
                found[number][1].append(citation)
    for both in found.values():
        for citations in both:
            citations.sort(key=lambda one: -one.weight)
    return found


def _cited(path: Path) -> dict[str, Citation]:
    text = path.read_text()
    weights = Counter(numbers_in(text))
    homes: dict[str, tuple[str, int]] = {}
    if not weights:
        return {}
    for node in statements(ast.parse(text)):
        match node:
            case ast.Module():
                weight, name, line = _MODULE, "", 1
            case ast.ClassDef():
                weight, name, line = _CLASS, node.name, node.lineno
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                weight, name, line = _FUNCTION, node.name, node.lineno
            case _:
                continue
        docstring = ast.get_docstring(node) or ""
        subject = set(numbers_in(docstring.partition("\n")[0]))
        for number in set(numbers_in(docstring)):
            weights[number] += weight + (4 * weight // len(subject) if number in subject else 0)
            if name:
                homes.setdefault(number, (name, line))
    relative = str(path.relative_to(ROOT))
    return {number: Citation(relative, weight, *homes.get(number, ("", 1))) for number, weight in weights.items()}


def _shown(path: Path) -> dict[str, Citation]:
    shown: Counter[str] = Counter()
    first: dict[str, int] = {}
    text = path.read_text()
    for marker in _SHOWN.finditer(text):
        for number in numbers_in(marker[1]):
            shown[number] += 1
            first.setdefault(number, text.count("\n", 0, marker.start()) + 1)
    relative = str(path.relative_to(ROOT))
    return {number: Citation(relative, weight, "", first[number]) for number, weight in shown.items()}
