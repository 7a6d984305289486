"""Quix Streams: one state write per message, changelog on."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time

from benchmarks.comparison.contestant import Figures, alone, broker_cpu_s
from benchmarks.instruments.load import create, publish
from benchmarks.peers.elsewhere import python_with

_REQUIREMENT = "quixstreams==3.28.1"

_PROGRAM = """
import json, os, time
from quixstreams import Application
from quixstreams.checkpointing.checkpoint import BaseCheckpoint, Checkpoint

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
    return value

expired, commit = BaseCheckpoint.expired, Checkpoint.commit

def expired_or_last(self):
    return seen["count"] >= count or expired(self)

def committed(self, *arguments, **named):
    commit(self, *arguments, **named)
    if seen["count"] >= count:
        figures = {
            "messages": count,
            "rate": count / (time.perf_counter() - seen["began"]),
            "worker_us": (time.process_time() - seen["cpu"]) / count * 1e6,
        }
        os.write(1, (json.dumps(figures) + "\\n").encode())
        os._exit(0)

# Checkpoints come every 5 s, as Quix has it; one more, without a wait, behind the last message.
BaseCheckpoint.expired, Checkpoint.commit = expired_or_last, committed
app.dataframe(source).apply(write, stateful=True)
app.run()
"""


def run(bootstrap_servers: str, messages: int = 100_000) -> Figures:
    """Publish, and run the application until the checkpoint with its last state write is in the changelog."""
    python = python_with(_REQUIREMENT)
    topic = f"quix-{time.time_ns()}"
    create(bootstrap_servers, topic)
    publish(bootstrap_servers, topic, messages)
    broker = broker_cpu_s()
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
    figures["broker_us"] = (broker_cpu_s() - broker) / messages * 1e6
    return figures


if __name__ == "__main__":
    alone(run)
