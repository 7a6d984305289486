"""The examples of "Testing your consumers" are tests, and run as a user's do: by pytest, with the fixture `lapse`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "testing-your-consumers.md"


@pytest.mark.slow
@pytest.mark.feature("X8")
def test_the_examples_of_the_page_pass(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / "test_examples.py").write_text("\n\n".join(blocks), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_examples.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{sum(block.count('def test_') for block in blocks)} passed" in run.stdout
