"""Where the contract's numbers stand: the files of the code that cite them, and the files of tests that show them."""

import re
from collections.abc import Iterator
from pathlib import Path

from support.contract import promises

ROOT = Path(__file__).parents[2]
SOURCES = ("streams/lapse", "connectors/lapse_client", "connectors/lapse_gateway", "connectors/lapse_spark")
_CITED = re.compile(r"\b([LSQDXC])(\d+)\b(?: to \1?(\d+)\b)?")
_SHOWN = re.compile(r"\bfeature\(([^)]*)\)")


def numbers_in(text: str) -> Iterator[str]:
    """The numbers that a text names; `C13 to C18` names six."""
    for letter, first, last in _CITED.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letter}{number}"


def contract_map() -> dict[str, tuple[list[str], list[str]]]:
    """For each number of the contract: files of the code that cite it, and files of tests whose markers name it."""
    found: dict[str, tuple[list[str], list[str]]] = {number: ([], []) for number in promises()}
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for number in sorted(set(numbers_in(path.read_text())) & found.keys()):
                found[number][0].append(str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        shown = {number for marker in _SHOWN.findall(path.read_text()) for number in numbers_in(marker)}
        for number in sorted(shown & found.keys()):
            found[number][1].append(str(path.relative_to(ROOT)))
    return found
