"""A subscription to a SOW topic, with its updates and out-of-focus records (S6, S7)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import ClassVar, Final, Literal
from uuid import uuid4

from confluent_kafka import Message

from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse_client.argument import check_wait
from lapse_client.delivery.arrivals import Arrivals
from lapse_client.error import CommandFailed, refusal
from lapse_client.kafka.clock import elapsed_ms
from lapse_client.kafka.connection import Connection
from lapse_client.payload.serde import DeserializerLike
from lapse_client.session.answer_code import is_shut_out, is_unknown_subscription
from lapse_client.session.channel_thread import ChannelThread
from lapse_client.session.client import Client
from lapse_client.session.heartbeat import Heartbeat
from lapse_client.session.listener import Fields, Listener
from lapse_client.session.session import Session
from lapse_client.session.shard import Shard
from lapse_client.sow.record import SowRecord, read
from lapse_client.subscriber.terms import check

log = logging.getLogger("lapse_client")

SubscribeCommand = Literal["subscribe", "sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"]

_MOST_WAITING: Final = 50_000
"""The most updates that wait for the application before the channel stops reading."""

_MOST_WAITING_BYTES: Final = 8 << 20
"""How many bytes of keys, values and headers may wait for the application before the channel stops reading."""

_UNTIL_ANSWERED_MS: Final = 3_000
"""The heartbeat timeout that is assumed until the topic's is known, in ms."""

_UNANSWERED_MS: Final = 15_000
"""After this time without an answer to `subscribe`, in ms, its worker may have died, and the next refusal counts."""

_BEGIN: Final = "group-begin"
_END: Final = "group-end"
_UPDATES: Final = frozenset({"sow", "publish", "delta", "oof"})
"""Kinds of records that the application gets. Records of unknown kinds were not written by a worker."""


class SowSubscription(Client[SowRecord]):
    """Updates of a SOW topic as an iterator; a context manager.

    It sends heartbeats by itself. If a worker has forgotten it, it subscribes again, and yields a record of kind
    `resubscribed`. It does so as well if a worker that took a shard over begins its query again.

    Args:
        connection: connection to the cluster.
        entity: name of the SOW topic.
        shards: its number of shards.
        command_name: `subscribe`, `sow_and_subscribe`, `delta_subscribe` or `sow_and_delta_subscribe`.
        filter: an expression that the records match; None = all.
        select: paths of the fields to send; empty = all.
        heartbeat_timeout_ms: time without heartbeats after which the subscription ends, in ms; None = the topic's
            `heartbeat_timeout`.
        timeout_s: how long to wait for answers, in seconds.
        deserializer: converts values for `record.payload`; None = the payload is the value.

    Raises:
        ValueError: `filter` or `heartbeat_timeout_ms` is not valid.
    """

    _warns: ClassVar[bool] = True

    def __init__(
        self,
        connection: Connection,
        entity: str,
        shards: int,
        command_name: SubscribeCommand,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        select: Sequence[str] = (),
        heartbeat_timeout_ms: int | None = None,
        timeout_s: float = 30.0,
        deserializer: DeserializerLike | None = None,
    ) -> None:
        check("filter", filter)
        check("heartbeat_timeout_ms", heartbeat_timeout_ms)
        # The channel's thread sends the command: an error there would end the subscription, and say nothing before.
        self._select = tuple(select)
        Command.of(command=command_name, filter=filter, select=self._select)
        super().__init__(f"the subscription to {entity}", connection, timeout_s)
        self.arrivals = Updates()
        self.name = uuid4().hex
        self._entities = [(entity, shards)]
        self._command_name: SubscribeCommand = command_name
        self._filter = filter
        self._heartbeat_timeout_ms = heartbeat_timeout_ms
        self._deserializer = deserializer

    def __iter__(self) -> Iterator[SowRecord]:
        return self.updates()

    def updates(self, timeout: float | None = None) -> Iterator[SowRecord]:
        """Iterate over updates, in the order of each shard.

        Args:
            timeout: time without an update after which the iteration stops, in seconds; None = only `close` stops it.

        Raises:
            Closed: the subscription was never started.
        """
        check_wait(timeout)
        if self._session is None or self.is_forked:
            raise self._lifecycle.end_error()
        transport = self.transport
        while taken := self.arrivals.take(1, transport.patience(timeout) if timeout else timeout):
            yield taken[0]

    def _open(self) -> None:
        self.arrivals = Updates()
        session = self._session = Session[SowRecord](self._connection, self._entities, self._lifecycle, self.name)
        listener = SowListener(
            session,
            self._command_name,
            self._filter,
            self._heartbeat_timeout_ms,
            self.arrivals,
            self._select,
            self._deserializer,
        )
        session.open(listener, self._timeout_s, self._command_name)

    def _leave(self, timeout_s: float) -> None:
        super()._leave(timeout_s)
        self.arrivals.end()


