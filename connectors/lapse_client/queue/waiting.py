"""Finds out what a message waits for, by asking the queues that may have it (C48)."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from lapse.protocol.answer import QueuedMessage
from lapse.protocol.bookmark import Bookmark
from lapse_client.error import AnswerTimeout, ConnectionFailed, LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.queue.queue import Queue

_ANSWER_S: Final = 2.0
_MOST_ASKED: Final = 10


def ask(name: Bookmark, queues: Iterable[str], connection: Connection) -> tuple[dict[str, QueuedMessage], list[str]]:
    """Ask at most ten queues in parallel what a message waits for, in the order of `by_default_queue`.

    Returns:
        The waiting message by queue, and the queues that did not answer.
    """
    candidates = by_default_queue(name.topic, queues)[:_MOST_ASKED]
    found: dict[str, QueuedMessage] = {}
    silent: list[str] = []
    if not candidates:
        return found, silent
    with ThreadPoolExecutor(len(candidates), "explain") as pool:
        answers = [(queue, pool.submit(_look_at, queue, name, connection)) for queue in candidates]
    for queue, answer in answers:
        try:
            message = answer.result()
        except (AnswerTimeout, ConnectionFailed):
            silent.append(queue)
        except LapseError:  # this user may not ask this queue
            continue
        else:
            if message is not None and message.waits_for:
                found[queue] = message
    return found, silent


def by_default_queue(topic: str, queues: Iterable[str]) -> list[str]:
    """Sort queues by name, the one with the topic's name first, because most queues have their topic's name."""
    return sorted(queues, key=lambda queue: (queue != topic, queue))


def _look_at(queue: str, name: Bookmark, connection: Connection) -> QueuedMessage | None:
    with Queue(queue, connection=connection, timeout_s=_ANSWER_S) as client:
        return client.look_at(str(name))
