"""Which cluster a command speaks to: from its options, the environment, or `lapse.toml`."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection

if TYPE_CHECKING:
    from lapse.config import Config

_CONFIG: Final = "lapse.config"
_PROPERTIES: Final = "lapse.properties"
_DEFAULT: Final = Path("lapse.toml")
PATIENCE_S: Final = 2.5
"""How long a command waits for the first answer of a broker, s."""

_TABLES: Final = frozenset({"lapse", "queue", "sow", "users"})
"""A file with one of these is a `lapse.toml`."""

Command = Callable[..., Any]


def options(command: Command) -> Command:
    """Add `--bootstrap-servers`, which the command gets, `--config` and `--kafka-config`, which `connection` reads."""
    servers = click.option(
        "-b", "--bootstrap-servers", help="The brokers, instead of those of KAFKA_BOOTSTRAP_SERVERS or lapse.toml."
    )
    config = click.option(
        "-c",
        "--config",
        type=click.Path(path_type=Path),
        expose_value=False,
        callback=_remember,
        help="The file with the connection.  [default: lapse.toml, if there is one]",
    )
    return servers(config(properties(command)))


def properties(command: Command) -> Command:
    """Add `--kafka-config`, which `connection` reads."""
    return click.option(
        "--kafka-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        expose_value=False,
        callback=_remember_properties,
        help="Client properties, as Kafka's own tools take them; instead of LAPSE_KAFKA_CONFIG.",
    )(command)


def connection(bootstrap_servers: str | None, path: Path | None = None, *, insists: bool = True) -> Connection:
    """The cluster that is meant, once one of its brokers has answered.

    Args:
        bootstrap_servers: the command's option.
        path: the configuration file; None = what `--config` says, or `lapse.toml`, if there is one.
        insists: whether the command waits on where no worker runs; see `Connection`.

    Raises:
        ConnectionFailed: no broker answered within some seconds.
        LapseError: a file of the environment, or `lapse.toml`, cannot be read or is wrong.
    """
    found = dataclasses.replace(meant(bootstrap_servers, path), insists=insists)
    found.await_broker(PATIENCE_S)
    return found


def meant(bootstrap_servers: str | None, path: Path | None = None) -> Connection:
    """The cluster that is meant, whether it answers or not.

    The servers come from the option, KAFKA_BOOTSTRAP_SERVERS, the file of client properties or `lapse.toml`, in this
    order. What `lapse.toml` says of TLS and SASL counts unless the client properties say otherwise.

    Args:
        bootstrap_servers: the command's option.
        path: as for `connection`.

    Raises:
        LapseError: a file of the environment, or `lapse.toml`, cannot be read or is wrong.
    """
    found = Connection.from_environment(bootstrap_servers, _properties())
    config = configuration(path)
    return found if config is None else _completed(found, config, bootstrap_servers)


def told_by(path: Path) -> Connection:
    """The cluster of another `lapse.toml`, by that file alone: the environment is about the command's own.

    Raises:
        LapseError: it cannot be read, or is wrong.
    """
    config = configuration(path)
    assert config is not None  # a file that was named is read, or refused
    return Connection(config.lapse.bootstrap_servers, _security(config))


def is_lapse_toml(path: Path) -> bool:
    """Whether a file is a `lapse.toml`, and not one that a command has of its own; one that cannot be read is none."""
    try:
        return not _TABLES.isdisjoint(tomllib.loads(path.read_text("utf-8-sig")))
    except (OSError, ValueError):
        return False


def configuration(path: Path | None = None) -> Config | None:
    """What `lapse.toml` says, or the file of `--config`; None where there is no file, and none is named.

    Args:
        path: the file; None = what `--config` says.

    Raises:
        LapseError: it cannot be read, or is wrong.
    """
    path = path or click.get_current_context().meta.get(_CONFIG) or _DEFAULT
    if path is _DEFAULT and not path.exists():
        return None
    from lapse.config import ConfigError, load

    try:
        return load(path)
    except ConfigError as error:
        raise LapseError(str(error)) from error


def _security(config: Config) -> dict[str, Any]:
    """What `lapse.toml` says of TLS and SASL, as librdkafka takes it.

    Raises:
        LapseError: a secret cannot be read.
    """
    from lapse.config import ConfigError
    from lapse.runtime.kafka.security import for_librdkafka

    try:
        return dict(for_librdkafka(config.security)) if config.security.protocol != "PLAINTEXT" else {}
    except ConfigError as error:
        raise LapseError(str(error)) from error


def _completed(found: Connection, config: Config, bootstrap_servers: str | None) -> Connection:
    security = _security(config)
    listed = _properties() or os.environ.get("LAPSE_KAFKA_CONFIG")
    elsewhere = bootstrap_servers or os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or listed
    servers = found.bootstrap_servers if elsewhere else config.lapse.brokers
    return dataclasses.replace(found, bootstrap_servers=servers, options={**security, **found.options})


def _properties() -> Path | None:
    """What `--kafka-config` says."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_PROPERTIES)


def _remember_properties(context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    context.meta[_PROPERTIES] = path


def _remember(context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    context.meta[_CONFIG] = path
