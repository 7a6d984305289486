"""`lapse gateway`: queues and SOW topics over HTTP, for programs that do not speak Kafka."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import orjson

from lapse.cli import cluster
from lapse.option_type import Number, Read
from lapse.protocol import topic
from lapse.runtime.worker_log import JsonFormatter, TextFormatter, begin
from lapse_client.error import ConnectionFailed, LapseError

if TYPE_CHECKING:
    from lapse_client.kafka.connection import Connection
    from lapse_gateway import Gateway, Settings, Users
    from lapse_gateway.scrape import Source

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_GARBAGE_THRESHOLDS: Final = (30_000, 5, 50)
"""Thresholds for the garbage collector. A batch makes thousands of short-lived objects without cycles. By default the
collector would run after every fifteenth message, and take a fifth of the time for reading and encoding messages."""


def _source(text: str) -> Source:
    from lapse_gateway.scrape import Source

    return Source.parse(text)


class _Deployment(click.ParamType):
    """An option with another deployment: its name and its `lapse.toml`."""

    name = "deployment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Path]:
        """Read it."""
        if isinstance(value, tuple):
            return value
        name, equals, path = str(value).partition("=")
        if not equals or not path:
            self.fail(f"{value!r}: expected NAME=FILE, such as west=west/lapse.toml")
        if not _NAME.fullmatch(name):
            self.fail(f"{name!r}: a name has small letters, digits and dashes, at most 32")
        return name, Path(path)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, help="The port; 0 = a free one."
)
@click.option(
    "--allow-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="Where there are no users: a name by which browsers may call the gateway, beside localhost; may be repeated. "
    "With a --host that other machines reach, any name by default.",
)
@click.option(
    "--read-only", is_flag=True, help="Refuse all requests that change something, publishing and receiving included."
)
@click.option("--tls-certificate", type=click.Path(path_type=Path), help="Use HTTPS with this certificate (PEM).")
@click.option("--tls-key", type=click.Path(path_type=Path), help="The key, if it is in another file (PEM).")
@click.option(
    "--rate",
    type=Number(0, min_open=True),
    help="The greatest number of requests a second per user or address.",
)
@click.option(
    "--max-body",
    type=click.IntRange(1_024, 1 << 30),
    default=8 << 20,
    show_default=True,
    help="The greatest size of a request's body, in bytes.",
)
@click.option(
    "--figures",
    multiple=True,
    type=Read("url", _source),
    metavar="URL",
    help="Where a worker serves its figures, for rates on the console; may be repeated. metrics_port of lapse.toml by "
    "default.",
)
@click.option(
    "--deployment",
    "deployments",
    multiple=True,
    type=_Deployment(),
    metavar="NAME=FILE",
    help="Another deployment to serve below /deployments/NAME, by its lapse.toml; may be repeated.",
)
@click.option("--wait", is_flag=True, help="Start even if no broker answers yet, and serve when one does.")
@cluster.options
@click.option("--json", "as_json", is_flag=True, help="Print the address, and the log, as JSON, one object per line.")
def gateway(
    host: str,
    port: int,
    allowed: tuple[str, ...],
    read_only: bool,
    tls_certificate: Path | None,
    tls_key: Path | None,
    rate: float | None,
    max_body: int,
    figures: tuple[Source, ...],
    deployments: tuple[tuple[str, Path], ...],
    wait: bool,
    bootstrap_servers: str | None,
    as_json: bool,
) -> None:
    """Serve queues, SOW topics and the console over HTTP.

    Runs until Ctrl-C or SIGTERM. Where lapse.toml has users, requests need a user and their key.
    """
    from lapse_gateway import Gateway, Settings, serve
    from lapse_gateway.called_host import is_loopback
    from lapse_gateway.server import context, listen

    if tls_key is not None and tls_certificate is None:
        raise click.UsageError("--tls-key needs --tls-certificate")
    begin(JsonFormatter() if as_json else TextFormatter(_LINE))
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    kafka_log = logging.getLogger("lapse_client.kafka")
    kafka_log.setLevel(logging.CRITICAL)  # a fault at the start is reported in one sentence
    try:
        settings = Settings(
            host=host,
            port=port,
            names=frozenset(name.lower() for name in allowed) if allowed or is_loopback(host) else None,
            read_only=read_only,
            certificate=tls_certificate,
            key=tls_key,
            rate=rate,
            largest_body=max_body,
            figures=figures or _figures(),
            payloads=cluster.payloads(),
        )
        opened = listen(host, port)
        with opened:
            users = _users()
            found = Gateway(
                _wait_for_cluster(cluster.configured_connection(bootstrap_servers), wait),
                settings,
                users,
                name=_app_id(),
            )
            found.beside(_other_deployments(deployments, settings, found.name))
            kafka_log.setLevel(logging.ERROR)
            context(found)  # report a wrong certificate before the address
            _spare_collector()
            serve(found, opened, partial(_report_start, found, host, as_json))
    except LapseError as error:
        raise click.ClickException(str(error)) from error


def _report_start(gateway: Gateway, host: str, as_json: bool, address: str) -> None:
    """Print the address, and warn if everybody who reaches it may do everything."""
    from lapse_gateway.called_host import is_loopback

    click.echo(orjson.dumps({"address": address}) if as_json else f"lapse gateway: {address}")
    if not all(one.users.users for one in gateway.deployments) and not is_loopback(host):
        logging.getLogger("lapse_gateway").warning(
            "everybody who reaches %s may do everything: configure users in lapse.toml (docs/security.md)", address
        )


def _spare_collector() -> None:
    """Have the garbage collector look seldom, and never at what is there at the start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def _wait_for_cluster(connection: Connection, wait: bool) -> Connection:
    """Check that a cluster answers and shows entities; with `wait`, only log a warning if it does not yet.

    Raises:
        ConnectionFailed: the cluster does not answer, or refuses this client.
        LapseError: the cluster hides all entities from this user.
    """
    log = logging.getLogger("lapse_gateway")
    try:
        connection.await_broker(cluster.PATIENCE_S)
        is_empty = not any(name.startswith(topic.PREFIX) for name in connection.partitions())
        blind = connection.blind("queues and SOW topics", topic.PREFIX) if is_empty else None
    except ConnectionFailed as error:
        if error.refused or not wait:
            raise
        log.warning("%s. The gateway waits for it, and is not ready", error)
        return connection
    if blind is not None:  # rights on single topics take effect once `lapse apply` has created these
        if not wait:
            raise blind
        log.warning("%s. The gateway goes on, and shows what it may see", blind)
    return connection


