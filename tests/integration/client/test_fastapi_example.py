"""The example with FastAPI: requests submit tasks, and the application's lifespan consumes them (X3)."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.processes.figures import free_port
from support.programs.program import program

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/recipes/fastapi.md").read_text("utf-8")
SERVE, SUBMIT = re.findall(r"^    ((?:uvicorn|curl) .+)$", PAGE, re.MULTILINE)
ANSWER, ASK, PACKED = re.findall(r"`(\{\"bookmark.+?|curl [^`]+|\[1\])`", PAGE)
"""What the recipe has its reader type, and what it says comes of that."""


@contextmanager
def served(here: Deployment) -> Iterator[str]:
    """Run the application as the recipe does; return where it is."""
    port, names = free_port(), {"KAFKA_BOOTSTRAP_SERVERS": here.servers, "ORDERS_QUEUE": here.name("orders")}
    command = [sys.executable, "-m", *shlex.split(SERVE), "--port", str(port), "--log-level", "warning"]
    running = subprocess.Popen(command, cwd=ROOT / "examples", env=os.environ | names)
    try:
        yield f"127.0.0.1:{port}"
        running.terminate()
        assert running.wait(20) in (0, -15)
    finally:
        running.kill()


def answers(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/orders").is_success
    except httpx.TransportError:
        return False


def typed(command: str, address: str) -> str:
    """What a command of the recipe prints."""
    _, *words = shlex.split(command.replace("localhost:8000", address))
    return subprocess.run([program("curl"), "-sS", *words], check=True, capture_output=True, text=True).stdout


@pytest.mark.feature("X3", "Q5", "Q24")
def test_an_application_submits_and_consumes(deploy: Deploy) -> None:
    here = deploy({"orders": {"expiration": "enabled", "max_deliveries": 3, "dead_letter": "dlq.orders{}"}}).apply()
    here.worker().wait_for_shards(1)
    with served(here) as address, httpx.Client(base_url=f"http://{address}") as client:
        until(lambda: answers(address), "it serves", 30)
        assert typed(SUBMIT, address) == ANSWER.replace("jobs", here.name("orders"))
        until(lambda: typed(ASK, address) == PACKED, "it is packed")
        assert client.post("/orders", json={"id": 2, "customer": "Bob"}).status_code == 202
        assert client.post("/orders", json={"id": "x"}).status_code == 422
        here.write("orders", '{"task": "pack", "arguments": {"order": {"id": 3}}}')
        until(lambda: client.get("/orders").json() == [1, 2], "both are packed")
        (letter,) = here.letters("orders", 1)
        assert b"order.customer: Field required" in dict(letter.headers())["__dlq.errors.message"]
    until(lambda: here.depth("orders")["subscriptions"] == 0, "it has left")
    assert here.depth("orders")["depth"] == 0
