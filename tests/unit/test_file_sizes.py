"""A file is a noun with one idea, a folder a duty: neither grows beyond what CONTRIBUTING.md says."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_file_is_longer_than_the_contributors_page_says() -> None:
    (most,) = re.findall(r"never more than (\d+)", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    files = [
        path
        for root in ("streams", "connectors", "benchmarks", "tests/support")
        for path in (ROOT / root).rglob("*.py")
    ]
    lines = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8").count("\n") for path in files}
    assert len(lines) > 600
    assert {file: count for file, count in lines.items() if count > int(most)} == {}


def test_no_folder_holds_more_modules_than_the_contributors_page_says() -> None:
    (most,) = re.findall(r"never holds more than (\d+) modules", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    folders = {
        path.parent
        for root in ("streams", "connectors", "benchmarks", "tests/support")
        for path in (ROOT / root).rglob("*.py")
    }
    modules = {path.relative_to(ROOT).as_posix(): len(list(path.glob("*.py"))) for path in folders}
    assert len(modules) > 40
    assert {folder: count for folder, count in modules.items() if count > int(most)} == {}


def test_no_file_is_a_drawer() -> None:
    drawers = {"utils", "util", "common", "helpers", "helper", "manager", "misc", "tools"}
    found = [path for root in ("streams", "connectors") for path in (ROOT / root).rglob("*.py")]
    assert [path for path in found if drawers & set(path.stem.split("_"))] == []
