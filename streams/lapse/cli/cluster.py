"""Finds the cluster of a command, from its options, the environment, or `lapse.toml`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lapse.option_type import not_empty
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection

if TYPE_CHECKING:
    from lapse.config import Config
    from lapse.config.entity_config import EntityConfig

_CONFIG: Final = "lapse.config"
_PROPERTIES: Final = "lapse.properties"
_DEFAULT: Final = Path("lapse.toml")
PATIENCE_S: Final = 2.5
"""How long a command waits for the first answer of a broker, in seconds."""

_TABLES: Final = frozenset({"lapse", "queue", "sow", "users"})
"""Tables by which a file is recognised as a `lapse.toml`."""

Command = Callable[..., Any]


def options(command: Command) -> Command:
    """Add `--bootstrap-servers`, which the command gets, `--config` and `--kafka-config`, which `connection` reads."""
    servers = click.option(
        "-b",
        "--bootstrap-servers",
        callback=not_empty,
        help="The brokers, instead of those of KAFKA_BOOTSTRAP_SERVERS or lapse.toml.",
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
    """Return the connection to the command's cluster, after one of its brokers has answered.

    Args:
        bootstrap_servers: value of the command's option.
        path: path of the configuration; None = the file of `--config`, or `lapse.toml`, if there is one.
        insists: whether the command waits even if no worker runs; see `Connection`.

    Raises:
        ConnectionFailed: no broker answered within some seconds.
        LapseError: a file in the environment, or `lapse.toml`, cannot be read or is not valid.
    """
    found = dataclasses.replace(configured_connection(bootstrap_servers, path), insists=insists)
    found.await_broker(PATIENCE_S)
    return found


def configured_connection(bootstrap_servers: str | None, path: Path | None = None) -> Connection:
    """Return the connection to the command's cluster, whether it answers or not.

    The servers come from the option, KAFKA_BOOTSTRAP_SERVERS, the client properties or `lapse.toml`, in this order.
    The TLS and SASL settings of `lapse.toml` count unless the client properties have others.

    Args:
        bootstrap_servers: value of the command's option.
        path: see `connection`.

    Raises:
        LapseError: a file in the environment, or `lapse.toml`, cannot be read or is not valid.
    """
    found = Connection.from_environment(bootstrap_servers, _properties())
    config = configuration(path)
    return found if config is None else _completed(found, config, bootstrap_servers)


def connection_with(config: Config, bootstrap_servers: str) -> Connection:
    """Return the connection to these brokers, with the settings of a loaded `lapse.toml` and of the environment.

    Raises:
        LapseError: a file in the environment, or a secret, cannot be read or is not valid.
    """
    return _completed(Connection.from_environment(bootstrap_servers, _properties()), config, bootstrap_servers)


def connection_from_file(path: Path) -> Connection:
    """Return the connection in another `lapse.toml`, without the environment, which is for the command's own cluster.

    Raises:
        LapseError: the file cannot be read, or is not valid.
    """
    config = configuration(path)
    assert config is not None  # an explicit file is never None
    return Connection(config.lapse.bootstrap_servers, _security(config))


def is_lapse_toml(path: Path) -> bool:
    """Return whether a file is a `lapse.toml`, and not a command's own kind of file; False if it cannot be read."""
    from lapse.config.document import ConfigError, read_toml

    try:
        return not _TABLES.isdisjoint(read_toml(path))
    except ConfigError:
        return False


def configuration_path() -> Path:
    """Return the file of `--config`, or `lapse.toml`, which need not exist."""
    named: Path | None = click.get_current_context().meta.get(_CONFIG)
    return named or _DEFAULT


def configuration(path: Path | None = None) -> Config | None:
    """Load the file of `--config`, or `lapse.toml`; return None if no file is named and there is no `lapse.toml`.

    Args:
        path: path of the file; None = the one of `--config`.

    Raises:
        LapseError: the file cannot be read, or is not valid.
    """
    path = path or configuration_path()
    if path is _DEFAULT and not path.exists():
        return None
    from lapse.config import ConfigError, load

    try:
        return load(path)
    except ConfigError as error:
        raise LapseError(str(error)) from error


def payloads(path: Path | None = None) -> dict[str, Callable[[bytes], object]]:
    """Return what reads the payloads of the entities of `lapse.toml` that are not JSON, by entity.

    Args:
        path: path of the file; None = the one of `--config`.

    Raises:
        LapseError: the file cannot be read, or is not valid.
    """
    config = configuration(path)
    entities: dict[str, EntityConfig] = {} if config is None else {**config.queue, **config.sow}
    return {name: read.parse for name, entity in entities.items() if (read := entity.payload()) is not None}


def _security(config: Config) -> dict[str, Any]:
    """Return the TLS and SASL settings of `lapse.toml` as librdkafka's options.

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
    options = {**security, **found.options}
    return dataclasses.replace(found, bootstrap_servers=servers, options=options, app_id=config.lapse.app_id)


def _properties() -> Path | None:
    """Return the value of `--kafka-config`."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_PROPERTIES)


def _remember_properties(context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    context.meta[_PROPERTIES] = path


def _remember(context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    context.meta[_CONFIG] = path
