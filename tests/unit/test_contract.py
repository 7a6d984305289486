"""The contract and its markers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from features import show_map
from support.suite.citation import contract_map, numbers_in
from support.suite.contract import promises

ROOT = Path(__file__).parents[2]
COUNTS = {"L": 15, "S": 11, "Q": 21, "D": 6, "X": 7, "C": 47}


def test_no_number_is_missing_or_twice() -> None:
    text = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
    wanted = [f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)]
    later = [number for number in promises() if number not in wanted]  # decided since; added as they come true
    assert [number for number in promises() if number not in later] == wanted  # the later ones in any order
    assert all(number[0] in "CDQX" for number in later)
    wanted += later
    assert sum(text.count(f"| {number} |") for number in wanted) == len(wanted)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [("Q7", 0), ("Q99", 4)])
def test_a_marker_must_name_a_promise(tmp_path: Path, number: str, code: int) -> None:
    for name in ("tests", "docs"):
        (tmp_path / name).mkdir()
    (tmp_path / "tests" / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "tests" / "test_it.py").write_text(
        f"import pytest\n@pytest.mark.feature('L1', '{number}')\ndef test_it(): pass\n"
    )
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", tmp_path / "tests"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert answer.returncode == code, answer.stdout + answer.stderr
    if code:
        assert f"test_it: {number!r} is not a number of docs/features.md" in answer.stdout + answer.stderr


@pytest.mark.slow
def test_the_tool_counts_tests() -> None:
    answer = subprocess.run(
        [sys.executable, ROOT / "tests" / "features.py", "--json", "tests/unit/core/shard", "tests/unit/protocol"],
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    counted = json.loads(answer.stdout)
    assert list(counted) == list(promises())
    tests = [test for entry in counted.values() for test in entry["tests"]]
    assert any(test.startswith("tests/unit/protocol/") for test in tests)
    assert all(test.startswith(("tests/unit/core/shard/", "tests/unit/protocol/")) for test in tests)


def test_a_range_of_numbers_names_each() -> None:
    assert list(numbers_in("in order (L5, C13 to C16), and Q7 to 9")) == [
        "L5",
        "C13",
        "C14",
        "C15",
        "C16",
        "Q7",
        "Q8",
        "Q9",
    ]


@pytest.mark.slow
def test_every_promise_leads_to_the_code_and_the_tests_behind_it_the_most_telling_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert show_map(["Q7", "L14"], as_json=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["Q7", "L14"]
    assert any(path.endswith("core/queue/delivery/fairness.py") for path in found["Q7"]["code"][:3])
    assert any(path.endswith("test_fairness.py") for path in found["Q7"]["tests"][:3])
    assert [number for number, (_, tests) in contract_map().items() if not tests] == []
