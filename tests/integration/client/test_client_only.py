"""A fresh environment with the wheel and what it brings: it publishes to a queue and consumes from it (X3)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.processes.deployment import Deploy
from support.programs.program import program, run

ROOT = Path(__file__).parents[3]
PROGRAM = """
import importlib.util, sys
from lapse_client import Connection, Publisher, QueueSubscriber

name, connection = sys.argv[1], Connection(sys.argv[2])
with Publisher(connection) as publisher:
    publisher.publish(name, b"one", ttl_ms=600_000)
with QueueSubscriber(name, connection=connection) as subscriber:
    for delivery in subscriber.messages(timeout=60):
        with delivery:
            print(delivery.value.decode())
        break
for package in ("pydantic", "lark", "numpy", "click", "rich", "faust", "pyspark"):
    assert importlib.util.find_spec(package) is None, package
"""


@pytest.mark.slow
@pytest.mark.feature("X3")
def test_a_client_without_extras_publishes_and_consumes(deploy: Deploy, tmp_path: Path) -> None:
    uv = program("uv")
    run(uv, "build", "--wheel", "--quiet", "--no-build-isolation", "--python", sys.executable, "-o", tmp_path, ROOT)
    run(uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(uv, "pip", "install", "--quiet", "--python", python, next(tmp_path.glob("*.whl")))
    here = deploy({"orders": {}})
    here.apply()
    here.worker()
    assert run(python, "-c", PROGRAM, here.name("orders"), here.servers) == "one\n"
