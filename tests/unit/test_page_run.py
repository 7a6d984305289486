"""Whoever follows a page leaves no `lapse dev` behind."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
STAND_IN = """#!/bin/sh
trap 'echo > ended; exit' INT
echo "  SOW topics  none"
echo "  lapse doctor"
while :; do sleep 0.05; done
"""
PAGE = """```console
$ lapse dev
  SOW topics  none
…
$ kill -9 $PPID
```
"""
FOLLOW = """
import sys
from pathlib import Path
from support.pages.page_run import PageRun

place = Path(sys.argv[1])
PageRun(place / "page.md", place, None, programs=place).follow()
"""


@pytest.mark.slow
def test_a_killed_reader_leaves_no_processes(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "lapse").write_text(STAND_IN)
    (tmp_path / "lapse").chmod(0o700)
    killed = subprocess.run([sys.executable, "-c", FOLLOW, tmp_path], cwd=TESTS, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    give_up = time.monotonic() + 30
    while not (tmp_path / "ended").exists():
        assert time.monotonic() < give_up, "lapse dev still runs"
        time.sleep(0.02)
