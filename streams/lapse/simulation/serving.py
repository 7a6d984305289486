"""What a queue was served by: its settings, and who might do what with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lapse.config import Config, QueueConfig
from lapse.config import key as key_files
from lapse.config.definition import Definition, with_entity
from lapse.runtime.shard.command_authorizer import Guard

FILE: Final = 0
"""The version of what only `lapse.toml` says."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What shards of a queue go by in an epoch.

    Attributes:
        config: the queue's settings.
        forward: the topic to which it forwards; None = it does not.
        guard: who may do what; None = everybody may do everything.
    """

    config: QueueConfig
    forward: str | None
    guard: Guard | None


def by_version(
    name: str, config: Config, definitions: Iterable[Definition] | None, beside: Path
) -> Mapping[int, Serving]:
    """What a queue was served by, by the version of its definition.

    Args:
        name: the queue.
        config: what `lapse.toml` says.
        definitions: the versions of its definition that a topic has; None = `lapse.toml` has it, as `FILE`.
        beside: where the files are that definitions name.

    Raises:
        ConfigError: the key of a user cannot be read.
        ValueError: a definition cannot be understood here.
    """
    if definitions is None:
        return {FILE: _serving(name, config)}
    return {one.version: _serving(name, with_entity(config, one, beside)) for one in definitions if one.kind == "queue"}


def _serving(name: str, config: Config) -> Serving:
    guard = None
    if config.users:
        keys = key_files.read(config)
        guard = Guard(name, "queue", keys.users, config.entitled(name), keys.workers, lambda: 0)
    return Serving(config.queue[name], config.forward_topic(name), guard)
