"""The configuration of the embedded broker: one node, broker and controller, small and quick to start."""

import base64
import shutil
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CHECKPOINT: Final = "bootstrap.checkpoint"
"""File in a data directory with the features with which a new cluster begins."""

_SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": (
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
    ),
    # One node: nothing can be replicated.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # Topics are created explicitly, with the partitions and settings that they need.
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "log.message.timestamp.type": "CreateTime",
    # Consumers start at once, and a dead one is noticed quickly.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # After a kill the node may register again as soon as its old session is over (Kafka's default: 9 s).
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Little memory and few threads.
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.cleaner.threads": "1",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    # The controller writes a record to its log twice a second by default, to show the lag of other nodes. There are
    # none.
    "metadata.max.idle.interval.ms": "5000",
    "num.recovery.threads.per.data.dir": "1",
    "log.segment.delete.delay.ms": "1000",
}

_LOG4J = """\
status = WARN
shutdownHook = disable
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = INFO
logger.socket.name = kafka.network.SocketServer
logger.socket.level = INFO
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """The two TCP ports of the broker, on the loopback interface."""

    client: int
    controller: int


def free_ports() -> Ports:
    """Return two ports that are free now. Another process may still take them first."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return Ports(first.getsockname()[1], second.getsockname()[1])


def cluster_id() -> str:
    """Return a new cluster id: 16 random bytes in URL-safe Base64, as Kafka writes them."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()).startswith("-"):
        pass  # the storage tool would read it as an option
    return text


def server_properties(data: Path, ports: Ports, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the broker's configuration. Values in `extra` override it, and may add listeners.

    `{client}` and `{controller}` in a value of `extra` stand for the port numbers.
    """
    properties = _SINGLE_NODE | {
        "listeners": f"PLAINTEXT://127.0.0.1:{ports.client},CONTROLLER://127.0.0.1:{ports.controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports.client}",
        "controller.quorum.voters": f"1@127.0.0.1:{ports.controller}",
        "log.dirs": str(data / "log"),
    }
    for name, value in extra.items():
        value = value.replace("{client}", str(ports.client)).replace("{controller}", str(ports.controller))
        properties[name] = value
    return properties


def write_files(data: Path, properties: Mapping[str, str]) -> tuple[Path, Path]:
    """Write `server.properties` and `log4j2.properties` into `data` and return their paths."""
    server, logging = data / "server.properties", data / "log4j2.properties"
    server.write_text("".join(f"{name}={_escape(value)}\n" for name, value in properties.items()), encoding="utf-8")
    server.chmod(0o600)  # extra properties may contain passwords
    logging.write_text(_LOG4J, encoding="utf-8")
    return server, logging


def prepare(log: Path, checkpoint: Path) -> None:
    """Prepare an empty data directory like Kafka's tool, with the checkpoint that it wrote for another one."""
    log.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(checkpoint, log / CHECKPOINT)
    own = {"version": "1", "cluster.id": cluster_id(), "node.id": "1", "directory.id": cluster_id()}
    (log / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in own.items()), encoding="utf-8")


def _escape(value: str) -> str:
    """Escape a value for Java's properties reader, which reads bytes as Latin-1."""
    value = value.replace("\\", "\\\\").replace("\n", "\\n")
    return "".join(letter if letter.isascii() else _utf16(letter) for letter in value)


def _utf16(letter: str) -> str:
    """Return a letter as Java's escapes of its UTF-16 units."""
    units = letter.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
