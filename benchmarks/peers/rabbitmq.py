"""A RabbitMQ quorum queue through pika: persistent messages with a lifetime, acknowledged by hundreds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.comparison.contestant import Figures, Skipped, alone
from benchmarks.instruments.load import PAYLOAD_BYTES
from benchmarks.peers.elsewhere import python_with
from benchmarks.peers.peer_server import listens

_REQUIREMENT = "pika==1.3.2"
_PATIENCE_S = 90.0
_DEBIAN_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""The program behind Debian's `rabbitmq-server`, which as root would change to a user without our directory."""

_PROGRAM = """
import json, os, time
import pika

port, count, size = int(os.environ["PORT"]), int(os.environ["COUNT"]), int(os.environ["SIZE"])
channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)).channel()
channel.queue_declare("bench", durable=True, arguments={"x-queue-type": "quorum"})
payload = os.urandom(size // 2).hex().encode()
properties = pika.BasicProperties(delivery_mode=2, expiration="3600000")
for _ in range(count):
    channel.basic_publish("", "bench", payload, properties)
channel.connection.process_data_events()
while channel.queue_declare("bench", passive=True).method.message_count < count:
    time.sleep(0.1)
channel.basic_qos(prefetch_count=1000)
got, began, cpu = 0, 0.0, 0.0
for method, _, body in channel.consume("bench", inactivity_timeout=30):
    if method is None:
        raise SystemExit(f"{got} of {count} delivered")
    if not got:
        began, cpu = time.perf_counter(), time.process_time()
    got += 1
    if got % 100 == 0 or got == count:
        channel.basic_ack(method.delivery_tag, multiple=True)
    if got == count:
        break
channel.cancel()  # answered behind the acknowledgments
seconds, used = time.perf_counter() - began, time.process_time() - cpu
print(json.dumps({"messages": got, "rate": got / seconds, "client_us": used / got * 1e6}))
"""


def server() -> str:
    """Return the program of the server.

    Raises:
        Skipped: RabbitMQ is not installed.
    """
    found = str(_DEBIAN_SERVER) if _DEBIAN_SERVER.exists() else shutil.which("rabbitmq-server")
    if found is None:
        raise Skipped("no rabbitmq-server on the path")
    return found


def run(messages: int = 50_000) -> Figures:
    """Start a server, publish, and drain through one consumer. Skip if RabbitMQ is not installed."""
    command = server()
    python = python_with(_REQUIREMENT)
    with _server(command) as port:
        finished = subprocess.run(
            [python, "-c", _PROGRAM],
            env={**os.environ, "PORT": str(port), "COUNT": str(messages), "SIZE": str(PAYLOAD_BYTES)},
            stdout=subprocess.PIPE,
            check=True,
            timeout=300,
        )
    figures: Figures = json.loads(finished.stdout.decode().strip().splitlines()[-1])
    return figures


@contextmanager
def _server(command: str) -> Iterator[int]:
    """Run a RabbitMQ server. Yield its port."""
    with socket.socket() as free, socket.socket() as other, tempfile.TemporaryDirectory() as directory:
        for one in (free, other):
            one.bind(("127.0.0.1", 0))
        port, distribution = free.getsockname()[1], other.getsockname()[1]
        free.close()
        other.close()
        environment = {
            **os.environ,
            "HOME": directory,
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": f"{directory}/data",
            "RABBITMQ_LOG_BASE": f"{directory}/log",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
        }
        server = subprocess.Popen(
            [command],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that Erlang's processes end with it
        )
        try:
            deadline = time.monotonic() + _PATIENCE_S
            while not listens(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise Skipped("rabbitmq-server does not start here")
                time.sleep(0.2)
            yield port
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)


if __name__ == "__main__":
    alone(run)
