"""The SOW client: queries, deletes and subscriptions (S3, S5 to S7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final

from confluent_kafka import Message

from lapse.protocol.answer import Answer
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command import Command
from lapse_client.channel import Channel, Fields
from lapse_client.connection import Connection
from lapse_client.deletion import wait_until_gone
from lapse_client.error import Closed
from lapse_client.shard import Shard
from lapse_client.sow_query import SowQuery
from lapse_client.sow_record import SowRecord, read
from lapse_client.sow_subscription import Manner, SowSubscription

_TICK_S: Final = 0.05
_MOST_WAITING: Final = 50_000
"""Results that may wait for the application before reading pauses."""


class SowClient:
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
    """

    def __init__(self, topic: str, *, connection: Connection | None = None, timeout_s: float = 30.0) -> None:
        self.topic = topic
        self._connection = connection or Connection.from_environment()
        self._timeout_s = timeout_s
        self._channel: Channel[SowRecord] | None = None
        self._shards = 0
        self._queries: list[SowQuery] = []
        self._error: BaseException | None = None

    def start(self) -> SowClient:
        """Connect; `with` does so too.

        Raises:
            UnknownEntity: there is no such SOW topic; the text names those that exist.
            ConnectionFailed: no broker answered.
        """
        if self._channel is None:
            self._shards = self._connection.shards("SOW topic", self.topic)
            channel = Channel(self._connection, [(self.topic, self._shards)], self)
            channel.start()
            self._channel = channel
        return self

    def close(self) -> None:
        """Disconnect; queries that run are cut short, subscriptions go on until they are closed."""
        if self._channel is not None:
            self._channel.close()
            for query in list(self._queries):
                query.arrivals.end()

    def __enter__(self) -> SowClient:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def query(
        self,
        filter: str | None = None,  # noqa: A002  # the command's word
        *,
        order_by: str | None = None,
        top_n: int | None = None,
        skip: int | None = None,
        keys: Iterable[str | bytes] | None = None,
        batch_size: int | None = None,
    ) -> Iterator[SowRecord]:
        """Yield the current records, none of them expired; it asks when the first one is wanted.

        Args:
            filter: an expression; None = all records.
            order_by: an expression with ASC or DESC behind it.
            top_n: at most so many.
            skip: so many are left out first.
            keys: only these; None = any.
            batch_size: records that a shard sends at once.

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
        )
        query = SowQuery(self._live(), command, self._timeout_s)
        self._queries.append(query)
        try:
            yield from query.records()
        finally:
            self._queries.remove(query)

    def delete(
        self,
        *,
        keys: Iterable[str | bytes] = (),
        filter: str | None = None,  # noqa: A002  # the command's word
        bookmarks: Iterable[str] = (),
    ) -> int:
        """Delete records by keys, by filter or by bookmarks, and return how many were removed.

        Raises:
            ValueError: none of the three, or more than one; a bookmark of another form.
            CommandFailed: a shard refused.
        """
        some_keys, some_bookmarks = tuple(map(_bytes, keys)), tuple(bookmarks)
        if sum((bool(some_keys), filter is not None, bool(some_bookmarks))) != 1:
            raise ValueError("delete: name keys, a filter or bookmarks, and only one of them")
        for text in some_bookmarks:
            BookmarkRange.parse(text)
        channel = self._live()
        command = Command.of(command="sow_delete", keys=some_keys, filter=filter, bookmarks=some_bookmarks)
        answers = channel.ask([(shard, command) for shard in channel.shards], self._timeout_s)
        return sum(answer.counts.get("removed", 0) for answer in answers)

    def delete_topic(self, *, force: bool = False) -> dict[str, int]:
        """Delete the whole SOW topic, all shards or none, and wait until its topics are gone; closes the client.

        Its underlying topic, dead letters and events stay (C4).

        Args:
            force: take along the records that are there, with the reason `purged`.

        Returns:
            How many records and scheduled versions there were.

        Raises:
            CommandFailed: it is not empty; the text says how many records there are.
            LapseError: it is deleted, and its topics are still there.
        """
        channel = self._live()
        (answer,) = channel.ask([(channel.shards[0], Command(command="delete", force=force))], self._timeout_s)
        self.close()
        wait_until_gone(self._connection, self.topic, self._timeout_s)
        return dict(answer.counts)

    def subscribe(self, filter: str | None = None, *, heartbeat_timeout_ms: int | None = None) -> SowSubscription:  # noqa: A002
        """Return updates from now on, to be opened with `with`; see `SowSubscription`."""
        return self._subscription("subscribe", filter, heartbeat_timeout_ms)

    def sow_and_subscribe(
        self,
        filter: str | None = None,  # noqa: A002
        *,
        heartbeat_timeout_ms: int | None = None,
    ) -> SowSubscription:
        """Return the current records, then updates, without a gap or a repeat between them."""
        return self._subscription("sow_and_subscribe", filter, heartbeat_timeout_ms)

    def delta_subscribe(self, filter: str | None = None, *, heartbeat_timeout_ms: int | None = None) -> SowSubscription:  # noqa: A002
        """Return updates from now on, changed fields only."""
        return self._subscription("delta_subscribe", filter, heartbeat_timeout_ms)

    def read(self, shard: Shard, message: Message, fields: Fields) -> SowRecord:
        """Read a result (from `Channel`)."""
        return read(shard, message, fields)

    def received(self, records: list[SowRecord]) -> None:
        """Hand results to their queries (from `Channel`)."""
        for query in list(self._queries):
            query.received(records)

    def refused(self, shard: Shard, answer: Answer) -> None:
        """Nothing is sent without waiting for the answer (from `Channel`)."""

    def goes_on_without(self, entity: str) -> bool:
        """No: it is the only one (from `Channel`)."""
        return False

    def taken_over(self, shard: Shard) -> None:
        """Ask the shard again (from `Channel`)."""
        for query in list(self._queries):
            query.taken_over(shard)

    def tick(self) -> float:
        """Nothing is ever due (from `Channel`)."""
        return _TICK_S

    def full(self) -> bool:
        """Whether the application lags behind (from `Channel`)."""
        return any(len(query.arrivals) > _MOST_WAITING for query in list(self._queries))

    def failed(self, error: BaseException) -> None:
        """Let those who wait know (from `Channel`)."""
        self._error = error
        for query in list(self._queries):
            query.arrivals.end(error)

    def _subscription(self, manner: Manner, text: str | None, heartbeat_timeout_ms: int | None) -> SowSubscription:
        self._live()
        return SowSubscription(
            self._connection,
            self.topic,
            self._shards,
            manner,
            filter=text,
            heartbeat_timeout_ms=heartbeat_timeout_ms,
            timeout_s=self._timeout_s,
        )

    def _live(self) -> Channel[SowRecord]:
        if self._channel is None:
            raise Closed(f"the SOW client of {self.topic}")
        if self._error is not None:
            raise self._error
        return self._channel


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
