"""A subscription to a SOW topic: updates, and what goes out of focus (S6, S7)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import ClassVar, Final, Literal
from uuid import uuid4

from confluent_kafka import Message

from lapse.protocol.answer import Answer
from lapse_client.delivery.arrivals import Arrivals
from lapse_client.error import CommandFailed
from lapse_client.kafka.clock import elapsed_ms
from lapse_client.kafka.connection import Connection
from lapse_client.payload.serde import DeserializerLike
from lapse_client.session.channel import forgotten
from lapse_client.session.channel_thread import ChannelThread
from lapse_client.session.client import Client
from lapse_client.session.heartbeat import Heartbeat
from lapse_client.session.listener import Fields, Listener
from lapse_client.session.session import Session
from lapse_client.session.shard import Shard
from lapse_client.sow.record import SowRecord, read
from lapse_client.subscriber.terms import check

log = logging.getLogger("lapse_client")

Manner = Literal["subscribe", "sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"]

_MOST_WAITING: Final = 50_000
"""Updates that may wait for the application before reading pauses."""

_UNTIL_TOLD_MS: Final = 3_000
"""The heartbeat timeout that is assumed until the topic's is known, in ms."""

_UNANSWERED_MS: Final = 15_000
"""After this time without an answer, the worker of a `subscribe` may have died. The next refusal counts again."""

_BEGIN: Final = "group-begin"
_END: Final = "group-end"


class SowSubscription(Client[SowRecord]):
    """Updates of a SOW topic as an iterator; a context manager.

    It heartbeats by itself, and subscribes again where a worker has forgotten it, which a record of kind
    `resubscribed` tells.

    Args:
        connection: the cluster.
        entity: the SOW topic.
        shards: how many it has.
        manner: subscribe, sow_and_subscribe, delta_subscribe or sow_and_delta_subscribe.
        filter: which records; None = all.
        select: which of their fields; empty = all.
        heartbeat_timeout_ms: silence after which the subscription ends, in ms; None = the topic's `heartbeat_timeout`.
        timeout_s: how long to wait for answers, in seconds.
        deserializer: reads the payloads, for `record.payload`; None = nothing does.

    Raises:
        ValueError: filter or heartbeat_timeout_ms cannot be sent.
    """

    _warns: ClassVar[bool] = True

    def __init__(
        self,
        connection: Connection,
        entity: str,
        shards: int,
        manner: Manner,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        select: Sequence[str] = (),
        heartbeat_timeout_ms: int | None = None,
        timeout_s: float = 30.0,
        deserializer: DeserializerLike | None = None,
    ) -> None:
        check("filter", filter)
        check("heartbeat_timeout_ms", heartbeat_timeout_ms)
        super().__init__(f"the subscription to {entity}", connection, timeout_s)
        self.arrivals: Arrivals[SowRecord] = Arrivals()
        self.name = uuid4().hex
        self._entities = [(entity, shards)]
        self._manner: Manner = manner
        self._filter = filter
        self._select = tuple(select)
        self._heartbeat_timeout_ms = heartbeat_timeout_ms
        self._deserializer = deserializer

    def __iter__(self) -> Iterator[SowRecord]:
        return self.updates()

    def updates(self, timeout: float | None = None) -> Iterator[SowRecord]:
        """Iterate over updates, in the order of each shard.

        Args:
            timeout: the iteration ends after this time without one, s; None = only `close` ends it.
        """
        transport = self.transport
        while taken := self.arrivals.take(1, transport.patience(timeout) if timeout else timeout):
            yield taken[0]

    def _open(self) -> None:
        self.arrivals = Arrivals()
        session = self._session = Session[SowRecord](self._connection, self._entities, self._lifecycle, self.name)
        listener = SowListener(
            session,
            self._manner,
            self._filter,
            self._heartbeat_timeout_ms,
            self.arrivals,
            self._select,
            self._deserializer,
        )
        session.open(listener, self._timeout_s, self._manner)

    def _leave(self, timeout_s: float) -> None:
        super()._leave(timeout_s)
        self.arrivals.end()


