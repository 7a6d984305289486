"""A subscription to a SOW topic: updates, and what goes out of focus (S6, S7)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Literal
from uuid import uuid4

from confluent_kafka import Message

from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse_client.arrivals import Arrivals
from lapse_client.channel import Channel, Fields, forgotten
from lapse_client.clock import elapsed_ms
from lapse_client.connection import Connection
from lapse_client.error import AnswerTimeout, Closed, CommandFailed, LapseError
from lapse_client.shard import Shard
from lapse_client.sow_record import SowRecord, read

log = logging.getLogger("lapse_client")

Manner = Literal["subscribe", "sow_and_subscribe", "delta_subscribe"]

_TICK_S: Final = 0.05
_MOST_WAITING: Final = 50_000
"""Updates that may wait for the application before reading pauses."""

_UNTIL_TOLD_MS: Final = 3_000
"""The heartbeat timeout that is gone by until the topic's is told, in ms."""

_BEGIN: Final = "group-begin"
_END: Final = "group-end"


class SowSubscription:
    """Updates of a SOW topic as an iterator; a context manager.

    It heartbeats by itself, and subscribes again where a worker has forgotten it, which a record of kind
    `resubscribed` tells.

    Args:
        connection: the cluster.
        entity: the SOW topic.
        shards: how many it has.
        manner: subscribe, sow_and_subscribe or delta_subscribe.
        filter: which records; None = all.
        heartbeat_timeout_ms: silence after which the subscription ends, in ms; None = the topic's `heartbeat_timeout`.
        timeout_s: how long to wait for answers, in seconds.
    """

    def __init__(
        self,
        connection: Connection,
        entity: str,
        shards: int,
        manner: Manner,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        heartbeat_timeout_ms: int | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self.arrivals: Arrivals[SowRecord] = Arrivals()
        self.name = uuid4().hex
        self._manner = manner
        self._filter = filter
        self._asked_ms = heartbeat_timeout_ms
        self._heartbeat_timeout_ms = heartbeat_timeout_ms or _UNTIL_TOLD_MS
        self._timeout_s = timeout_s
        self._channel = Channel(connection, [(entity, shards)], self)
        self._channel.ours.add(self.name.encode())
        self._unconfirmed = set(range(shards))
        self._grouping = set(range(shards)) if manner == "sow_and_subscribe" else set()
        self._confirmed = threading.Event()
        self._error: BaseException | None = None
        self._closing = False

    def start(self) -> SowSubscription:
        """Subscribe at every shard; `with` does so too.

        Raises:
            CommandFailed: a shard refused, for instance the filter.
            AnswerTimeout: no worker answered.
            Closed: it was closed, perhaps meanwhile.
        """
        entity = self._channel.shards[0].entity
        if self._closing:
            raise Closed(f"the subscription to {entity}")
        self._channel.start()
        try:
            for shard in self._channel.shards:
                self._subscribe(shard)
            self._confirmed.wait(self._timeout_s)
            if self._error is not None:
                raise self._error
            if self._closing:
                raise Closed(f"the subscription to {entity}")
            if self._unconfirmed:
                raise AnswerTimeout(entity, self._manner, self._unconfirmed, self._timeout_s)
        except BaseException:  # Ctrl-C, too
            if not self._closing:
                self._closing = True
                for shard in self._channel.shards:  # what answers late shall not send updates to nobody
                    self._channel.send(shard, self._command("unsubscribe", answer="none"))
            self._channel.close()
            raise
        return self

    def close(self) -> None:
        """Unsubscribe and stop; may be called twice, from any thread."""
        if self._closing:
            return
        self._closing = True
        self._confirmed.set()
        if self._error is None:
            try:
                leave = self._command("unsubscribe")
                self._channel.ask([(shard, leave) for shard in self._channel.shards], self._timeout_s)
            except LapseError as error:
                log.warning("the subscription ends when heartbeats are missed, not at once: %s", error)
        self._channel.close()
        self.arrivals.end()

    def __enter__(self) -> SowSubscription:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[SowRecord]:
        return self.updates()

    def updates(self, timeout: float | None = None) -> Iterator[SowRecord]:
        """Iterate over updates, in the order of each shard.

        Args:
            timeout: end after so many seconds without one; None = only `close` ends it.
        """
        while taken := self.arrivals.take(1, timeout):
            yield taken[0]

    def read(self, shard: Shard, message: Message, fields: Fields) -> SowRecord:
        """Read an update (from `Channel`)."""
        return read(shard, message, fields)

    def received(self, records: list[SowRecord]) -> None:
        """Take updates in (from `Channel`)."""
        updates: list[SowRecord] = []
        for record in records:
            index = record.partition
            if record.kind == _BEGIN:
                self._confirm(index)
            elif record.kind == _END:
                if index in self._grouping:
                    self._grouping.discard(index)
                    if not self._grouping:
                        updates.append(SowRecord(kind="group-end"))
            else:
                updates.append(record)
        if updates:
            self.arrivals.put(updates)

    def refused(self, shard: Shard, answer: Answer) -> None:
        """Subscribe again where the subscription is unknown (from `Channel`)."""
        if answer.status == "ok" or self._closing:
            return
        if not forgotten(answer):
            log.warning("%s", CommandFailed(shard.entity, answer))
            return
        log.info("%s, shard %d does not know the subscription: subscribing again", shard.entity, shard.partition)
        self.arrivals.put([SowRecord(kind="resubscribed", partition=shard.partition)])
        self._subscribe(shard)

    def goes_on_without(self, entity: str) -> bool:
        """No: it is the only one (from `Channel`)."""
        return False

    def taken_over(self, shard: Shard) -> None:
        """Nothing: the shard knows its subscriptions, and begins their queries again by itself (from `Channel`)."""

    def tick(self) -> float:
        """Send heartbeats (from `Channel`)."""
        now_ms = elapsed_ms()
        for shard in self._channel.shards if not self._closing else ():
            if shard.index not in self._unconfirmed and now_ms - shard.sent_at_ms >= self._heartbeat_timeout_ms / 3:
                self._channel.send(shard, self._command("heartbeat", answer="errors"))
        return min(_TICK_S, self._heartbeat_timeout_ms / 12_000)

    def full(self) -> bool:
        """Whether the application lags behind (from `Channel`)."""
        return len(self.arrivals) > _MOST_WAITING

    def failed(self, error: BaseException) -> None:
        """Let takers know (from `Channel`)."""
        self._error = self._error or error
        self._confirmed.set()
        self.arrivals.end(self._error)

    def _subscribe(self, shard: Shard) -> None:
        command = self._command(self._manner, filter=self._filter, heartbeat_timeout_ms=self._asked_ms, answer="all")
        future = self._channel.send(shard, command)
        future.add_done_callback(lambda done: self._subscribed(shard, done))

    def _subscribed(self, shard: Shard, future: Future[Answer]) -> None:
        if future.cancelled() or self._closing:
            return
        error = future.exception()
        if error is None and future.result().status != "ok":
            error = CommandFailed(shard.entity, future.result())
        if error is not None:
            self.failed(error)
            return
        told_ms = future.result().counts.get("heartbeat_timeout_ms")
        if self._asked_ms is None and told_ms:
            self._heartbeat_timeout_ms = told_ms
        self._confirm(shard.index)

    def _confirm(self, index: int) -> None:
        self._unconfirmed.discard(index)
        if not self._unconfirmed:
            self._confirmed.set()

    def _command(self, name: str, **fields: Any) -> Command:
        return Command.of(command=name, subscription=self.name, **fields)
