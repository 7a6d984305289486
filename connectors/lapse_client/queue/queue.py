"""A queue as a whole: depth, peek, who is subscribed, settlement, pause, resume, purge, deletion (C4, Q8, Q15, Q21)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal
from uuid import uuid4

from lapse.protocol.answer import Answer, OpenSubscription, QueuedMessage
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command import MOST_PEEKED, Command
from lapse_client.kafka.connection import Connection
from lapse_client.queue.deletion import wait_until_gone
from lapse_client.queue.open_subscriptions import open_subscriptions
from lapse_client.queue.queues import figures_of
from lapse_client.session.client import Client
from lapse_client.session.further_shards import GrowingListener
from lapse_client.session.session import Session
from lapse_client.subscriber.settlement import SettlementResult, chunks, results
from lapse_client.subscriber.settler import Settling


class Queue(Client[None]):
    """Inspects and manages a queue as a whole; a context manager.

    Args:
        name: the queue.
        connection: the cluster; from the environment by default.
        timeout_s: how long to wait for answers, in seconds.
    """

    def __init__(self, name: str, *, connection: Connection | None = None, timeout_s: float = 30.0) -> None:
        super().__init__(f"the queue client of {name}", connection, timeout_s)
        self.name = name

    def depth(self, *, filter: str | None = None) -> dict[str, Any]:  # noqa: A002  # the command's word
        """Figures over all shards: messages by state, depth, subscriptions, oldest_age_ms.

        With a filter, an expression, only messages by state, of those that match.

        All are whole numbers; `oldest_age_ms` is None where there is no message. `paused` is 1 while deliveries are
        held back, and missing otherwise.
        """
        return figures_of(self._ask(Command.of(command="depth", filter=filter)))

    def peek(
        self,
        *,
        filter: str | None = None,  # noqa: A002  # the command\'s word
        top_n: int | None = None,
        skip: int = 0,  # the command's word
        state: str = "",
    ) -> list[QueuedMessage]:
        """What the queue holds, shard by shard in order; takes no lease.

        Args:
            filter: an expression; only messages that match.
            top_n: the greatest number of messages; None = all.
            skip: how many to leave out first.
            state: only messages in this state, such as `scheduled`.

        Raises:
            ValueError: there is no such state.
        """
        most = None if top_n is None else top_n + skip
        session = self._live()
        messages: list[QueuedMessage] = []
        for shard in session.partitions:
            seen = 0
            while most is None or len(messages) < most:
                part = MOST_PEEKED if most is None else min(MOST_PEEKED, most - len(messages))
                command = Command.of(command="sow", filter=filter, top_n=part, skip=seen, state=state)
                (answer,) = session.ask([shard], command, self._timeout_s)
                messages.extend(answer.messages)
                seen += len(answer.messages)
                if len(answer.messages) < part:
                    break
        return messages[skip:] if most is None else messages[skip:most]

    def subscriptions(self) -> list[OpenSubscription]:
        """Who is subscribed, since when, and how many messages each holds; over all shards, the oldest first.

        Raises:
            CommandFailed: the user may see a part of the queue only.
        """
        return open_subscriptions(self._live(), self._timeout_s)

    def look_at(self, bookmark: str) -> QueuedMessage | None:
        """What the queue says now of one message, topic:partition:offset; None if it holds no such message."""
        session = self._live()
        name = BookmarkRange.parse(bookmark)
        command = Command.of(command="sow", bookmarks=[bookmark])
        (answer,) = session.ask([session.shard_of(name.partition)], command, self._timeout_s)
        return next(iter(answer.messages), None)

    def acknowledge(self, bookmarks: Iterable[str] = (), *, filter: str | None = None) -> list[SettlementResult]:  # noqa: A002
        """Settle as done; by `topic:partition:first[-last][#count]`, or by filter."""
        return self.settle("acknowledge", bookmarks, filter=filter)

    def cancel(
        self,
        bookmarks: Iterable[str] = (),
        *,
        filter: str | None = None,  # noqa: A002  # the command\'s word
        delay_ms: int | None = None,
    ) -> list[SettlementResult]:
        """Return leased messages, or withdraw scheduled ones; undeliverable for `delay_ms`, or as the queue says."""
        return self.settle("cancel", bookmarks, filter=filter, delay_ms=delay_ms)

    def expire(
        self,
        bookmarks: Iterable[str] = (),
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        fault: str = "",
    ) -> list[SettlementResult]:
        """Expire messages now; their letters say `fault`, 500 characters at most."""
        return self.settle("expire", bookmarks, filter=filter, fault=fault)

    def settle(
        self,
        how: Settling,
        bookmarks: Iterable[str] = (),
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        delay_ms: int | None = None,
        fault: str = "",
    ) -> list[SettlementResult]:
        """Settle messages by bookmark, or by a filter on every shard.

        Args:
            how: acknowledge, cancel or expire.
            bookmarks: `topic:partition:first[-last][#count]`; each goes to the shard of its partition.
            filter: instead of bookmarks.
            delay_ms: of cancel, in ms.
            fault: of expire: what is wrong with the messages.

        Raises:
            ValueError: neither bookmarks nor a filter, or both; a bookmark of another form.
            CommandFailed: a shard refused, for instance the filter.
        """
        by_partition: dict[int, list[str]] = {}
        for text in bookmarks:
            by_partition.setdefault(BookmarkRange.parse(text).partition, []).append(text)
        if bool(by_partition) is (filter is not None):
            raise ValueError(f"{how}: name either bookmarks or a filter")
        if filter is not None:
            answers = self._ask(Command.of(command=how, filter=filter, delay_ms=delay_ms, fault=fault))
        else:
            answers = self._settle_bookmarks(how, by_partition, delay_ms, fault)
        return [result for answer in answers for result in results(answer)]

    def pause(self) -> None:
        """Deliver nothing until `resume`; survives restarts."""
        self._ask(Command(command="pause"))

    def resume(self) -> None:
        """Deliver again."""
        self._ask(Command(command="resume"))

    def purge(self, *, filter: str | None = None, leased: bool = False) -> dict[str, int]:  # noqa: A002
        """Remove all messages, or those that match, scheduled ones included.

        Counts `removed` and `skipped`, and how many of each state: `available`, `delayed`, `leased`, `scheduled` and
        `held` were removed, `skipped_leased` and so on were not.

        Args:
            filter: an expression.
            leased: remove leased messages, too.
        """
        total: dict[str, int] = {}
        for answer in self._ask(Command.of(command="purge", filter=filter, leased=leased)):
            for name, figure in answer.counts.items():
                total[name] = total.get(name, 0) + figure
        return total

    def rewind(
        self,
        to: str | int,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        lifetimes: Literal["new", "kept"] = "new",
        handed_over: bool = False,
        dry_run: bool = False,
        command_id: str = "",
        timeout_s: float = 600.0,
    ) -> dict[str, int]:
        """Bring back messages that have left, as far as Kafka still has their records (Q22).

        They are new messages, `orders:0:17~1`, behind those in the queue, which stay as they are.

        Args:
            to: from where on: `beginning`, an instant in ms since the epoch, or a bookmark.
            filter: an expression; only messages that match.
            lifetimes: whether relative lifetimes count from now, or are kept as they were.
            handed_over: also bring back messages that were handed over or forwarded.
            dry_run: only count.
            command_id: the id of this rewind: with the same id it is resumed, and never done twice. New by default.
            timeout_s: how long to wait, in seconds; the rewind goes on when it is over.

        Returns:
            How many messages are `rewound`, and how many records are left out: `live`, `elsewhere` (handed over or
            forwarded), `repeated`, `dead_on_arrival`, `not_here` (of another queue, or never confirmed), `no_match`,
            `expired` (they would expire at once), and `invalid_lifetime` (counted from now, their lifetime would end
            behind the last instant of 64 bits; with `lifetimes="kept"` they come back).

        Raises:
            CommandFailed: a shard refused.
            AnswerTimeout: a shard is not done in time; ask again with the same `command_id`.
        """
        session, name = self._live(), command_id or uuid4().hex
        command = Command.of(
            command="rewind",
            to=str(to),
            filter=filter,
            lifetimes=lifetimes,
            handed_over=handed_over,
            dry_run=dry_run,
        )
        asked = [(shard, replace(command, id=f"{name}/{shard}")) for shard in session.partitions]
        total: dict[str, int] = {}
        for answer in session.ask_each(asked, timeout_s):
            for what, figure in answer.counts.items():
                total[what] = total.get(what, 0) + (figure or 0)
        return total

    def delete(self, *, force: bool = False) -> dict[str, int]:
        """Delete the queue, all shards or none, and wait until its topics are gone; closes the client.

        Underlying topics, dead letters and events stay, unless it is temporary and they came with it (C4, C65).

        Args:
            force: delete the queue with all messages, leased or not, which leave with the reason `purged`.

        Returns:
            How many messages were there, by state.

        Raises:
            CommandFailed: it is not empty; the text says how many messages there are, and who has leased which.
            LapseError: it is deleted, and its topics are still there.
        """
        (answer,) = self._live().ask([0], Command(command="delete", force=force), self._timeout_s)
        self.close()
        wait_until_gone(self._connection, self.name, self._timeout_s)
        return dict(answer.counts)

    def _settle_bookmarks(
        self, how: str, by_partition: dict[int, list[str]], delay_ms: int | None, fault: str
    ) -> list[Answer]:
        session = self._live()
        asked: list[tuple[int, Command]] = []
        for partition, texts in by_partition.items():
            shard = session.shard_of(partition)
            if shard not in session.partitions:
                raise ValueError(f"{texts[0]}: {self.name} has partitions 0 to {session.partitions[-1]}")
            asked.extend(
                (shard, Command.of(command=how, bookmarks=some, delay_ms=delay_ms, fault=fault))
                for some in chunks(texts)
            )
        return session.ask_each(asked, self._timeout_s)

    def _ask(self, command: Command) -> list[Answer]:
        session = self._live()
        return session.ask(session.partitions, command, self._timeout_s)

    def _open(self) -> None:
        shards = self._connection.shards("queue", self.name)
        self._session = Session(self._connection, [(self.name, shards)], self._lifecycle)
        self._session.open(GrowingListener(self._connection, self._session), self._timeout_s)
