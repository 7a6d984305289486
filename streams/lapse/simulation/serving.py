"""How a queue was served: its settings, and the rights of users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lapse.config import Config, QueueConfig
from lapse.config import key as key_files
from lapse.config.definition import Definition, with_entity
from lapse.runtime.authorization.command_authorizer import Guard

FILE: Final = 0
"""The version of a definition that is only in `lapse.toml`."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How the shards of a queue were served in an epoch.

    Attributes:
        config: the queue's settings.
        forward: the topic to which it forwards; None if it does not.
        guard: the rights of users; None if everybody may do everything.
    """

    config: QueueConfig
    forward: str | None
    guard: Guard | None


def by_version(
    name: str, config: Config, definitions: Iterable[Definition] | None, beside: Path
) -> Mapping[int, Serving]:
    """Return how a queue was served, by the version of its definition.

    Args:
        name: name of the queue.
        config: the configuration in `lapse.toml`.
        definitions: the versions of its definition on the topic; None if `lapse.toml` has it, as version `FILE`.
        beside: directory of the files that definitions name.

    Raises:
        ConfigError: the key of a user cannot be read.
        ValueError: a definition is not valid here.
    """
    if definitions is None:
        return {FILE: _serving(name, config)}
    return {one.version: _serving(name, with_entity(config, one, beside)) for one in definitions if one.kind == "queue"}


def _serving(name: str, config: Config) -> Serving:
    guard = None
    if config.users:
        keys = key_files.read(config)
        guard = Guard(name, "queue", keys.users, config.entitled_users(name), keys.workers, lambda: 0)
    return Serving(config.queue[name], config.forward_topic(name), guard)
