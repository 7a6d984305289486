"""The topics that publications go to: a name is that of a topic or of an entity with a publish target (Q2)."""

from __future__ import annotations

import time
from typing import Final

from lapse.protocol import topic as topics
from lapse.protocol.command import Command
from lapse_client.error import InvalidPublication
from lapse_client.kafka.connection import Connection, is_for_people
from lapse_client.session.conversation import Conversation

_KEPT_S: Final = 60.0
"""How long a name's topic is cached, in seconds. An unknown name is always looked up."""


class PublishTargets:
    """Finds the topics for names. Every method may be called from any thread.

    Args:
        connection: connection to the cluster.
        timeout_s: how long to wait for a shard's answer, in seconds.
    """

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._known: dict[str, tuple[str, float]] = {}
        """By name, its topic, and until when that is believed."""

    def topic_of(self, to: str) -> str:
        """Return the topic that a publish to a topic or queue goes to.

        Raises:
            UnknownEntity: no topic or queue has this name.
            InvalidPublication: the queue has no `default_publish_target`, or only lapse writes to the topic.
        """
        try:
            known, until_s = self._known[to]
        except (KeyError, TypeError):
            return self._look_up(to)
        return known if time.monotonic() < until_s else self._look_up(to)

    def forget(self) -> None:
        """Drop what is cached, because topics or queues may have been deleted."""
        self._known.clear()

    def _look_up(self, to: str) -> str:
        """Look up the topic for a name. This is needed because librdkafka would create a missing topic."""
        if not isinstance(to, str):
            raise InvalidPublication(f"to = {to!r}: expected the name of a topic or queue")
        self._known.pop(to, None)
        existing = self._connection.partitions(to, topics.commands(to))
        if to in existing:
            target = to
        elif topics.commands(to) in existing:
            target = self._target_of_entity(to)
            if target not in existing and target not in self._connection.partitions(target):
                raise self._connection.unknown("topic", target, filter(is_for_people, existing), target)
        else:
            raise self._connection.unknown("topic or queue", to, filter(is_for_people, existing), to)
        if topics.is_own(target, existing):
            raise InvalidPublication(
                f"{target} is a topic that only lapse writes: publish to a queue, a SOW topic, or one of their topics"
            )
        self._known[to] = target, time.monotonic() + _KEPT_S
        return target

    def _target_of_entity(self, name: str) -> str:
        shards = self._connection.shards("queue or SOW topic", name)
        with Conversation(self._connection, name, shards) as conversation:
            answer = conversation.ask([0], Command(command="depth", top_n=0), self._timeout_s)[0]
        if not answer.publish_target:
            raise InvalidPublication(
                f"{name} has no default_publish_target: publish to one of its topics, or set it in lapse.toml"
            )
        return answer.publish_target
