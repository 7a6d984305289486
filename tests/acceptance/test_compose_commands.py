"""docker-compose.yml without Docker: each service's command does its work on a broker that is here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from lapse_client import Connection, Publisher, QueueSubscriber
from support.kafka.log import until
from support.processes.figures import free_port

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]


PORTS = {"8080": str(free_port())}
"""A container has ports of its own."""


def command_of(service: str) -> list[str]:
    """The command line of a service, with this Python in the place of the image's entry points."""
    entrypoint = SERVICES[service].get("entrypoint", ["python", "-m", "lapse"])
    assert entrypoint[0] == "python"
    return [sys.executable, *entrypoint[1:], *(PORTS.get(word, word) for word in SERVICES[service]["command"])]


def _answer(url: str) -> object:
    """What is told at an address; None while nobody listens."""
    try:
        return httpx.get(url, timeout=10).json()
    except httpx.TransportError:
        return None


@pytest.mark.feature("D1")
@pytest.mark.timeout(280)
def test_every_service_does_its_work(own_kafka: object, tmp_path: Path) -> None:
    """`apply` creates topics, `worker` serves the example queue, `gateway` opens it, `monitor` counts what died."""
    servers: str = own_kafka.bootstrap_servers  # type: ignore[attr-defined]
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": servers}
    shutil.copy(ROOT / "docker/lapse.toml", tmp_path)
    subprocess.run(command_of("apply"), cwd=tmp_path, env=environment, check=True, timeout=60)
    running = [
        subprocess.Popen(command_of(service), cwd=tmp_path, env=environment, start_new_session=True)
        for service in ("worker", "gateway", "monitor")
    ]
    try:
        connection = Connection(servers)
        with Publisher(connection=connection) as publisher:
            publisher.publish("orders", b'{"id": 1}')
            publisher.publish("orders", b'{"id": 2}')
        with QueueSubscriber("orders", connection=connection, timeout_s=60) as subscriber:
            for outcome in ("acknowledge", "expire"):
                delivery = subscriber.receive(60)
                assert delivery is not None
                getattr(delivery, outcome)()
        until(
            lambda: _answer(f"http://127.0.0.1:{PORTS['8080']}/v1/queues") == {"queues": ["orders"]}, "the gateway", 60
        )
        until(lambda: any((tmp_path / "monitor").rglob("*.parquet")), "the monitor's tables", 120)
        assert [process.poll() for process in running] == [None, None, None]
    finally:
        for process in running:
            process.terminate()
            process.wait(60)
