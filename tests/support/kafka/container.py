"""Kafka in a container, for `pytest --kafka=testcontainers`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lapse.embedded.settings import Ports, cluster_id, free_ports, server_properties

IMAGE = "apache/kafka:4.3.0"


class NoDocker(Exception):
    """No Docker engine answers."""


@contextmanager
def kafka_container() -> Iterator[str]:
    """Run the official image with the settings of the embedded broker, and yield its bootstrap servers.

    Raises:
        NoDocker: There is no Docker engine.
    """
    from docker.errors import DockerException
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    port = free_ports().client
    properties = server_properties(Path("/tmp/kafka"), Ports(9092, 9093), {}) | {
        "listeners": "PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": f"PLAINTEXT://localhost:{port}",
    }
    try:
        container = DockerContainer(IMAGE)
    except DockerException as error:
        raise NoDocker(f"--kafka=testcontainers needs a Docker engine, and none answers: {error}") from error
    container = container.with_bind_ports(9092, port).with_env("CLUSTER_ID", cluster_id())
    for name, value in properties.items():
        container = container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    with container.waiting_for(LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(120)):
        yield f"localhost:{port}"
