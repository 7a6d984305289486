"""What the demo shows reaches the terminal while Spark starts, and what its processes log reaches their logs."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lapse.demo.member import Member

SHOWN = """
import os
from lapse.cli import demo

console = demo._console(as_json=False)
os.dup2(2, 1)  # as lapse_spark.session does
console.print("the last flights leave")
"""


@pytest.mark.slow
def test_progress_is_shown_while_sparks_start_redirects_the_output() -> None:
    done = subprocess.run([sys.executable, "-c", SHOWN], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("the last flights leave\n", "")


@pytest.mark.slow
def test_a_process_that_ends_by_itself_is_reported_with_its_last_words(tmp_path: Path) -> None:
    said = (
        "import json; print(json.dumps(dict(ready=True))); "
        "print('lapse worker ends: fenced', flush=True); raise SystemExit(70)"
    )
    member = Member("worker-0", ["-c", said], tmp_path / "worker-0.log", {})
    member.start()
    give_up = time.monotonic() + 60
    while "fenced" not in str(member.failure("ended")):
        assert time.monotonic() < give_up, member.failure("ended")
        time.sleep(0.02)
    assert member.reported == {"ready": True}
    assert "ready" not in (tmp_path / "worker-0.log").read_text()
