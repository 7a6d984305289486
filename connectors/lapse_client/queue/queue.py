"""A queue as a whole: depth, peek, subscriptions, settlement, pause, purge and deletion (C4, Q8, Q15, Q21)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, Literal
from uuid import uuid4

from lapse.protocol.answer import Answer, OpenSubscription, QueuedMessage
from lapse.protocol.bookmark import Bookmark, BookmarkLike, BookmarkRange
from lapse.protocol.command import MOST_PEEKED, Command
from lapse_client.argument import check_choice, check_count, check_timeout, several
from lapse_client.kafka.connection import Connection
from lapse_client.queue.bookmark_settlement import settle_bookmarks
from lapse_client.queue.deletion import ask_deletion, wait_until_gone
from lapse_client.queue.named_partitions import NamedPartitions
from lapse_client.queue.open_subscriptions import open_subscriptions
from lapse_client.queue.queues import combine_figures
from lapse_client.session.client import Client
from lapse_client.session.conversation import Conversation
from lapse_client.session.further_shards import GrowingListener
from lapse_client.session.session import Session
from lapse_client.subscriber.settlement import SettlementResult, results
from lapse_client.subscriber.settler import Settling

_SETTLING: Final = ("acknowledge", "cancel", "expire")
"""How messages can be settled without a subscription."""


class Queue(Client[None]):
    """Inspects and manages a queue as a whole; a context manager.

    Args:
        name: name of the queue.
        connection: connection to the cluster; from the environment by default.
        timeout_s: how long to wait for answers, in seconds.
    """

    def __init__(self, name: str, *, connection: Connection | None = None, timeout_s: float = 30.0) -> None:
        super().__init__(f"the queue client of {name}", connection, timeout_s)
        self.name = name
        self._partitions = NamedPartitions(self._connection)

    def depth(self, *, filter: str | None = None) -> dict[str, Any]:  # noqa: A002  # the command's word
        """Return figures over all shards: messages by state, `depth`, `subscriptions`, `oldest_age_ms`.

        With a filter (an expression), return only the numbers by state of the messages that match.
        All figures are whole numbers. `oldest_age_ms` is None if there is no message. `paused` is 1 while deliveries
        are paused, else 0.
        """
        return combine_figures(self._ask(Command.of(command="depth", filter=filter)))

    def peek(
        self,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        top_n: int | None = None,
        skip: int = 0,  # the command's word
        state: str = "",
    ) -> list[QueuedMessage]:
        """Return the queue's messages, shard by shard in order, without a lease.

        Args:
            filter: an expression. Only messages that match are returned.
            top_n: the greatest number of messages; None = all.
            skip: number of messages to leave out first.
            state: return only messages in this state, such as `scheduled`; empty = all.

        Raises:
            ValueError: there is no such state, or a number is negative.
        """
        check_count("skip", skip, 0)
        if top_n is not None:
            check_count("top_n", top_n, 0)
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
        """Return the open subscriptions, with their start and their number of messages, the oldest first.

        Raises:
            CommandFailed: the user may see only a part of the queue.
        """
        return open_subscriptions(self._live(), self._timeout_s)

    def look_at(self, bookmark: BookmarkLike) -> QueuedMessage | None:
        """Return the present state of the message `topic:partition:offset`; None if the queue has no such message."""
        session = self._live()
        name = BookmarkRange.parse(str(bookmark))
        command = Command.of(command="sow", bookmarks=[str(bookmark)])
        answers = session.ask(session.shards_of(name.partition), command, self._timeout_s)
        return next((message for answer in answers for message in answer.messages), None)

    def acknowledge(
        self,
        bookmarks: Iterable[BookmarkLike] = (),
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
    ) -> list[SettlementResult]:
        """Acknowledge messages by `topic:partition:first[-last][#count]`, or by filter; see `settle`."""
        return self.settle("acknowledge", bookmarks, filter=filter)

    def cancel(
        self,
        bookmarks: Iterable[BookmarkLike] = (),
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        delay_ms: int | None = None,
    ) -> list[SettlementResult]:
        """Return leased messages after `delay_ms`, or the queue's delay; withdraw scheduled ones. See `settle`."""
        return self.settle("cancel", bookmarks, filter=filter, delay_ms=delay_ms)

    def expire(
        self,
        bookmarks: Iterable[BookmarkLike] = (),
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        fault: str = "",
    ) -> list[SettlementResult]:
        """Expire messages now. Their dead letters have `fault`, at most 500 characters. See `settle`."""
        return self.settle("expire", bookmarks, filter=filter, fault=fault)

    def settle(
        self,
        how: Settling,
        bookmarks: Iterable[BookmarkLike] = (),
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        delay_ms: int | None = None,
        fault: str = "",
    ) -> list[SettlementResult]:
        """Settle messages by bookmark, or by a filter on every shard.

        Args:
            how: `acknowledge`, `cancel` or `expire`.
            bookmarks: ranges `topic:partition:first[-last][#count]`.
            filter: an expression for the messages to settle, instead of bookmarks.
            delay_ms: for cancel: delay before the next delivery, in ms; None = the message's or the queue's delay.
            fault: for expire: what is wrong with the messages.

        Returns:
            One result for each range of messages.

        Raises:
            TypeError: `bookmarks` is a single one.
            ValueError: there is no such way to settle; there are neither bookmarks nor a filter, or both; or a
                bookmark is not valid, or of a partition that its topic does not have. Then nothing is settled.
            CommandFailed: a shard refused, for instance the filter.
            EntityDeleted: the queue was deleted.
        """
        check_choice("settle", how, _SETTLING)
        given = several("bookmarks", bookmarks)
        named = [one if isinstance(one, BookmarkRange) else BookmarkRange.parse(str(one)) for one in given]
        if bool(named) is (filter is not None):
            raise ValueError(f"{how}: name either bookmarks or a filter")
        command = Command.of(command=how, filter=filter, delay_ms=delay_ms, fault=fault)
        if filter is None:
            self._partitions.check(named)
            return settle_bookmarks(self._live(), command, named, self._timeout_s)
        return [result for answer in self._ask(command) for result in results(answer)]

    def pause(self) -> None:
        """Pause deliveries until `resume`, also across restarts of workers."""
        self._ask_new_shards_too(Command(command="pause"))

    def resume(self) -> None:
        """Resume deliveries."""
        self._ask_new_shards_too(Command(command="resume"))

    def purge(self, *, filter: str | None = None, leased: bool = False) -> dict[str, int]:  # noqa: A002
        """Remove all messages, or those that match a filter, scheduled ones included.

        Args:
            filter: an expression; None = all messages.
            leased: whether to remove leased messages, too.

        Returns:
            The numbers `removed` and `skipped`. `available`, `delayed`, `leased`, `scheduled` and `held` divide the
            removed messages by state; `skipped_leased` and so on divide the skipped ones.
        """
        total: dict[str, int] = {}
        for answer in self._ask(Command.of(command="purge", filter=filter, leased=leased)):
            for name, figure in answer.counts.items():
                total[name] = total.get(name, 0) + figure
        return total

    def rewind(
        self,
        to: str | int | Bookmark,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        lifetimes: Literal["new", "kept"] = "new",
        handed_over: bool = False,
        dry_run: bool = False,
        command_id: str = "",
        timeout_s: float = 600.0,
    ) -> dict[str, int]:
        """Bring back messages that have left the queue, if Kafka still has their records (Q22).

        They become new messages with bookmarks such as `orders:0:17~1`, behind the present messages.

        Args:
            to: where to begin: `beginning`, an instant in ms since the epoch, or a bookmark.
            filter: an expression. Only messages that match are brought back.
            lifetimes: `new`: relative lifetimes count from now; `kept`: deadlines stay as they were.
            handed_over: whether to bring back messages that were handed over or forwarded, too.
            dry_run: whether to count only.
            command_id: id of the rewind. A rewind with the same id is resumed, and never done twice. New by default.
            timeout_s: how long to wait, in seconds. The rewind goes on after that.

        Returns:
            The number of messages that were `rewound`, and of records that were left out: `live`, `elsewhere` (handed
            over or forwarded), `repeated`, `dead_on_arrival`, `not_here` (of another queue, or never confirmed),
            `no_match`, `expired` (they would expire at once), and `invalid_lifetime` (counted from now, their
            deadline would not fit in 64 bits; with `lifetimes="kept"` they come back).

        Raises:
            ValueError: an argument is out of range.
            CommandFailed: a shard refused.
            AnswerTimeout: a shard has not finished in time. Ask again with the same `command_id`.
        """
        check_timeout("timeout_s", timeout_s)
        session, name = self._live(), command_id or uuid4().hex
        command = Command.of(
            command="rewind",
            id=f"{name}/{len(session.partitions)}",  # checked: to a longer id no shard would answer
            to=str(to),
            filter=filter,
            lifetimes=lifetimes,
            handed_over=handed_over,
            dry_run=dry_run,
        )
        commands = [(shard, replace(command, id=f"{name}/{shard}")) for shard in session.partitions]
        total: dict[str, int] = {}
        for answer in session.ask_each(commands, timeout_s):
            for what, figure in answer.counts.items():
                total[what] = total.get(what, 0) + (figure or 0)
        return total

    def delete(self, *, force: bool = False) -> dict[str, int]:
        """Delete the queue, all shards or none, wait until its topics are gone, and close the client.

        Underlying topics, dead letters and events stay, unless the queue is temporary and they were created with it
        (C4, C65).

        Args:
            force: whether to delete the queue even if it has messages, leased or not. They leave with the reason
                `purged`.

        Returns:
            The number of its messages by state; empty if the topics were removed before the answer could be read.

        Raises:
            CommandFailed: the queue is not empty. The text has the number of messages, and the holders of leases.
            LapseError: the queue is deleted, but its topics still exist.
        """
        counts = ask_deletion(self._live(), force=force, timeout_s=self._timeout_s)
        self.close()
        wait_until_gone(self._connection, self.name, self._timeout_s)
        return counts

    def _ask_new_shards_too(self, command: Command) -> None:
        """Pause or resume all shards, and those that the queue gets at this moment.

        A shard that begins to read takes over from the first ones whether they are paused, perhaps as they were before
        the command (C81). So the others are asked again once these have answered. Nothing changes twice.
        """
        self._ask(command)
        session, count = self._live(), self._connection.shards("queue", self.name)
        if count == len(session.partitions):
            session.ask(range(1, count), command, self._timeout_s)
        else:
            with Conversation(self._connection, self.name, count) as others:
                others.ask(range(1, count), command, self._timeout_s)

    def _ask(self, command: Command) -> list[Answer]:
        session = self._live()
        return session.ask(session.partitions, command, self._timeout_s)

    def _open(self) -> None:
        shards = self._connection.shards("queue", self.name)
        self._session = Session(self._connection, [(self.name, shards)], self._lifecycle)
        self._session.open(GrowingListener(self._connection, self._session), self._timeout_s)
