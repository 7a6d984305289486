"""The link of `lapse transfer`: source and target queue, with their deployments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from lapse.config.duration import DurationMs
from lapse.config.link_file import read_link
from lapse.config.root import SecurityConfig
from lapse.protocol import topic as names
from lapse.runtime.kafka import security
from lapse_client.kafka.connection import Connection, identity

_MISSING: Final = {"to": "the brokers of the deployment that takes over, by --to or in a file like transfer.toml"}
"""By required key: how it can be given."""


class Link(BaseModel):
    """Two deployments, as described in a file like `transfer.toml`.

    Attributes:
        source: brokers of the deployment that hands over; `from` in the file, KAFKA_BOOTSTRAP_SERVERS by default.
        target: brokers of the deployment that takes over; `to` in the file.
        to_queue: the queue there; the same name by default.
        to_topic: the underlying topic there; the queue's publish target by default.
        max_clock_skew: with `--follow`, a greater difference between the clocks of the clusters is logged, ms (C74).
        from_security: settings to connect to the brokers that hand over.
        to_security: settings to connect to the brokers that take over.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str | None = Field(default=None, alias="from", min_length=1)
    target: str = Field(alias="to", min_length=1)
    to_queue: str | None = None
    to_topic: str | None = None
    max_clock_skew: DurationMs = 1_000
    from_security: SecurityConfig | None = None
    to_security: SecurityConfig = SecurityConfig()

    @field_validator("to_queue", "to_topic")
    @classmethod
    def _check_name(cls, name: str | None) -> str | None:
        if name is not None and not names.NAME.match(name):
            raise ValueError(f"{name!r} is no name of a topic: letters, digits, '.', '_' and '-' only")
        return name

    def source_connection(self) -> Connection:
        """Return the connection to the deployment that hands over, with settings of the environment if it has none.

        Raises:
            LapseError: the environment names a file that cannot be read, or a user without a key.
        """
        if self.from_security is None:
            return Connection.from_environment(self.source)
        options, (user, secret) = security.for_librdkafka(self.from_security), identity()
        found = Connection(options=options, user=user, secret=secret)
        return replace(found, bootstrap_servers=self.source) if self.source else found

    def target_connection(self) -> Connection:
        """Return the connection to the deployment that takes over, as user LAPSE_TO_USER with LAPSE_TO_SECRET (X4).

        Raises:
            LapseError: LAPSE_TO_SECRET_FILE cannot be read, or has no key.
        """
        user, secret = identity("LAPSE_TO")
        return Connection(self.target, security.for_librdkafka(self.to_security), user=user, secret=secret)


def load(path: Path | None, stated: dict[str, str]) -> Link:
    """Read a file like `transfer.toml`. Values of the command line override it.

    Raises:
        ConfigError: it is missing, is not TOML, or has unknown contents; the text names every fault.
    """
    return read_link(Link, path, stated, "lapse transfer", _MISSING)
