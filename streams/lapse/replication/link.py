"""The link of `lapse replicate`: source, target, and the SOW topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from lapse.config.document import ConfigError, read_toml
from lapse.config.root import SecurityConfig
from lapse.protocol import topic as names


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

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    upstream: str = Field(alias="from", min_length=1)
    downstream: str = Field(alias="to", min_length=1)
    topics: dict[str, str]
    replication_factor: int = Field(default=1, ge=1, le=32)
    from_security: SecurityConfig = SecurityConfig()
    to_security: SecurityConfig = SecurityConfig()

    @field_validator("topics", mode="before")
    @classmethod
    def _by_name(cls, topics: object) -> object:
        return {topic: topic for topic in topics} if isinstance(topics, (list, tuple)) else topics

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: dict[str, str]) -> dict[str, str]:
        if not topics:
            raise ValueError("names no SOW topic; there is nothing to replicate")
        for name in [*topics, *topics.values()]:
            if not names.NAME.match(name):
                raise ValueError(f"{name!r} is no name of a topic")
        return topics

    def transactional_id(self, source: str) -> str:
        """Return the transactional id, which two processes on one link share; `source` is the upstream cluster's id."""
        return f"lapse-replicate-{source}-{','.join(sorted(self.topics))}"


def load(path: Path) -> Link:
    """Read a file like `replicate.toml`.

    Raises:
        ConfigError: it is missing, is not TOML, or has unknown contents.
    """
    return checked(read_toml(path), str(path))


def checked(tree: dict[str, object], where: str) -> Link:
    """Check the contents of a file or the values of the command line.

    Raises:
        ConfigError: the text names every fault.
    """
    try:
        return Link.model_validate(tree)
    except ValidationError as error:
        faults = [f"{where}: {'.'.join(map(str, fault['loc']))}: {_fault_text(fault)}" for fault in error.errors()]
        raise ConfigError("\n".join(faults)) from error


def _fault_text(fault: Any) -> str:
    """Return a fault in the terms of the file."""
    if fault["type"] == "missing":
        return "has to be given"
    if fault["type"] == "extra_forbidden":
        return f"unknown key; known here: {', '.join(Link.model_fields)}"
    return str(fault["msg"]).removeprefix("Value error, ")
