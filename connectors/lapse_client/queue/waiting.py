"""What a message waits for now, by the queues that may have it (C48)."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from lapse.protocol.answer import QueuedMessage
from lapse.protocol.bookmark import Bookmark
from lapse_client.error import AnswerTimeout, LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.queue.queue import Queue

_ANSWER_S: Final = 2.0
_MOST_ASKED: Final = 10


def ask(name: Bookmark, queues: Iterable[str], connection: Connection) -> tuple[dict[str, QueuedMessage], list[str]]:
    """Ask queues, side by side, what a message waits for; of many the first ones (`asked_first`).

    Returns:
        By queue the message that waits for something; and the queues that do not answer.
    """
    asked = asked_first(name.topic, queues)[:_MOST_ASKED]
    found: dict[str, QueuedMessage] = {}
    silent: list[str] = []
    if not asked:
        return found, silent
    with ThreadPoolExecutor(len(asked), "explain") as pool:
        answers = [(queue, pool.submit(_look_at, queue, name, connection)) for queue in asked]
    for queue, answer in answers:
        try:
            message = answer.result()
        except AnswerTimeout:
            silent.append(queue)
        except LapseError:  # it does not let this user ask
            continue
        else:
            if message is not None and message.waits_for:
                found[queue] = message
    return found, silent


def asked_first(topic: str, queues: Iterable[str]) -> list[str]:
    """The order in which queues are asked about a message without events: most queues have their topic's name."""
    return sorted(queues, key=lambda queue: (queue != topic, queue))


def _look_at(queue: str, name: Bookmark, connection: Connection) -> QueuedMessage | None:
    with Queue(queue, connection=connection, timeout_s=_ANSWER_S) as client:
        return client.look_at(str(name))
