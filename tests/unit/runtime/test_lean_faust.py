"""A worker starts without Faust's web client, which takes a quarter of the CPU of its imports."""

import subprocess
import sys

import pytest

_STARTS = """
import sys
from lapse.runtime.lean_faust import import_faust

import_faust()
import lapse.runtime.application
assert not [name for name in sys.modules if name.split(".")[0] == "aiohttp"]
"""

_ASKS = """
import faust
from aiohttp.client import ClientSession

assert faust.App("a", broker="kafka://nowhere").conf.HttpClient is ClientSession
"""


@pytest.mark.parametrize("after", ["", _ASKS], ids=["not imported", "still there for others"])
@pytest.mark.slow
def test_a_worker_imports_no_web_client(after: str) -> None:
    done = subprocess.run([sys.executable, "-c", _STARTS + after], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


@pytest.mark.slow
def test_what_is_imported_already_stays() -> None:
    program = (
        "import aiohttp, sys\n" + _STARTS.split("\n\n")[0] + "\nimport_faust()\nassert aiohttp.client.ClientSession"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
