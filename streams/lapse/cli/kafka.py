"""`lapse kafka`: runs a local broker without Docker, for experiments and tests."""

import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lapse.cli.ending import treat_sigterm_as_ctrl_c
from lapse.cli.lazy_group import LazyGroup
from lapse.embedded import daemon
from lapse.embedded.errors import EmbeddedError
from lapse.embedded.instance import Instance
from lapse.tables import print_table

_data = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory with the broker's data. [default: LAPSE_KAFKA_DATA, else the user's data directory]",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


@click.group(cls=LazyGroup, lazy={})
def kafka() -> None:
    """Start, show and stop a local Kafka broker."""


@kafka.command()
@_data
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9092, show_default=True, help="The port; 0 = a free one."
)
@click.option("--heap-mb", type=click.IntRange(min=128), default=1024, show_default=True, help="Heap of the JVM, MiB.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A broker property; repeatable.")
@click.option("--foreground", is_flag=True, help="Stay in the foreground; Ctrl-C stops the broker.")
@_json
def start(
    data: Path | None, port: int, heap_mb: int, properties: tuple[str, ...], foreground: bool, as_json: bool
) -> None:
    """Start a broker, and return once it answers.

    The broker runs in the background until `lapse kafka stop`, and keeps its data for the next start.
    """
    place = _place(data)
    try:
        daemon.prepare(port)
        with Console(stderr=True).status("Starting Kafka ..."):
            broker = daemon.start(
                place, port=port, properties=_parse(properties), heap_mb=heap_mb, detached=not foreground
            )
    except EmbeddedError as error:
        _fail(str(error), as_json)
    instance = Instance(broker.jvm.pid, broker.jvm.started_s, broker.bootstrap_servers, broker.data)
    if not foreground:
        _show(instance, as_json)
        return
    treat_sigterm_as_ctrl_c()
    try:
        _show(instance, as_json)
        while broker.running:
            time.sleep(0.2)
    except KeyboardInterrupt:
        broker.stop()
        return
    _fail(f"The broker has ended by itself; its log is {broker.log}.", as_json=False)


@kafka.command()
@_data
@_json
def status(data: Path | None, as_json: bool) -> None:
    """Show the broker; exit with 1 when none runs."""
    place = _place(data)
    found = Instance.find(place)
    if found is None:
        if as_json:
            unknown = dict.fromkeys(("bootstrap_servers", "pid", "started_s", "resident_bytes", "log"))
            _print_json({"running": False, "data": str(place), **unknown})
        else:
            click.echo(f"No broker runs on {place}. Start one with: lapse kafka start")
        sys.exit(1)
    _show(found, as_json)


@kafka.command()
@_data
@_json
def stop(data: Path | None, as_json: bool) -> None:
    """Stop the broker, and keep its data; fine when none runs."""
    place = _place(data)
    stopped = daemon.stop(place)
    if as_json:
        _print_json({"running": False, "stopped": stopped is not None, "data": str(place)})
    elif stopped is None:
        click.echo(f"No broker runs on {place}.")
    else:
        click.echo(f"Stopped the broker at {stopped.bootstrap_servers}. Its data stays in {place}.")


def _place(data: Path | None) -> Path:
    """Return the data directory."""
    return data.absolute() if data is not None else daemon.data_dir()


def _parse(properties: tuple[str, ...]) -> dict[str, str]:
    """Split `NAME=VALUE` arguments."""
    parsed = {}
    for text in properties:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--property")
        parsed[name.strip()] = value
    return parsed


def _show(found: Instance, as_json: bool) -> None:
    """Print a running broker."""
    jvm = found.jvm
    if as_json:
        _print_json(
            {
                "running": True,
                "bootstrap_servers": found.bootstrap_servers,
                "pid": found.pid,
                "started_s": found.started_s,
                "resident_bytes": jvm.resident_bytes if jvm else 0,
                "data": str(found.data),
                "log": str(found.log),
            }
        )
        return
    table = Table(show_header=False, box=None)
    table.add_row("Kafka", Text(found.bootstrap_servers, style="bold"))
    table.add_row("process", f"{found.pid}, {(jvm.resident_bytes if jvm else 0) / 2**20:.0f} MiB")
    table.add_row("data", str(found.data))
    table.add_row("log", str(found.log))
    print_table(table)


def _print_json(value: dict[str, Any]) -> None:
    """Print one object on a line."""
    click.echo(orjson.dumps(value).decode())


def _fail(message: str, as_json: bool) -> NoReturn:
    """Print an error, and exit with code 1."""
    if as_json:
        _print_json({"running": False, "error": message})
    raise click.ClickException(message)
