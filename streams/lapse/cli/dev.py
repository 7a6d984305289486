"""`lapse dev`: a broker, the topics, a worker and the console in one foreground process tree."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import click
import orjson
from rich.console import Console

from lapse.cli import cluster, sample
from lapse.cli.child import Child
from lapse.cli.children import Children
from lapse.cli.config_option import CONFIG
from lapse.cli.ending import end_at_once_by_a_second_ctrl_c
from lapse.config import Config, ConfigError, load
from lapse.core.entitlement import Right, find_entitlement
from lapse.core.error_code import ErrorCode
from lapse.embedded import daemon
from lapse.embedded.broker import given_broker
from lapse.embedded.errors import EmbeddedError
from lapse.embedded.instance import Instance
from lapse.embedded.kafka import EmbeddedKafka
from lapse_client.error import CommandFailed, ConnectionFailed, LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.queue.queue import Queue
from lapse_client.sow.sow_client import SowClient

_LOOK_EVERY_S: Final = 0.5
"""How often the children and the file are checked, in seconds."""

_STOP_S: Final = 6.0
"""How long the worker and the console may take to end, in seconds. A worker may be killed: Kafka has its state."""

_BROKER_STOPS_S: Final = 10.0
"""How long the broker may take to end, in seconds. A killed broker needs longer for its next start."""

_SERVES_WITHIN_S: Final = 60.0
"""How long the worker may take until every entity answers, in seconds."""

_DEFAULT_PORT: Final = 9092

_REFUSED: Final = frozenset({ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN})
"""The codes with which a worker refuses a command of somebody who is no user, or lacks a right."""

_BLANK: Final = " \t\b"
"""Characters that are invisible in a line. Faust's output ends with a backspace."""

_FAULT: Final = "Error: "
"""The begin of the line in which a command says what is wrong."""

_STARTED: Final = "lapse gateway: "
"""The begin of the gateway's first line, which `lapse dev` replaces by its own text."""


@dataclass(slots=True)
class Stand:
    """The running deployment: addresses and processes.

    Attributes:
        config: the configuration that was applied last.
        path: path of its file.
        servers: the broker's address.
        broker: the broker that this command started; None if it ran before.
        children: the processes beside the broker.
        console: URL of the console.
        text: content of the file at the last look.
        refused: whether that content was refused. Then the processes keep an earlier one.
    """

    config: Config
    path: Path
    servers: str
    broker: EmbeddedKafka | None = None
    children: Children = field(init=False)
    console: str = ""
    text: bytes = b""
    refused: bool = False

    def __post_init__(self) -> None:
        self.children = Children({"KAFKA_BOOTSTRAP_SERVERS": self.servers}, _print_child_line)