class SowListener(Listener[SowRecord]):
    """Keeps up a subscription to a SOW topic and takes in what comes.

    Args:
        session: the subscription's.
        manner: subscribe, sow_and_subscribe, delta_subscribe or sow_and_delta_subscribe.
        filter: which records; None = all.
        heartbeat_timeout_ms: what the client asks for, in ms; None = the topic's.
        arrivals: where updates wait for the application.
        select: which of the records' fields; empty = all.
        deserializer: reads the payloads; None = nothing does.
    """

    def __init__(
        self,
        session: Session[SowRecord],
        manner: Manner,
        filter: str | None,  # noqa: A002  # the command's word
        heartbeat_timeout_ms: int | None,
        arrivals: Arrivals[SowRecord],
        select: tuple[str, ...] = (),
        deserializer: DeserializerLike | None = None,
    ) -> None:
        self._session = session
        self._manner = manner
        self._filter = filter
        self._select = select
        self._deserializer = deserializer
        self._asked_ms = heartbeat_timeout_ms
        self._arrivals = arrivals
        self._heartbeat = Heartbeat(session, heartbeat_timeout_ms, _UNTIL_TOLD_MS)
        self._grouping = set(session.partitions) if manner.startswith("sow_and_") else set()
        self._to_subscribe = deque(session.shards)
        self._subscribed: deque[tuple[Shard, Future[Answer]]] = deque()  # filled by the thread that ends a future
        self._returning: dict[int, float] = {}
        """Shards that have forgotten us, and have not answered to the `subscribe` after that: since when."""

    def on_record(self, shard: Shard, message: Message, fields: Fields) -> SowRecord:
        """Read an update."""
        return read(shard, message, fields, self._deserializer)

    def on_received(self, records: list[SowRecord]) -> None:
        """Take updates in."""
        updates: list[SowRecord] = []
        for record in records:
            index = record.partition
            if record.kind == _BEGIN:
                self._session.confirm(index)
            elif record.kind == _END:
                if index in self._grouping:
                    self._grouping.discard(index)
                    if not self._grouping:
                        updates.append(SowRecord(kind="group-end"))
            else:
                updates.append(record)
        if updates:
            self._arrivals.put(updates)

    def on_refused(self, shard: Shard, answer: Answer) -> None:
        """Subscribe again where the subscription is unknown; once, though all that was sent before is refused, too."""
        if answer.status == "ok" or not self._session.lifecycle.is_open:
            return
        if not forgotten(answer):
            log.warning("%s", CommandFailed(shard.entity, answer))
            return
        now_ms = elapsed_ms()
        if shard.index in self._returning and now_ms - self._returning[shard.index] < _UNANSWERED_MS:
            return
        self._returning[shard.index] = now_ms
        log.info("%s, shard %d does not know the subscription: subscribing again", shard.entity, shard.partition)
        self._arrivals.put([SowRecord(kind="resubscribed", partition=shard.partition)])
        self._to_subscribe.append(shard)

    def on_tick(self, thread: ChannelThread) -> float:
        """Subscribe where that is due, and send heartbeats."""
        while self._to_subscribe:
            self._subscribe(self._to_subscribe.popleft())
        while self._subscribed:
            self._take_answer(*self._subscribed.popleft())
        self._heartbeat.beat(shard for shard in self._session.shards if self._session.is_confirmed(shard.index))
        return self._heartbeat.wait_s

    def is_full(self) -> bool:
        """Whether the application lags behind."""
        return len(self._arrivals) > _MOST_WAITING

    def failed(self, error: BaseException) -> None:
        """Let takers know; by any thread."""
        self._arrivals.end(error)

    def _subscribe(self, shard: Shard) -> None:
        command = self._session.command(
            self._manner, filter=self._filter, select=self._select, heartbeat_timeout_ms=self._asked_ms, answer="all"
        )
        future = self._session.send_if_open(shard, command)
        if future is not None:
            future.add_done_callback(lambda done: self._subscribed.append((shard, done)))

    def _take_answer(self, shard: Shard, future: Future[Answer]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None and future.result().status != "ok":
            error = CommandFailed(shard.entity, future.result())
        if error is not None:
            self._session.fail(error)
            return
        self._returning.pop(shard.index, None)
        self._heartbeat.told(future.result())
        self._session.confirm(shard.index)
