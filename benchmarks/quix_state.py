"""Quix Streams: one state write per message, changelog on."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time

from benchmarks.contestant import Figures, alone
from benchmarks.elsewhere import python_with
from benchmarks.load import create, publish

_REQUIREMENT = "quixstreams==3.28.1"

_PROGRAM = """
import json, os, time
from quixstreams import Application

topic, count = os.environ["TOPIC"], int(os.environ["COUNT"])
app = Application(
    broker_address=os.environ["BROKER"], consumer_group=topic + "-app", auto_offset_reset="earliest",
    state_dir="state", loglevel="ERROR",
)
source = app.topic(topic, value_deserializer="bytes", key_deserializer="bytes")
seen = {"count": 0, "began": 0.0, "cpu": 0.0}

def write(value, state):
    if not seen["count"]:
        seen["began"], seen["cpu"] = time.perf_counter(), time.process_time()
    state.set("v", value.decode())
    seen["count"] += 1
    if seen["count"] >= count:
        figures = {
            "messages": count,
            "rate": count / (time.perf_counter() - seen["began"]),
            "worker_us": (time.process_time() - seen["cpu"]) / count * 1e6,
        }
        os.write(1, (json.dumps(figures) + "\\n").encode())
        os._exit(0)
    return value

app.dataframe(source).apply(write, stateful=True)
app.run()
"""


def run(bootstrap_servers: str, messages: int = 100_000) -> Figures:
    """Publish, and let the application write them all; its writes need not be acknowledged when the time ends."""
    python = python_with(_REQUIREMENT)
    topic = f"quix-{time.time_ns()}"
    create(bootstrap_servers, topic)
    publish(bootstrap_servers, topic, messages)
    with tempfile.TemporaryDirectory() as directory:
        finished = subprocess.run(
            [python, "-c", _PROGRAM],
            env={**os.environ, "TOPIC": topic, "COUNT": str(messages), "BROKER": bootstrap_servers},
            cwd=directory,
            stdout=subprocess.PIPE,
            check=True,
            timeout=300,
        )
    figures: Figures = json.loads(finished.stdout.decode().strip().splitlines()[-1])
    return figures


if __name__ == "__main__":
    alone(run)
