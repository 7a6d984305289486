"""lapse: from the log to a leased delivery with payload to a batched acknowledgment, state durable."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.load import create, publish
from lapse_client import Connection, Queue, QueueSubscriber

BACKLOG = 20_000


def run(bootstrap_servers: str, messages: int, options: str = "") -> dict[str, float]:
    """Publish, start a worker, and drain through one subscriber; rates in messages a second.

    Args:
        bootstrap_servers: the broker.
        messages: how many.
        options: further lines for the queue in `lapse.toml`.
    """
    name = f"bench-{time.time_ns()}"
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "lapse.toml"
        config.write_text(
            f'[lapse]\napp_id = "{name}"\nbootstrap_servers = "{bootstrap_servers}"\ndata_dir = "{directory}/data"\n'
            f'[queue.{name}]\nexpiration = "enabled"\nlease_period = "60s"\n{options}\n'
        )
        create(bootstrap_servers, name)
        subprocess.run(
            [sys.executable, "-m", "lapse", "apply", "--yes", "-c", str(config)], check=True, stdout=subprocess.DEVNULL
        )
        publish(bootstrap_servers, name, messages)
        connection = Connection(bootstrap_servers=bootstrap_servers)
        log = (Path(directory) / "worker.log").open("wb")
        worker = subprocess.Popen(
            [sys.executable, "-m", "lapse", "worker", "--no-supervise", "-c", str(config), "--log-level", "warning"],
            stdout=log,
            stderr=log,
        )
        try:
            return _drain(connection, name, messages, psutil.Process(worker.pid))
        except Exception:
            sys.stderr.write((Path(directory) / "worker.log").read_text()[-4000:])
            raise
        finally:
            worker.terminate()
            worker.wait(30)


def _drain(connection: Connection, name: str, messages: int, worker: psutil.Process) -> dict[str, float]:
    began = first_cpu = worker_cpu = 0.0
    got = 0
    with QueueSubscriber(
        name, max_backlog=BACKLOG, connection=connection, ack_batch_size=2_000, ack_interval_ms=20, timeout_s=30
    ) as subscriber:
        for batch in subscriber.batches(max_size=2_000, timeout=60):
            if not got:
                began, first_cpu = time.perf_counter(), time.process_time()
                worker_cpu = sum(worker.cpu_times()[:2])
            got += len(batch)
            subscriber.acknowledge(batch)
            if got >= messages:
                break
        delivered = time.perf_counter()
    # Closing waited for the answer to the unsubscription, and with it for every acknowledgment before it.
    ended = time.perf_counter()
    with Queue(name, connection=connection) as queue:
        left = queue.depth()["depth"]
    if got < messages or left:
        raise RuntimeError(f"{got} of {messages} delivered, {left} left: not a whole life")
    return {
        "messages": got,
        "rate": got / (ended - began),
        "delivery_rate": got / (delivered - began),
        "worker_cpu_s": sum(worker.cpu_times()[:2]) - worker_cpu,
        "client_cpu_s": time.process_time() - first_cpu,
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])))
