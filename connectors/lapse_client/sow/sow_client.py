"""The SOW client: queries, deletes and subscriptions (S3, S5 to S7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from confluent_kafka import Message

from lapse.protocol.answer import OpenSubscription, ScheduledUpdate
from lapse.protocol.bookmark import Bookmark, BookmarkLike, BookmarkRange
from lapse.protocol.command import MOST_UPDATES, Command
from lapse_client.argument import check_count, several
from lapse_client.kafka.connection import Connection
from lapse_client.payload.serde import DeserializerLike, check_serde
from lapse_client.queue.deletion import ask_deletion, wait_until_gone
from lapse_client.queue.open_subscriptions import open_subscriptions
from lapse_client.queue.queues import combine_figures
from lapse_client.session.client import Client
from lapse_client.session.listener import Fields, Listener
from lapse_client.session.session import Session
from lapse_client.session.shard import Shard
from lapse_client.sow.query import SowQuery
from lapse_client.sow.record import SowRecord, read
from lapse_client.sow.subscription import SowSubscription, SubscribeCommand

_MOST_WAITING: Final = 50_000
"""The most results that wait for the application before the channel stops reading."""


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
        topic: name of the SOW topic.
        connection: connection to the cluster; from the environment by default.
        timeout_s: how long to wait for answers, in seconds.
        deserializer: converts values for `record.payload`: a `JsonSerde`, an `AvroSerde`, one of Confluent's
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
        check_serde("deserializer", deserializer)
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
        data: Iterable[str | bytes] | None = None,
        batch_size: int | None = None,
        select: Iterable[str] = (),
    ) -> Iterator[SowRecord]:
        """Yield the current records, none of them expired. The query is sent when the first record is asked for.

        Args:
            filter: an expression; None = all records.
            order_by: an expression, followed by ASC (the default) or DESC.
            top_n: the greatest number of records; None = all.
            skip: number of records to leave out first.
            keys: keys of the records to return; None = any.
            data: payloads with the key fields of the records to return, for a topic whose key is in the payload, at
                most 1,000; None = any.
            batch_size: number of records that a shard sends at once.
            select: paths of the fields to return, such as `/id`, or of fields to leave out, such as `-/notes`; empty
                = all fields.

        Raises:
            ValueError: an argument is out of range.
            CommandFailed: a shard refused the query. The text shows the wrong part of an expression.
            AnswerTimeout: a shard did not answer.
        """
        some_keys = None if keys is None else tuple(map(_bytes, several("keys", keys)))
        some_data = None if data is None else tuple(map(_bytes, several("data", data)))
        if () in (some_keys, some_data):
            return
        command = Command.of(
            command="sow",
            filter=filter,
            order_by=order_by,
            top_n=top_n,
            skip=skip,
            keys=some_keys or (),
            data=some_data or (),
            batch_size=batch_size,
            select=tuple(several("select", select)),
        )
        query = SowQuery(self._live().channel, command, self._timeout_s)
        self._queries.append(query)
        try:
            yield from query.records()
        finally:
            self._queries.remove(query)

    def depth(self) -> dict[str, Any]:
        """Return figures over all shards: `records`, `scheduled`, `dying` (pending letters), `subscriptions`."""
        session = self._live()
        figures = combine_figures(session.ask(session.partitions, Command(command="depth"), self._timeout_s))
        figures.pop("oldest_age_ms", None)
        return figures

    def subscriptions(self) -> list[OpenSubscription]:
        """Return the open subscriptions with their start, the oldest first.

        Raises:
            CommandFailed: the user may see only a part of the SOW topic.
        """
        return open_subscriptions(self._live(), self._timeout_s)

    def delete(
        self,
        *,
        keys: Iterable[str | bytes] = (),
        data: Iterable[str | bytes] = (),
        filter: str | None = None,  # noqa: A002  # the command's word
        bookmarks: Iterable[BookmarkLike] = (),
    ) -> int:
        """Delete records by keys, by data, by filter or by bookmarks, and return how many were removed (S3).

        Args:
            keys: keys of the records.
            data: payloads with the key fields of the records, for a topic whose key is in the payload.
            filter: an expression that the records match.
            bookmarks: bookmarks of the records' last updates. A bookmark of a scheduled update withdraws it.

        Raises:
            ValueError: none of the four is given, or more than one; or a bookmark is not valid.
            CommandFailed: a shard refused.
        """
        some_keys = tuple(map(_bytes, several("keys", keys)))
        some_data = tuple(map(_bytes, several("data", data)))
        some_bookmarks = tuple(map(str, several("bookmarks", bookmarks)))
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
        """Return the scheduled updates, those that are due next first (L5).

        Args:
            filter: an expression. Only updates whose payload matches are returned, and no deletes.
            top_n: the greatest number of updates; None = all.
            skip: number of updates to leave out first.

        Raises:
            ValueError: an argument is out of range.
            CommandFailed: a shard refused, for instance the filter.
        """
        check_count("skip", skip, 0)
        if top_n is not None:
            check_count("top_n", top_n, 0)
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
        bookmarks: Iterable[BookmarkLike] = (),
    ) -> int:
        """Withdraw scheduled updates by filter or by bookmarks, and return how many. Records stay as they are (L5).

        Args:
            filter: an expression. `TRUE` means all updates that are not deletes.
            bookmarks: `topic:partition:first[-last]`. An update that has already taken effect stays.

        Raises:
            ValueError: neither of the two is given, or both; or a bookmark is not valid.
            CommandFailed: a shard refused.
        """
        named = tuple(map(str, several("bookmarks", bookmarks)))
        if bool(named) is (filter is not None):
            raise ValueError("withdraw: name either a filter or bookmarks")
        for text in named:
            BookmarkRange.parse(text)
        session = self._live()
        command = Command.of(command="sow_delete", state="scheduled", filter=filter, bookmarks=named)
        answers = session.ask(session.partitions, command, self._timeout_s)
        return sum(answer.counts.get("removed", 0) for answer in answers)

    def delete_topic(self, *, force: bool = False) -> dict[str, int]:
        """Delete the SOW topic, all shards or none, wait until its topics are gone, and close the client.

        Underlying topic, dead letters and events stay, unless the SOW topic is temporary and they were created with
        it (C4, C65).

        Args:
            force: whether to delete it even if it has records. They leave with the reason `purged`.

        Returns:
            The numbers of its records, scheduled updates and pending letters; empty if the topics were removed before
                the answer could be read.

        Raises:
            CommandFailed: the SOW topic is not empty. The text has the number of records.
            LapseError: the SOW topic is deleted, but its topics still exist.
        """
        counts = ask_deletion(self._live(), force=force, timeout_s=self._timeout_s)
        self.close()
        wait_until_gone(self._connection, self.topic, self._timeout_s)
        return counts

    def subscribe(
        self,
        filter: str | None = None,  # noqa: A002  # the command's word
        *,
        heartbeat_timeout_ms: int | None = None,
        select: Iterable[str] = (),
    ) -> SowSubscription:
        """Return a subscription to updates from now on, to be opened with `with`; see `SowSubscription`."""
        return self._subscription("subscribe", filter, heartbeat_timeout_ms, select)

    def sow_and_subscribe(
        self,
        filter: str | None = None,  # noqa: A002  # the command's word
        *,
        heartbeat_timeout_ms: int | None = None,
        select: Iterable[str] = (),
    ) -> SowSubscription:
        """Return a subscription to the current records and then updates, without a gap or a repeat between them."""
        return self._subscription("sow_and_subscribe", filter, heartbeat_timeout_ms, select)

    def delta_subscribe(
        self,
        filter: str | None = None,  # noqa: A002  # the command's word
        *,
        heartbeat_timeout_ms: int | None = None,
        select: Iterable[str] = (),
    ) -> SowSubscription:
        """Return a subscription to updates from now on, with the changed fields only."""
        return self._subscription("delta_subscribe", filter, heartbeat_timeout_ms, select)

    def sow_and_delta_subscribe(
        self,
        filter: str | None = None,  # noqa: A002  # the command's word
        *,
        heartbeat_timeout_ms: int | None = None,
        select: Iterable[str] = (),
    ) -> SowSubscription:
        """Return a subscription to the current records and then their changed fields, without a gap or a repeat."""
        return self._subscription("sow_and_delta_subscribe", filter, heartbeat_timeout_ms, select)

    def _subscription(
        self, command_name: SubscribeCommand, text: str | None, heartbeat_timeout_ms: int | None, select: Iterable[str]
    ) -> SowSubscription:
        return SowSubscription(
            self._connection,
            self.topic,
            len(self._live().shards),
            command_name,
            filter=text,
            select=tuple(several("select", select)),
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
    """A listener that hands results to their queries.

    Args:
        queries: the running queries; changed by the threads that ask.
        deserializer: converts values to payloads; None = values stay bytes.
    """

    def __init__(self, queries: list[SowQuery], deserializer: DeserializerLike | None = None) -> None:
        self._queries = queries
        self._deserializer = deserializer

    def on_record(self, shard: Shard, message: Message, fields: Fields) -> SowRecord:
        """Decode a result."""
        return read(shard, message, fields, self._deserializer)

    def on_received(self, records: list[SowRecord]) -> None:
        """Hand results to their queries."""
        for query in list(self._queries):
            query.received(records)

    def on_taken_over(self, shard: Shard) -> None:
        """Send the running queries to the shard again."""
        for query in list(self._queries):
            query.on_taken_over(shard)

    def is_full(self) -> bool:
        """Return whether the application lags behind."""
        return any(len(query.arrivals) > _MOST_WAITING for query in list(self._queries))

    def failed(self, error: BaseException) -> None:
        """Pass the error on to the running queries."""
        for query in list(self._queries):
            query.arrivals.end(error)


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
