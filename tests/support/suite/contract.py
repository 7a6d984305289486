"""Reads the numbers of docs/features.md, and those that tests show."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

CONTRACT = Path(__file__).parents[3] / "docs" / "features.md"
_ROW = re.compile(r"^\| ([LSQDXC]\d+) \| (.+) \|$")


def promises(contract: Path = CONTRACT) -> dict[str, str]:
    """Return the text of each number, in the order of the document."""
    rows = (_ROW.match(line) for line in contract.read_text(encoding="utf-8").splitlines())
    return {row[1]: row[2] for row in rows if row}


def numbers_of(item: pytest.Item) -> Iterator[str]:
    """Yield the numbers in a test's `feature` markers."""
    for marker in item.iter_markers("feature"):
        yield from marker.args


def unknown_numbers(items: Iterable[pytest.Item], known: Iterable[str]) -> list[str]:
    """Return a line for each marker that names a number which is not in the contract."""
    listed = set(known)
    return [
        f"{item.nodeid}: {number!r} is not a number of docs/features.md"
        for item in items
        for number in numbers_of(item)
        if number not in listed
    ]
