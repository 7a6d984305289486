"""Deletion of a queue or SOW topic, whose topics are removed a few seconds after the decision (C4)."""

from __future__ import annotations

import time
from typing import Any, Final

from lapse.protocol import topic
from lapse.protocol.command import Command
from lapse_client.error import EntityDeleted, LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.session.session import Session

_LOOK_EVERY_S: Final = 0.2


def ask_deletion(session: Session[Any], *, force: bool, timeout_s: float) -> dict[str, int]:
    """Delete an entity, and return its numbers of messages or records by state.

    They are empty if the topics were removed before a client could read the answer, which has them: for example if its
    connection was interrupted just then.

    Raises:
        CommandFailed: the entity is not empty.
        EntityDeleted: it was deleted before.
        AnswerTimeout: no worker answered.
    """
    try:
        (answer,) = session.ask([0], Command.of(command="delete", force=force), timeout_s)
    except EntityDeleted as error:
        if not error.topics_removed:
            raise
        return {}
    return dict(answer.counts)


def wait_until_gone(connection: Connection, entity: str, timeout_s: float) -> None:
    """Wait until the topics of a deleted entity are removed.

    Raises:
        LapseError: some topics still exist after `timeout_s` seconds.
        ConnectionFailed: no broker answered.
    """
    own = {topic.commands(entity), topic.deliveries(entity), connection.deliveries(entity), topic.sow(entity)}
    if connection.transport.settles:
        connection.transport.finish_deletion(entity)  # in `lapse.testing` time does not pass by waiting
        return
    give_up = time.monotonic() + timeout_s
    while left := connection.existing(own):
        if time.monotonic() >= give_up:
            raise LapseError(
                f"{entity} is deleted, but {', '.join(sorted(left))} could not be removed within {timeout_s:g} s: see "
                "the worker's log. While dead letters cannot be written, it waits for that: `lapse check` says whether "
                "their topic is missing. What it may not delete it tries again when it is started"
            )
        time.sleep(_LOOK_EVERY_S)
