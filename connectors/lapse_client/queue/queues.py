"""The figures of many queues, or SOW topics, over one connection (Q15)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse_client.error import LapseError, UnknownEntity, refusal
from lapse_client.kafka.connection import Connection
from lapse_client.session.channel_thread import ChannelThread
from lapse_client.session.client import Client
from lapse_client.session.further_shards import GrowingListener
from lapse_client.session.session import Session
from lapse_client.session.shard import Shard

_OLDEST: Final = "oldest_age_ms"
_SUBSCRIPTIONS: Final = "subscriptions"
_HIGHEST: Final = frozenset({_OLDEST, _SUBSCRIPTIONS, "paused"})
"""Figures that are the maximum over all shards, not the sum: each shard counts the same subscriptions."""

Figures = dict[str, Any]


def combine_figures(answers: Iterable[Answer]) -> Figures:
    """Combine the shards' answers to `depth` into the figures of the queue; see `Queue.depth`."""
    total: Figures = {}
    for answer in answers:
        if _SUBSCRIPTIONS in answer.counts:  # missing if the user sees only a part of the queue
            total.setdefault(_OLDEST, None)
        for name, figure in answer.counts.items():
            if figure is not None:
                known = total.get(name) or 0
                total[name] = max(known, figure) if name in _HIGHEST else known + figure
    return total


class Queues(Client[None]):
    """Asks many queues, or many SOW topics, for their figures; a context manager.

    Args:
        names: names of the entities. For those that do not exist, or are deleted later, `depth` returns an error.
        sow: whether they are SOW topics.
        connection: connection to the cluster; from the environment by default.
        timeout_s: how long to wait at the start, in seconds.
    """

    def __init__(
        self, names: Sequence[str], *, sow: bool = False, connection: Connection | None = None, timeout_s: float = 30.0
    ) -> None:
        super().__init__("the client of many queues", connection, timeout_s)
        self._kind = "SOW topic" if sow else "queue"
        self.names = tuple(names)
        self._unknown: dict[str, LapseError] = {}
        self._by_name: dict[str, list[Shard]] = {}

    def depth(self, name: str) -> Future[Figures]:
        """Ask one queue for its figures, and return their future. Cancel it if the answer is not needed any more.

        The future's exception may be `UnknownEntity`, `EntityDeleted`, `CommandFailed` or `ConnectionFailed`. If no
        worker runs the queue, the future never gets a result.

        Raises:
            Closed: the client is closed, or was never started.
        """
        session = self._live()
        if name not in self._by_name:
            unknown: Future[Figures] = Future()
            unknown.set_exception(self._unknown.get(name) or UnknownEntity(self._kind, name, self._by_name))
            return unknown
        return _Inquiry(session, self._by_name[name]).future

    def _open(self) -> None:
        topics, shards = self._connection.partitions(), dict[str, int]()
        for name in self.names:
            try:
                shards[name] = self._connection.shards(self._kind, name, topics)
            except LapseError as error:
                self._unknown[name] = error
        if not shards:
            raise next(
                iter(self._unknown.values()), LapseError(f"there are no {self._kind}s to ask; `lapse apply` makes them")
            )
        session: Session[None] = Session(self._connection, list(shards.items()), self._lifecycle)
        self._session = session
        for shard in session.shards:
            self._by_name.setdefault(shard.entity, []).append(shard)
        session.open(_Undisturbed(self._connection, session, self._by_name), self._timeout_s)


class _Undisturbed(GrowingListener):
    """A listener that goes on with the other queues when one of them is deleted."""

    def __init__(self, connection: Connection, session: Session[None], by_name: dict[str, list[Shard]]) -> None:
        super().__init__(connection, session)
        self._shards = session.shards
        self._by_name = by_name

    def joined(self, queue: str, count: int) -> None:
        """Add new shards to those that are asked."""
        self._by_name[queue] = [*self._by_name[queue], *self._shards[-count:]]

    def on_deleted(self, thread: ChannelThread, entity: str) -> bool:
        """Stop reading the deliveries of a deleted queue."""
        thread.leave(entity)
        return True


class _Inquiry:
    """One question to all shards of a queue.

    Args:
        session: session that asks the shards.
        shards: shards of the queue.

    Attributes:
        future: future of the queue's figures.
    """

    def __init__(self, session: Session[None], shards: Sequence[Shard]) -> None:
        self.future: Future[Figures] = Future()
        self._shards = shards
        self._lock = threading.Lock()
        self._answers = [session.channel.sender.send(shard, Command(command="depth")) for shard in shards]
        self._left = len(shards)
        self._ended = False
        self.future.add_done_callback(self._is_over)
        for answer in self._answers:
            answer.add_done_callback(self._answered)

    def _answered(self, answer: Future[Answer]) -> None:
        error = None if answer.cancelled() else answer.exception()
        with self._lock:
            self._left -= 1
            if self._ended or (self._left and error is None and not answer.cancelled()):
                return
            self._ended = True
        if not self.future.set_running_or_notify_cancel():
            return
        if error is not None:
            self.future.set_exception(error)
            return
        answers = [one.result() for one in self._answers]
        refused = next((at for at, one in enumerate(answers) if one.status != "ok"), None)
        if refused is not None:
            self.future.set_exception(refusal(self._shards[refused].entity, answers[refused]))
        else:
            self.future.set_result(combine_figures(answers))

    def _is_over(self, future: Future[Figures]) -> None:
        if future.cancelled():
            for answer in self._answers:
                answer.cancel()
