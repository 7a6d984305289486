"""The embedded broker that outlives the command that started it."""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from lapse.embedded import jars
from lapse.embedded.broker import given_broker
from lapse.embedded.cache import locked
from lapse.embedded.errors import BrokerFailed
from lapse.embedded.instance import Instance
from lapse.embedded.java import find_java
from lapse.embedded.kafka import EmbeddedKafka
from lapse.embedded.settings import Ports, free_ports


def data_dir() -> Path:
    """Return the daemon's data directory: `LAPSE_KAFKA_DATA`, or else the platform's directory for application data."""
    if given := os.environ.get("LAPSE_KAFKA_DATA"):
        return Path(given).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "lapse" / "kafka"
    base = os.environ.get("XDG_DATA_HOME") or ""
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "share") / "lapse" / "kafka"


def prepare(port: int) -> None:
    """Fetch what a broker needs, with a progress bar, before `start`, which may run behind another progress bar.

    Args:
        port: the broker's port. If it is in use nothing is fetched, and `start` reports it.

    Raises:
        EmbeddedError: Java or jars are missing.
    """
    if given_broker() is None and not (port and is_taken(port)):
        find_java()
        jars.jar_files(jars.KAFKA)


def start(
    data: Path,
    *,
    port: int,
    properties: Mapping[str, str] | None = None,
    heap_mb: int = 1024,
    detached: bool = True,
) -> EmbeddedKafka:
    """Start a broker on `data`, and return it once it answers.

    Args:
        data: Directory with the broker's data; created if need be.
        port: TCP port for clients; 0 takes a free one.
        properties: Further broker properties.
        heap_mb: Largest heap of the JVM, in MiB.
        detached: Whether the broker goes on when this process ends.

    Raises:
        BrokerFailed: `KAFKA_BOOTSTRAP_SERVERS` is set, a broker runs on `data` already, or it does not come up.
        EmbeddedError: Java or jars are missing.
    """
    if (given := given_broker()) is not None:
        raise BrokerFailed(
            f"KAFKA_BOOTSTRAP_SERVERS is set to {given}, so that broker is used and none is started. "
            "Unset it to start one."
        )
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BrokerFailed(f"{data} cannot hold the broker's data: {error.strerror}. Give another --data.") from error
    with locked(data / ".start.lock"):
        if (running := Instance.find(data)) is not None:
            raise BrokerFailed(
                f"A broker runs on {data} already, at {running.bootstrap_servers} (process {running.pid}). Use that "
                "one, stop it with `lapse kafka stop`, or give another --data and --port."
            )
        if port and is_taken(port):
            raise BrokerFailed(f"Port {port} is in use. Give another one with --port, or --port 0 for any free one.")
        kafka = EmbeddedKafka(
            data,
            ports=Ports(port, free_ports().controller) if port else None,
            properties=properties,
            heap_mb=heap_mb,
            quick_start=False,
            detached=detached,
        )
        try:
            kafka.start()
        except BaseException:
            kafka.stop()
            raise
        return kafka


def stop(data: Path, timeout_s: float = 30) -> Instance | None:
    """Shut down the broker that runs on `data`, keeping its data; return the instance that ran, or None."""
    running = Instance.find(data)
    if running is not None and (jvm := running.jvm) is not None:
        jvm.terminate(timeout_s)
    return running


def is_taken(port: int) -> bool:
    """Return whether a program listens on `port` of the loopback interface."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
