"""The configuration of a topic (`[topic.<name>]`): its lifetime for all queues that read it (L8)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from lapse.config.duration import PeriodMs
from lapse.config.entity_config import QueueConfig


class TopicConfig(BaseModel):
    """The settings of an underlying topic.

    Attributes:
        expiration: lifetime of its messages in every queue that does not state another one, ms (L8).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    expiration: PeriodMs


def with_topic_lifetimes(tree: Any) -> Any:
    """Return the file's content with the lifetimes of topics added to the queues' `topic_expirations`.

    A queue's own entries take precedence. Invalid parts are not changed, and are reported later.

    Args:
        tree: the parsed content of the file.
    """
    lifetimes = {name: topic["expiration"] for name, topic in _table(tree, "topic").items() if _is_valid(topic)}
    queues = _table(tree, "queue")
    if not lifetimes or not queues:
        return tree
    return {**tree, "queue": {name: with_lifetimes(name, queue, lifetimes) for name, queue in queues.items()}}


def with_lifetimes(name: str, queue: Any, lifetimes: Mapping[str, object]) -> Any:
    """Return a queue's settings with the lifetimes of the topics that it reads added to `topic_expirations`.

    Args:
        name: the queue's name.
        queue: its settings, as written.
        lifetimes: by topic, its lifetime, as written.
    """
    if not isinstance(queue, dict) or not isinstance(queue.get("topic_expirations", {}), dict):
        return queue
    read = {topic: lifetime for topic, lifetime in lifetimes.items() if _reads(name, queue, topic)}
    return {**queue, "topic_expirations": {**read, **queue.get("topic_expirations", {})}} if read else queue


def _reads(name: str, queue: Mapping[str, Any], topic: str) -> bool:
    topics, pattern = queue.get("topics") or (), queue.get("topic_pattern")
    if not isinstance(topics, (list, tuple)) or not isinstance(pattern, (str, type(None))):
        return False
    config = QueueConfig.model_construct(topics=tuple(topics), topic_pattern=pattern)
    try:
        return topic in config.underlying(name) or config.reads(topic)
    except re.error:
        return False


def _is_valid(topic: Any) -> bool:
    try:
        TopicConfig.model_validate(topic)
    except ValidationError:
        return False
    return True


def _table(tree: Any, key: str) -> dict[str, Any]:
    found = tree.get(key) if isinstance(tree, dict) else None
    return found if isinstance(found, dict) else {}