_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104  # the worker's address, not the gateway's
_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def _other_deployments(deployments: Sequence[tuple[str, Path]], settings: Settings, own: str) -> list[Gateway]:
    """Return the deployments beside the first one. If brokers of one do not answer yet, it is served when they do.

    Raises:
        LapseError: two deployments have the same name, or a file cannot be read or is not valid.
    """
    from lapse_gateway import Gateway

    found: list[Gateway] = []
    for name, path in deployments:
        if name in (own, *(one.name for one in found)):
            raise LapseError(f"--deployment {name}: this name is taken; every deployment needs one of its own")
        its = replace(settings, figures=_figures(path), payloads=cluster.payloads(path))
        connection = cluster.connection_from_file(path)
        found.append(Gateway(connection, its, _users(path), name=name, at=f"/deployments/{name}"))
    return found


def _app_id() -> str:
    """Return the name of the first deployment."""
    config = cluster.configuration()
    return "lapse" if config is None else config.lapse.app_id


def _figures(path: Path | None = None) -> tuple[Source, ...]:
    """Return the URL of the figures of a `lapse.toml`'s worker, if it serves any. It should run on this machine."""
    from lapse_gateway.scrape import Source

    config = cluster.configuration(path)
    if config is None or not config.lapse.metrics_port:
        return ()
    configured = config.lapse.metrics_host
    host = "localhost" if configured in _EVERYWHERE else f"[{configured}]" if ":" in configured else configured
    return (Source.parse(f"http://{host}:{config.lapse.metrics_port}/metrics"),)


def _users(path: Path | None = None) -> Users:
    """Return the users of a `lapse.toml`, and the entities that read topics.

    Raises:
        LapseError: the file, or a user's key, cannot be read or is not valid.
    """
    from lapse_gateway import User, Users

    config = cluster.configuration(path)
    if config is None or not config.users:
        return Users()
    try:
        users = {
            name: User(name=name, keys=user.keys(), entitlements=user.granted()) for name, user in config.users.items()
        }
    except ValueError as error:
        raise LapseError(f"users of lapse.toml: {error}") from error
    return Users(users=users, readers=lambda topic: frozenset(config.readers(topic)))