@click.command()
@CONFIG
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=_DEFAULT_PORT,
    show_default=True,
    help="The broker's port; 0 = a free one.",
)
@click.option(
    "--console-port",
    type=click.IntRange(0, 65_535),
    default=8080,
    show_default=True,
    help="The port of the console and of HTTP; 0 = a free one.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory with the broker's data. [default: LAPSE_KAFKA_DATA, else the user's data directory]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="The least severity that the worker logs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when everything runs; logs go to stderr.")
def dev(config: Path, port: int, console_port: int, data: Path | None, log_level: str, as_json: bool) -> None:
    """Run a broker, the topics of lapse.toml, a worker and the console.

    Runs until Ctrl-C; a second Ctrl-C kills all processes at once. Writes a lapse.toml where there is none, and applies
    it again when it changes. The broker keeps its data for the next time. Where KAFKA_BOOTSTRAP_SERVERS names a broker,
    that one is used; topics are created without asking.
    """
    progress = Console(stderr=True)
    end_at_once_by_a_second_ctrl_c()
    try:
        if console_port and daemon.is_taken(console_port):
            raise click.ClickException(
                f"port {console_port}, where the console would be, is in use. Give another one with --console-port, "
                "or --console-port 0 for any free one"
            )
        with _sample(config) as announce:
            settings, text = _loaded(config), _text(config)
            cluster.connection_with(settings, "")  # before a broker starts: a secret that cannot be read ends it
            with _broker(data, port, config, progress) as (servers, broker):
                announce()
                _run(Stand(settings, config, servers, broker, text=text), console_port, log_level, as_json, progress)
    except KeyboardInterrupt:
        click.echo("lapse dev: ended.", err=True)
        os._exit(0)  # all processes have ended; freeing memory would take seconds on a busy machine
    except (EmbeddedError, LapseError) as error:  # such as a secret's file that cannot be read
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def _sample(path: Path) -> Iterator[Callable[[], None]]:
    """Write a sample if there is no file, and delete it at the end unless the yielded function has announced it.

    Raises:
        click.ClickException: the file cannot be written.
    """
    try:
        fresh = sample.write(path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}. Give another --config") from error

    def announce() -> None:
        nonlocal fresh
        if fresh:
            click.echo(f"lapse dev: there was no {path}; wrote one with a queue and a SOW topic.", err=True)
        fresh = False

    try:
        yield announce
    finally:
        if fresh:
            path.unlink(missing_ok=True)


def _loaded(path: Path) -> Config:
    """Load the file."""
    try:
        return _usable(load(path))
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


def _usable(config: Config) -> Config:
    """Return the configuration, or refuse one that a broker for development cannot serve."""
    if config.security.protocol != "PLAINTEXT" and given_broker() is None:
        raise ConfigError(
            f"[security] protocol: {config.security.protocol}: the broker of `lapse dev` speaks PLAINTEXT only. Leave "
            "it out here, or name a broker by KAFKA_BOOTSTRAP_SERVERS"
        )
    if not config.queue and not config.sow:
        raise ConfigError("neither [queue.<name>] nor [sow.<name>]; there is nothing to run")
    return config


@contextlib.contextmanager
def _broker(
    data: Path | None, port: int, config: Path, progress: Console
) -> Iterator[tuple[str, EmbeddedKafka | None]]:
    """Yield the address of a broker: a given one, one that runs on the data already, or one for the block."""
    if (given := given_broker()) is not None:
        try:
            cluster.connection(None, config)
        except ConnectionFailed as error:
            raise click.ClickException(
                f"{error}. Without KAFKA_BOOTSTRAP_SERVERS `lapse dev` starts a broker of its own"
            ) from error
        yield given, None
        return
    place = data.absolute() if data is not None else daemon.data_dir()
    if (running := Instance.find(place)) is not None:
        click.echo(f"lapse dev: uses the broker that runs already, at {running.bootstrap_servers}.", err=True)
        yield running.bootstrap_servers, None
        return
    daemon.prepare(port)
    with progress.status("Starting Kafka ..."):
        broker = daemon.start(place, port=port, detached=False)
    try:
        yield broker.bootstrap_servers, broker
    finally:
        broker.stop(_BROKER_STOPS_S)


def _run(stand: Stand, console_port: int, log_level: str, as_json: bool, progress: Console) -> None:
    """Start the children, print their addresses, and watch them until one ends or Ctrl-C comes."""
    end_at_once_by_a_second_ctrl_c(stand.children.kill)  # the broker's supervisor ends the broker
    try:
        # The console needs no topics, so it loads while they are created.
        serve = ["gateway", "--port", str(console_port), "--wait", "--config", str(stand.path)]
        gateway = stand.children.start("console", serve)
        with progress.status("Creating the topics of lapse.toml ..."):
            if (fault := _apply(stand)) is not None:
                raise click.ClickException(fault)
        worker = _worker(stand, log_level)
        with progress.status("Starting the worker and the console ..."):
            stand.console = _address(gateway)
            _wait_for_entities(stand, worker)
        _print_addresses(stand, as_json)
        _watch(stand, worker, gateway, log_level)
    finally:
        stand.children.stop(_STOP_S)


def _worker(stand: Stand, log_level: str) -> Child:
    return stand.children.start("worker", ["worker", "--config", str(stand.path), "--log-level", log_level])


def _apply(stand: Stand) -> str | None:
    """Create the topics that the file needs; return None if that worked, else what is wrong, in one sentence."""
    lines: list[str] = []
    arguments = ["apply", "--yes", "--config", str(stand.path)]
    if stand.children.start("apply", arguments, lambda _name, line: lines.append(line)).wait() == 0:
        return None
    if lines and lines[-1].startswith(_FAULT):
        return lines[-1].removeprefix(_FAULT)
    for line in lines:
        _print_child_line("apply", line)
    return "the topics could not be created: see above"


def _address(gateway: Child) -> str:
    """Wait until the gateway prints its address, and return that."""
    line = gateway.first_line(_SERVES_WITHIN_S) or ""
    if not line.startswith(_STARTED):
        raise click.ClickException("the console did not start: see above")
    return line.removeprefix(_STARTED)


def _wait_for_entities(stand: Stand, worker: Child) -> bool:
    """Wait until each entity answers; return whether all do."""
    deadline = time.monotonic() + _SERVES_WITHIN_S
    connection = cluster.connection_with(stand.config, stand.servers)
    for name in [*stand.config.queue, *stand.config.sow]:
        allowed = _as_user(connection, stand.config, name)
        while not _answers(name, stand.config, allowed):
            if worker.code is not None:
                if _text(stand.path) != stand.text:
                    return False  # the worker may have read and refused the new text
                raise click.ClickException("the worker ended: see above")
            if time.monotonic() > deadline:
                click.echo(f"lapse dev: {name} does not answer yet; its worker's log says why.", err=True)
                return False
    return True


def _as_user(connection: Connection, config: Config, entity: str) -> Connection:
    """Return a connection of a user who may read an entity, if there is one: workers log what they refuse."""
    if (name := _reader(config, entity)) is None or connection.user:
        return connection
    try:
        return replace(connection, user=name, secret=config.users[name].keys()[0].decode())
    except ValueError:  # the key cannot be read: the worker's log says so
        return connection


def _reader(config: Config, entity: str) -> str | None:
    """Return the first user who may read an entity; None if there is none."""
    granted = ((name, find_entitlement(entity, user.granted())) for name, user in config.users.items())
    return next((name for name, entitlement in granted if Right.READ in entitlement.rights), None)


def _answers(name: str, config: Config, connection: Connection) -> bool:
    """Ask an entity; return whether a worker answered within two seconds."""
    try:
        if name in config.queue:
            with Queue(name, connection=connection, timeout_s=2.0) as queue:
                queue.depth()
        else:
            with SowClient(name, connection=connection, timeout_s=2.0) as sow:
                next(iter(sow.query(top_n=1)), None)
    except CommandFailed as error:  # where there are users, a refusal of this command is an answer, too
        return error.code in _REFUSED
    except LapseError:
        return False
    return True


def _print_addresses(stand: Stand, as_json: bool) -> None:
    """Print all addresses, and what to try."""
    queues, topics = sorted(stand.config.queue), sorted(stand.config.sow)
    if as_json:
        facts = {"bootstrap_servers": stand.servers, "console": stand.console, "config": str(stand.path)}
        click.echo(orjson.dumps({**facts, "queues": queues, "sow": topics}))
        return
    lines = [
        "Everything runs; Ctrl-C ends it.",
        "",
        f"  Kafka       {stand.servers}",
        f"  console     {stand.console}",
        f"  queues      {', '.join(queues) or 'none'}",
        f"  SOW topics  {', '.join(topics) or 'none'}",
        "",
        "In another terminal:",
        "",
    ]
    if stand.servers.rpartition(":")[2] != str(_DEFAULT_PORT):
        lines.append(f"  export KAFKA_BOOTSTRAP_SERVERS={stand.servers}")
    queues = sorted(queues, key=lambda one: _reader(stand.config, one) is None)  # first one that a user may read
    if queues and (reader := _reader(stand.config, queues[0])) is not None:
        user = stand.config.users[reader]
        key = f"LAPSE_SECRET_FILE={shlex.quote(user.key_file)}" if user.key_file else f'LAPSE_SECRET="${user.key_env}"'
        lines.append(f"  export LAPSE_USER={reader} {key}")
    if queues:
        lines += [f"  lapse publish {queues[0]} '{{\"id\": 1}}'", f"  lapse queue subscribe {queues[0]} --count 1"]
    lines.append("  lapse doctor")
    click.echo("\n".join(lines))


def _watch(stand: Stand, worker: Child, gateway: Child, log_level: str) -> None:
    """Watch the children until one ends, and apply the file when it changes."""
    while True:
        time.sleep(_LOOK_EVERY_S)
        if stand.broker is not None and not stand.broker.running:
            raise click.ClickException(f"Kafka ended by itself; its log is {stand.broker.log}")
        text = _text(stand.path)
        changed = text not in (stand.text, b"")
        for child in (worker, gateway):
            # A worker reads the file itself. If it refused the file, it is started again after the next change.
            if child.code is not None and not (child is worker and (changed or stand.refused)):
                raise click.ClickException(f"the {child.name} ended by itself, with code {child.code}: see above")
        if not changed:
            continue
        stand.text = text
        try:
            stand.config, stand.refused = _usable(load(stand.path)), False
        except ConfigError as error:
            stand.refused = True
            click.echo(f"lapse dev: what runs goes on as before: {error}", err=True)
            continue
        if (fault := _apply(stand)) is not None:
            click.echo(f"lapse dev: what runs goes on as before: {fault}", err=True)
        else:
            worker.stop(_STOP_S)
            worker = _worker(stand, log_level)
            if _wait_for_entities(stand, worker):
                click.echo(f"lapse dev: {stand.path} is applied.", err=True)


def _text(path: Path) -> bytes:
    """Return the content of the file; empty if it does not exist at the moment."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _print_child_line(name: str, line: str) -> None:
    """Print a line of a child, on standard error."""
    if click.unstyle(line).strip(_BLANK) and not line.startswith(_STARTED):
        click.echo(f"{name:<8}| {line}", err=True)
