"""The rights that a user needs to define an entity (C67)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final

from lapse.config import Config, QueueConfig
from lapse.core.entitlement import Entitlement, Right, find_entitlement

_ALL: Final = (".*", ".+")
"""Patterns of an entitlement that match every name."""


def lacking(config: Config, name: str, user: str) -> str:
    """Return what a user lacks to define an entity like this, in words; empty if nothing.

    Entitlements name entities and topics alike.

    Args:
        config: a configuration with the entity.
        name: name of the entity.
        user: the user who asks.
    """
    if why := lacking_on_name(config, name, user):
        return why
    granted = config.users[user].granted()
    entity = config.queue[name] if name in config.queue else config.sow[name]
    for topic in entity.underlying(name):
        if why := _reading(topic, granted):
            return why
    if isinstance(entity, QueueConfig) and entity.topic_pattern is not None:
        # A pattern also matches topics that are created later, so the user must have the right for all that it may
        # match.
        own = (granted[pattern] for pattern in (entity.topic_pattern, *_ALL) if pattern in granted)
        if not any(_reads_all(one) for one in own):
            return f"unfiltered read on the pattern {entity.topic_pattern!r}, or on '.*'"
    for target in _targets(config, name):
        if Right.PUBLISH not in find_entitlement(target, granted).rights:
            return _right_on(Right.PUBLISH, target)
    return ""


def lacking_on_name(config: Config, name: str, user: str) -> str:
    """Return what a user lacks to define anything of this name, in words; empty if nothing.

    It is checked first: other refusals say what there is of that name.
    """
    granted = config.users[user].granted() if user in config.users else {}
    return "" if Right.CREATE in find_entitlement(name, granted).rights else _right_on(Right.CREATE, name)


def _targets(config: Config, name: str) -> Iterator[str]:
    """Yield the names for which the entity needs publish rights, other than its default dead-letter topic."""
    queue = config.queue.get(name)
    entity = queue or config.sow[name]
    if isinstance(entity.dead_letter, str):
        yield from _owners(config, entity.dead_letter)
    if queue is not None and queue.forward_to is not None:
        yield from [queue.forward_to] if queue.forward_to in config.queue else _owners(config, queue.forward_to)


def _owners(config: Config, topic: str) -> list[str]:
    """Return the names that carry the right to write to a topic: the entities that read it, or the topic."""
    return config.readers(topic) or [topic]


def _reading(topic: str, granted: Mapping[str, Entitlement]) -> str:
    entitlement = find_entitlement(topic, granted)
    if Right.READ not in entitlement.rights:
        return _right_on(Right.READ, topic)
    return f"read without a filter on {topic}" if entitlement.filter else ""


def _reads_all(entitlement: Entitlement) -> bool:
    return Right.READ in entitlement.rights and not entitlement.filter


def _right_on(right: Right, name: str) -> str:
    return f"{right} on {name}"


def forbidden_settings(settings: Mapping[str, Any]) -> str:
    """Return why a client may not set these settings, in words; empty if it may.

    Workers run functions and read files, so only the operator of the workers may choose them.
    """
    if settings.get("on_expire") is not None:
        return "on_expire names code that workers run; only lapse.toml and `lapse queue alter` may set it"
    written = settings.get("value_writer_schemas")
    files = written.values() if isinstance(written, Mapping) else written if isinstance(written, list) else ()
    for file in (settings.get("value_schema"), *files):
        if isinstance(file, str) and (PurePath(file).is_absolute() or ".." in PurePath(file).parts):
            return f"{file} is no file beside the workers' lapse.toml; a client may name those only"
    return ""