class Updates(Arrivals[SowRecord]):
    """A buffer of updates that knows how large they are.

    Attributes:
        waiting_bytes: bytes of keys, values and headers that wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waiting_bytes = 0

    def put(self, items: list[SowRecord]) -> None:
        """Add updates in order; after the end they are dropped."""
        size_bytes = sum(map(_size_bytes, items))
        with self._changed:
            self.waiting_bytes += 0 if self._ended else size_bytes
        super().put(items)

    def _pop_some(self, most: int) -> list[SowRecord]:
        taken = super()._pop_some(most)
        self.waiting_bytes -= sum(map(_size_bytes, taken))
        return taken


def _size_bytes(record: SowRecord) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


class SowListener(Listener[SowRecord]):
    """Keeps a subscription to a SOW topic alive, and passes on its updates.

    Args:
        session: session of the subscription.
        command_name: the command that subscribes.
        filter: an expression that the records match; None = all.
        heartbeat_timeout_ms: the heartbeat timeout that the client asks for, in ms; None = the topic's.
        arrivals: buffer of updates for the application.
        select: paths of the fields to send; empty = all.
        deserializer: converts values to payloads; None = values stay bytes.
    """

    def __init__(
        self,
        session: Session[SowRecord],
        command_name: SubscribeCommand,
        filter: str | None,  # noqa: A002  # the command's word
        heartbeat_timeout_ms: int | None,
        arrivals: Updates,
        select: tuple[str, ...] = (),
        deserializer: DeserializerLike | None = None,
    ) -> None:
        self._session = session
        self._command_name = command_name
        self._filter = filter
        self._select = select
        self._deserializer = deserializer
        self._asked_ms = heartbeat_timeout_ms
        self._arrivals = arrivals
        self._heartbeat = Heartbeat(session, heartbeat_timeout_ms, _UNTIL_ANSWERED_MS)
        self._queries = command_name.startswith("sow_and_")
        self._grouping = set(session.partitions) if self._queries else set()
        self._begun: set[int] = set()
        """Shards that have begun the query. One that begins it again does not know what it had sent."""
        self._to_subscribe = deque(session.shards)
        self._subscribed: deque[tuple[Shard, Future[Answer]]] = deque()  # filled by the thread that ends a future
        self._returning: dict[int, float] = {}
        """Shards that have forgotten the subscription, and not yet answered the next `subscribe`: since when, in ms."""
        self._ended: set[int] = set()
        """Shards that have reported the deletion of the topic. The records of the others may go out of focus yet."""
        self._latest: dict[int, Future[Answer]] = {}
        """By shard, the answer to its latest `subscribe`. An earlier one that ended is of no interest."""

    def on_record(self, shard: Shard, message: Message, fields: Fields) -> SowRecord:
        """Decode an update."""
        return read(shard, message, fields, self._deserializer)

    def on_received(self, records: list[SowRecord]) -> None:
        """Buffer updates for the application, and handle the marks of groups."""
        updates: list[SowRecord] = []
        for record in records:
            index = record.partition
            if record.kind == _BEGIN:
                self._session.confirm(index)
                if index in self._begun:
                    updates.append(SowRecord(kind="resubscribed", partition=index))
                self._begun.add(index)
            elif record.kind == _END:
                if index in self._grouping:
                    self._grouping.discard(index)
                    if not self._grouping:
                        updates.append(SowRecord(kind="group-end"))
            elif record.kind in _UPDATES:
                updates.append(record)
        if updates:
            self._arrivals.put(updates)

    def on_refused(self, shard: Shard, answer: Answer) -> None:
        """Subscribe again, once for all refused commands, if the shard does not know the subscription.

        It fails if its user has lost the right to it.
        """
        if answer.status == "ok" or not self._session.lifecycle.is_open:
            return
        if is_shut_out(answer):
            self._session.fail(refusal(shard.entity, answer))
            return
        if not is_unknown_subscription(answer):
            log.warning("%s", CommandFailed(shard.entity, answer))
            return
        now_ms = elapsed_ms()
        if shard.index in self._returning and now_ms - self._returning[shard.index] < _UNANSWERED_MS:
            return
        self._returning[shard.index] = now_ms
        log.info("%s, shard %d does not know the subscription: subscribing again", shard.entity, shard.partition)
        self._arrivals.put([SowRecord(kind="resubscribed", partition=shard.partition)])
        self._begun.discard(shard.partition)
        self._to_subscribe.append(shard)

    def awaits_others(self, shard: Shard) -> bool:
        """Go on until all shards of a deleted topic have ended: each sends its records out of focus first (S7)."""
        self._ended.add(shard.index)
        return len(self._ended) < len(self._session.shards)

    def on_taken_over(self, shard: Shard) -> None:
        """Send an unanswered `subscribe` again (C55). The new owner repeats a query by itself."""
        if not (self._queries or self._session.is_confirmed(shard.index) or shard in self._to_subscribe):
            self._to_subscribe.append(shard)

    def on_tick(self, thread: ChannelThread) -> float:
        """Send due subscribe commands and heartbeats."""
        while self._to_subscribe:
            self._subscribe(self._to_subscribe.popleft())
        while self._subscribed:
            self._take_answer(*self._subscribed.popleft())
        self._heartbeat.beat(shard for shard in self._session.shards if self._session.is_confirmed(shard.index))
        return self._heartbeat.wait_s

    def is_full(self) -> bool:
        """Return whether the application lags behind."""
        return len(self._arrivals) > _MOST_WAITING or self._arrivals.waiting_bytes > _MOST_WAITING_BYTES

    def failed(self, error: BaseException) -> None:
        """Pass the error on to threads that take updates. May be called from any thread."""
        self._arrivals.end(error)

    def _subscribe(self, shard: Shard) -> None:
        command = self._session.command(
            self._command_name,
            filter=self._filter,
            select=self._select,
            heartbeat_timeout_ms=self._asked_ms,
            answer="all",
        )
        future = self._session.send_if_open(shard, command)
        if future is not None:
            self._latest[shard.index] = future
            future.add_done_callback(lambda done: self._subscribed.append((shard, done)))

    def _take_answer(self, shard: Shard, future: Future[Answer]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None and is_unknown_subscription(future.result()):
            if self._latest[shard.index] is future:  # it ended, without heartbeats, before its query did
                self._returning.pop(shard.index, None)
                self.on_refused(shard, future.result())
            return
        if error is None and future.result().status != "ok":
            error = refusal(shard.entity, future.result())
        if error is not None:
            self._session.fail(error)
            return
        self._returning.pop(shard.index, None)
        self._heartbeat.on_answer(future.result())
        self._session.confirm(shard.index)
