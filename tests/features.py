"""`make features`: the contract of docs/features.md, with the number of tests behind each promise.

    python tests/features.py            a table
    python tests/features.py --json     {"L1": {"promise": "...", "tests": ["tests/unit/...::test_..."]}, ...}
    python tests/features.py --json tests/unit/protocol     the same for some tests
    python tests/features.py --missing  only promises without a test; exit code 1 if there are any
    python tests/features.py --map      for each number the code that keeps it and the tests that show it, best first
    python tests/features.py --map Q12  the same for some numbers

Tests are collected, not run.
"""

import argparse
import contextlib
import io
import json
import os
import sys
import textwrap
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from support.suite.citation import contract_map
from support.suite.contract import numbers_of, promises

FIRST = 5
"""So many places stand on lines of their own."""


class Collector:
    """A pytest plugin that notes which tests carry which numbers."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = {number: [] for number in promises()}
        self.total = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.total = len(session.items)
        for item in session.items:
            for number in dict.fromkeys(numbers_of(item)):
                self.tests[number].append(item.nodeid)


def main() -> int:
    parser = argparse.ArgumentParser(description="The contract, with the number of tests behind each promise.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--missing", action="store_true", help="print promises without a test, and fail if any")
    parser.add_argument("--map", nargs="*", metavar="NUMBER", help="print the files behind each number, or some")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="count the tests of some files or folders only")
    options = parser.parse_args()
    if options.map is not None:
        return show_map(options.map, as_json=options.json)

    collector = Collector()
    root = Path(__file__).parents[1]
    os.chdir(root)  # pytest's testpaths are relative to where it is called
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        arguments = ["--collect-only", "-qq", "-p", "no:cacheprovider", f"--rootdir={root}", *options.paths]
        status = pytest.main(arguments, [collector])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        errors = [line for line in printed.getvalue().splitlines() if line.startswith(("E ", "ERROR "))]
        sys.stderr.write("\n".join(["Tests could not be collected:", *errors, ""]))
        return 1

    missing = [number for number, tests in collector.tests.items() if not tests]
    if options.json:
        texts = promises()
        print(json.dumps({number: {"promise": texts[number], "tests": t} for number, t in collector.tests.items()}))
    else:
        show(collector, missing, only_missing=options.missing)
    return 1 if options.missing and missing else 0


def show_map(wanted: list[str], *, as_json: bool) -> int:
    """Print the files behind each number, or behind some."""
    texts, found = promises(), contract_map()
    if unknown := [number for number in wanted if number not in found]:
        sys.stderr.write(f"Not a number of docs/features.md: {', '.join(unknown)}\n")
        return 2
    chosen = {number: found[number] for number in wanted or found}
    if as_json:
        files = {
            number: {"code": [one.path for one in code], "tests": [one.path for one in tests]}
            for number, (code, tests) in chosen.items()
        }
        print(json.dumps(files))
        return 0
    for number, (code, tests) in chosen.items():
        print(f"{number}  {texts[number]}")
        for title, citations in (("code", code), ("tests", tests)):
            print("\n".join(f"  {title:<6}{one}" for one in citations[:FIRST]) or f"  {title:<6}none")
            if rest := [one.path for one in citations[FIRST:]]:
                print(
                    textwrap.fill(f"also in {', '.join(rest)}", 120, initial_indent=" " * 8, subsequent_indent=" " * 8)
                )
    return 0


def show(collector: Collector, missing: list[str], *, only_missing: bool) -> None:
    """Print the table and a summary."""
    console = Console()
    table = Table("number", "promise", "tests", box=None, pad_edge=False)
    for number, text in promises().items():
        count = len(collector.tests[number])
        if not (only_missing and count):
            table.add_row(number, text.replace("[", r"\["), str(count or "-"), style=None if count else "yellow")
    console.print(table)
    shown = len(collector.tests) - len(missing)
    console.print(f"\n{shown} of {len(collector.tests)} promises have a test ({collector.total} tests in all).")
    if missing:
        console.print(f"Without a test: {', '.join(missing)}")


if __name__ == "__main__":
    sys.exit(main())
