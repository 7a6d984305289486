"""Stock Faust: an agent that writes one table entry per message, changelog on, nothing tuned but buffers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.contestant import Figures, alone
from benchmarks.load import create, publish

_AGENT = """
import json, os, time
import faust

topic, count = os.environ["TOPIC"], int(os.environ["COUNT"])
app = faust.App(
    topic + "-app", broker="kafka://" + os.environ["BROKER"], value_serializer="raw", key_serializer="raw",
    store="memory://", topic_disable_leader=True, web_enabled=False, consumer_auto_offset_reset="earliest",
    stream_buffer_maxsize=16384, broker_max_poll_records=5000,
)
source = app.topic(topic, key_serializer="raw", value_serializer="raw")
table = app.Table("state", default=None, partitions=1)
state = {"began": 0.0, "cpu": 0.0, "seen": 0}

@app.agent(source)
async def agent(stream):
    async for event in stream.events():
        if not state["seen"]:
            state["began"], state["cpu"] = time.perf_counter(), time.process_time()
        table[event.key] = event.value
        state["seen"] += 1
        if state["seen"] >= count:
            figures = {
                "messages": count,
                "rate": count / (time.perf_counter() - state["began"]),
                "worker_us": (time.process_time() - state["cpu"]) / count * 1e6,
            }
            os.write(1, (json.dumps(figures) + "\\n").encode())
            os._exit(0)

app.main()
"""


def run(bootstrap_servers: str, messages: int = 20_000) -> Figures:
    """Publish, and let the agent write them all; its writes need not be acknowledged when the time ends."""
    topic = f"faust-{time.time_ns()}"
    create(bootstrap_servers, topic)
    publish(bootstrap_servers, topic, messages)
    with tempfile.TemporaryDirectory() as directory:
        finished = subprocess.run(
            [sys.executable, "-c", _AGENT, "worker", "-l", "error", "--without-web"],
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
