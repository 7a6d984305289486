"""Stock Faust: an agent that writes one table entry per message, with a changelog, and only buffers tuned."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

import psutil

from benchmarks.comparison.contestant import Figures, alone, broker_cpu_s, cpu_s
from benchmarks.instruments.load import create, publish
from benchmarks.instruments.log import Ends

_AGENT = """
import os
import faust

topic = os.environ["TOPIC"]
app = faust.App(
    topic + "-app", broker="kafka://" + os.environ["BROKER"], value_serializer="raw", key_serializer="raw",
    store="memory://", topic_disable_leader=True, web_enabled=False, consumer_auto_offset_reset="earliest",
    stream_buffer_maxsize=16384, broker_max_poll_records=5000,
)
source = app.topic(topic, key_serializer="raw", value_serializer="raw")
table = app.Table("state", default=None, partitions=1)
state = {"seen": 0}

@app.agent(source)
async def agent(stream):
    async for event in stream.events():
        if not state["seen"]:
            os.write(1, b"began\\n")
        table[event.key] = event.value
        state["seen"] += 1

app.main()
"""
_PATIENCE_S = 300.0


def run(bootstrap_servers: str, messages: int = 20_000) -> Figures:
    """Publish, and measure from the agent's first message to the last record of the table's changelog."""
    topic = f"faust-{time.time_ns()}"
    create(bootstrap_servers, topic)
    publish(bootstrap_servers, topic, messages)
    changelog = f"{topic}-app-state-changelog"
    with tempfile.TemporaryDirectory() as directory, Ends(bootstrap_servers) as ends:
        worker = subprocess.Popen(
            [sys.executable, "-c", _AGENT, "worker", "-l", "error", "--without-web"],
            env={**os.environ, "TOPIC": topic, "BROKER": bootstrap_servers},
            cwd=directory,
            stdout=subprocess.PIPE,
        )
        try:
            assert worker.stdout is not None
            while worker.stdout.readline().strip() != b"began":
                if worker.poll() is not None:
                    raise RuntimeError("the Faust worker ended")
            process = psutil.Process(worker.pid)
            began, cpu, broker = time.perf_counter(), cpu_s(process), broker_cpu_s()
            while ends.of(changelog) < messages:
                if worker.poll() is not None or time.perf_counter() - began > _PATIENCE_S:
                    raise RuntimeError(f"{ends.of(changelog)} of {messages} changelog records")
                time.sleep(0.02)
            return {
                "messages": messages,
                "rate": messages / (time.perf_counter() - began),
                "worker_us": (cpu_s(process) - cpu) / messages * 1e6,
                "broker_us": (broker_cpu_s() - broker) / messages * 1e6,
            }
        finally:
            worker.kill()
            worker.wait()


if __name__ == "__main__":
    alone(run)
