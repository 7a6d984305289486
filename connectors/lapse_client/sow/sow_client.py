"""The SOW client: queries, deletes and subscriptions (S3, S5 to S7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from confluent_kafka import Message

from lapse.protocol.answer import OpenSubscription, ScheduledUpdate
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.command import MOST_UPDATES, Command
from lapse_client.kafka.connection import Connection
from lapse_client.payload.serde import DeserializerLike
from lapse_client.queue.deletion import wait_until_gone
from lapse_client.queue.open_subscriptions import open_subscriptions
from lapse_client.queue.queues import figures_of
from lapse_client.session.client import Client
from lapse_client.session.listener import Fields, Listener
from lapse_client.session.session import Session
from lapse_client.session.shard import Shard
from lapse_client.sow.query import SowQuery
from lapse_client.sow.record import SowRecord, read
from lapse_client.sow.subscription import Manner, SowSubscription

_MOST_WAITING: Final = 50_000
"""Results that may wait for the application before reading pauses."""


class SowClient(Client[SowRecord]):
    """Queries and subscribes to a SOW topic; a context manager.

    ::

        with SowClient("prices") as prices:
            for record in prices.query("/price > 100", order_by="/price DESC", top_n=10):
                ...
            with prices.sow_and_subscribe("/symbol = 'A'") as updates:
                for update in updates:
                    ...

    Args:
        topic: the SOW topic.
        connection: the cluster; from the environment by default.
        timeout_s: how long to wait for answers, in seconds.
        deserializer: reads the payloads, for `record.payload`: a `JsonSerde`, an `AvroSerde`, one of Confluent's
            deserializers, or a function of bytes.
    """

    def __init__(
        self,
        topic: str,
        *,
        connection: Connection | None = None,
        timeout_s: float = 30.0,
        deserializer: DeserializerLike | None = None,
    ) -> None:
        super().__init__(f"the SOW client of {topic}", connection, timeout_s)
        self.topic = topic
        self._deserializer = deserializer
        self._queries: list[SowQuery] = []

    def query(
        self,
        filter: str | None = None,  # noqa: A002  # the command's word
        *,
        order_by: str | None = None,
        top_n: int | None = None,
        skip: int | None = None,
        keys: Iterable[str | bytes] | None = None,
        batch_size: int | None = None,
        select: Iterable[str] = (),
    ) -> Iterator[SowRecord]:
        """Yield the current records, none of them expired; it asks when the first one is wanted.

        Args:
            filter: an expression; None = all records.
            order_by: an expression with ASC or DESC behind it.
            top_n: the greatest number of records.
            skip: how many to leave out first.
            keys: only these; None = any.
            batch_size: records that a shard sends at once.
            select: which fields, by paths such as `/id`; `-/notes` is left out; empty = all.

        Raises:
            ValueError: an argument out of range.
            CommandFailed: a shard refused; the text shows the spot in the expression.
            AnswerTimeout: a shard did not answer.
        """
        some_keys = None if keys is None else tuple(map(_bytes, keys))
        if some_keys == ():
            return
        command = Command.of(
            command="sow",
            filter=filter,
            order_by=order_by,
            top_n=top_n,
            skip=skip,
            keys=some_keys or (),
            batch_size=batch_size,
            select=_paths(select),
        )
        query = SowQuery(self._live().channel, command, self._timeout_s)
        self._queries.append(query)
        try:
            yield from query.records()
        finally:
            self._queries.remove(query)

    def depth(self) -> dict[str, Any]:
        """Figures over all shards: `records`, `scheduled` updates, `dying` letters, and `subscriptions`."""
        session = self._live()
        figures = figures_of(session.ask(session.partitions, Command(command="depth"), self._timeout_s))
        figures.pop("oldest_age_ms", None)
        return figures

    def subscriptions(self) -> list[OpenSubscription]:
        """Who is subscribed, and since when; over all shards, the oldest first.

        Raises:
            CommandFailed: the user may see a part of the SOW topic only.
        """
        return open_subscriptions(self._live(), self._timeout_s)

    def delete(
        self,
        *,
        keys: Iterable[str | bytes] = (),
        data: Iterable[str | bytes] = (),
        filter: str | None = None,  # noqa: A002  # the command's word
        bookmarks: Iterable[str] = (),
    ) -> int:
        """Delete records by keys, by data, by filter or by bookmarks, and return how many were removed (S3).

        Args:
            keys: of these keys.
            data: payloads; the records with the same key fields, where the key is in the payload.
            filter: an expression; those that match.
            bookmarks: those whose last update stands there; also withdraws a scheduled update.

        Raises:
            ValueError: none of the four, or more than one; a bookmark of another form.
            CommandFailed: a shard refused.
        """
        some_keys, some_data, some_bookmarks = tuple(map(_bytes, keys)), tuple(map(_bytes, data)), tuple(bookmarks)
        if sum((bool(some_keys), bool(some_data), filter is not None, bool(some_bookmarks))) != 1:
            raise ValueError("delete: name keys, data, a filter or bookmarks, and only one of them")
        for text in some_bookmarks:
            BookmarkRange.parse(text)
        session = self._live()
        command = Command.of(
            command="sow_delete", keys=some_keys, data=some_data, filter=filter, bookmarks=some_bookmarks
        )
        answers = session.ask(session.partitions, command, self._timeout_s)
        return sum(answer.counts.get("removed", 0) for answer in answers)

    def scheduled(
        self,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        top_n: int | None = None,
        skip: int = 0,
    ) -> list[ScheduledUpdate]:
        """Updates whose instant has not come, the next ones first (L5).

        Args:
            filter: an expression; those whose payload matches, and no deletes.
            top_n: the greatest number; None = all.
            skip: how many to leave out first.

        Raises:
            ValueError: an argument out of range.
            CommandFailed: a shard refused, for instance the filter.
        """
        session, most = self._live(), None if top_n is None else top_n + skip
        found: list[ScheduledUpdate] = []
        for shard in session.partitions:
            seen = 0
            while most is None or seen < most:
                part = MOST_UPDATES if most is None else min(MOST_UPDATES, most - seen)
                command = Command.of(command="sow", state="scheduled", filter=filter, top_n=part, skip=seen)
                (answer,) = session.ask([shard], command, self._timeout_s)
                found += answer.updates
                seen += len(answer.updates)
                if len(answer.updates) < part:
                    break
        found.sort(key=lambda one: (one.enqueue_at_ms, Bookmark.parse(one.bookmark)))
        return found[skip:most]

    def withdraw(
        self,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        bookmarks: Iterable[str] = (),
    ) -> int:
        """Withdraw scheduled updates by filter or by bookmarks, and return how many; records stay as they are (L5).

        Args:
            filter: an expression; `TRUE` means all that do not delete.
            bookmarks: `topic:partition:first[-last]`. An update that has taken effect meanwhile stays.

        Raises:
            ValueError: neither of the two, or both; a bookmark of another form.
            CommandFailed: a shard refused.
        """
        named = tuple(bookmarks)
        if bool(named) is (filter is not None):
            raise ValueError("withdraw: name either a filter or bookmarks")
        for text in named:
            BookmarkRange.parse(text)
        session = self._live()
        command = Command.of(command="sow_delete", state="scheduled", filter=filter, bookmarks=named)
        answers = session.ask(session.partitions, command, self._timeout_s)
        return sum(answer.counts.get("removed", 0) for answer in answers)

    def delete_topic(self, *, force: bool = False) -> dict[str, int]:
        """Delete the whole SOW topic, all shards or none, and wait until its topics are gone; closes the client.

        Underlying topic, dead letters and events stay, unless it is temporary and they came with it (C4, C65).

        Args:
            force: take along the records that are there, with the reason `purged`.

        Returns:
            How many records and scheduled versions there were.

        Raises:
            CommandFailed: it is not empty; the text says how many records there are.
            LapseError: it is deleted, and its topics are still there.
        """
        (answer,) = self._live().ask([0], Command(command="delete", force=force), self._timeout_s)
        self.close()
        wait_until_gone(self._connection, self.topic, self._timeout_s)
        return dict(answer.counts)

    def subscribe(
        self,
        filter: str | None = None,  # noqa: A002  # the command's word
        *,
        heartbeat_timeout_ms: int | None = None,
        select: Iterable[str] = (),
    ) -> SowSubscription:
        """Return updates from now on, to be opened with `with`; see `SowSubscription`."""
        return self._subscription("subscribe", filter, heartbeat_timeout_ms, select)

    def sow_and_subscribe(
        self,
        filter: str | None = None,  # noqa: A002  # the command's word
        *,
        heartbeat_timeout_ms: int | None = None,
        select: Iterable[str] = (),
    ) -> SowSubscription:
        """Return the current records, then updates, without a gap or a repeat between them."""
        return self._subscription("sow_and_subscribe", filter, heartbeat_timeout_ms, select)

    def delta_subscribe(
        self,
        filter: str | None = None,  # noqa: A002  # the command's word
        *,
        heartbeat_timeout_ms: int | None = None,
        select: Iterable[str] = (),
    ) -> SowSubscription:
        """Return updates from now on, changed fields only."""
        return self._subscription("delta_subscribe", filter, heartbeat_timeout_ms, select)

    def sow_and_delta_subscribe(
        self,
        filter: str | None = None,  # noqa: A002  # the command's word
        *,
        heartbeat_timeout_ms: int | None = None,
        select: Iterable[str] = (),
    ) -> SowSubscription:
        """Return the current records, then what changes in them: changed fields only, without a gap or a repeat."""
        return self._subscription("sow_and_delta_subscribe", filter, heartbeat_timeout_ms, select)

    def _subscription(
        self, manner: Manner, text: str | None, heartbeat_timeout_ms: int | None, select: Iterable[str]
    ) -> SowSubscription:
        return SowSubscription(
            self._connection,
            self.topic,
            len(self._live().shards),
            manner,
            filter=text,
            select=_paths(select),
            heartbeat_timeout_ms=heartbeat_timeout_ms,
            timeout_s=self._timeout_s,
            deserializer=self._deserializer,
        )

    def _open(self) -> None:
        shards = self._connection.shards("SOW topic", self.topic)
        self._session = Session(self._connection, [(self.topic, shards)], self._lifecycle)
        self._session.open(SowQueries(self._queries, self._deserializer), self._timeout_s)

    def _leave(self, timeout_s: float) -> None:
        super()._leave(timeout_s)
        for query in list(self._queries):
            query.arrivals.end()


class SowQueries(Listener[SowRecord]):
    """Hands results to their queries.

    Args:
        queries: those that run; changed by the threads that ask.
        deserializer: reads the payloads; None = nothing does.
    """

    def __init__(self, queries: list[SowQuery], deserializer: DeserializerLike | None = None) -> None:
        self._queries = queries
        self._deserializer = deserializer

    def on_record(self, shard: Shard, message: Message, fields: Fields) -> SowRecord:
        """Read a result."""
        return read(shard, message, fields, self._deserializer)

    def on_received(self, records: list[SowRecord]) -> None:
        """Hand results to their queries."""
        for query in list(self._queries):
            query.received(records)

    def on_taken_over(self, shard: Shard) -> None:
        """Ask the shard again."""
        for query in list(self._queries):
            query.taken_over(shard)

    def is_full(self) -> bool:
        """Whether the application lags behind."""
        return any(len(query.arrivals) > _MOST_WAITING for query in list(self._queries))

    def failed(self, error: BaseException) -> None:
        """Let those who wait know."""
        for query in list(self._queries):
            query.arrivals.end(error)


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def _paths(select: Iterable[str]) -> tuple[str, ...]:
    if isinstance(select, str):
        raise TypeError(f"select takes paths, such as [{select!r}], and no single text")
    return tuple(select)
