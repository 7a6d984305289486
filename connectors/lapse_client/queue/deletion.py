"""Deletion of a queue or SOW topic, whose topics are removed a few seconds after the decision (C4)."""

from __future__ import annotations

import time
from typing import Final

from lapse.protocol import topic
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection

_LOOK_EVERY_S: Final = 0.2


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
    while left := own & connection.partitions().keys():
        if time.monotonic() >= give_up:
            raise LapseError(
                f"{entity} is deleted, but {', '.join(sorted(left))} could not be removed within {timeout_s:g} s: see "
                "the worker's log. It tries again when it is started"
            )
        time.sleep(_LOOK_EVERY_S)
