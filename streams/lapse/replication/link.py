"""The link of `lapse replicate`: source, target, and the SOW topics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from lapse.config.fault import first_repeated
from lapse.config.link_file import read_link
from lapse.config.root import SecurityConfig
from lapse.protocol import topic as names

_MISSING: Final = {
    "from": "the brokers of the deployment that is read, by --from, lapse.toml or a file like replicate.toml",
    "to": "the brokers of the deployment that is written, by --to or in a file like replicate.toml",
    "topics": "the SOW topics, by --topic or in a file like replicate.toml",
}
"""By required key: how it can be given."""


class Link(BaseModel):
    """One direction between two deployments.

    Attributes:
        upstream: brokers of the deployment that is read; `from` in the file.
        downstream: brokers of the deployment that is written; `to` in the file.
        topics: the SOW topics, by name; the value is the underlying topic downstream.
        replication_factor: replication factor of the downstream topic with the progress.
        from_security: settings to connect to the upstream brokers.
        to_security: settings to connect to the downstream brokers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    upstream: str = Field(alias="from", min_length=1)
    downstream: str = Field(alias="to", min_length=1)
    topics: dict[str, str]
    replication_factor: int = Field(default=1, ge=1, le=32)
    from_security: SecurityConfig = SecurityConfig()
    to_security: SecurityConfig = SecurityConfig()

    @field_validator("topics", mode="before")
    @classmethod
    def _by_name(cls, topics: object) -> object:
        if isinstance(topics, dict):
            return topics
        if not isinstance(topics, (list, tuple)) or not all(isinstance(one, str) for one in topics):
            raise ValueError('expected a list of SOW topics, or a table such as { orders = "orders.raw" }')
        if (repeated := first_repeated(topics)) is not None:
            raise ValueError(f"{repeated} is named twice")
        return {topic: topic for topic in topics}

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: dict[str, str]) -> dict[str, str]:
        if not topics:
            raise ValueError("names no SOW topic; there is nothing to replicate")
        for name in [*topics, *topics.values()]:
            if not names.NAME.match(name):
                raise ValueError(f"{name!r} is no name of a topic: letters, digits, '.', '_' and '-' only")
        for name, underlying in topics.items():
            if underlying.startswith(("__", names.PREFIX)):
                raise ValueError(
                    f"{underlying} is a topic that lapse or Kafka writes itself; for {name} name the underlying topic "
                    "of the SOW topic downstream"
                )
        if (shared := first_repeated(topics.values())) is not None:
            both = " and ".join(name for name, underlying in topics.items() if underlying == shared)
            raise ValueError(
                f"{both} have the same underlying topic downstream, {shared}; name another one, or one of them"
            )
        return topics

    def transactional_id(self, source: str) -> str:
        """Return the transactional id, which two processes on one link share; `source` is the upstream cluster's id."""
        return f"lapse-replicate-{source}-{','.join(sorted(self.topics))}"


def load(path: Path | None, stated: Mapping[str, object] = MappingProxyType({})) -> Link:
    """Read a file like `replicate.toml`, or take the values of the command line.

    Raises:
        ConfigError: it is missing, is not TOML, or has unknown contents; the text names every fault.
    """
    return read_link(Link, path, stated, "lapse replicate", _MISSING)
