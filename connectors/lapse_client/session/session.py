"""A session with the shards of some entities: the connection, a channel, the broker's clock and a lifecycle.

All client objects use one: subscriptions to queues and SOW topics, queries, and commands without a subscription.
A session with a subscription is open when every shard has confirmed it, and sends `unsubscribe` when it is closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse_client.error import ConnectionFailed, EntityDeleted, LapseError
from lapse_client.kafka.clock import ClientClock
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.metadata import METADATA_TIMEOUT_S
from lapse_client.session.channel import Channel
from lapse_client.session.lifecycle import Lifecycle
from lapse_client.session.listener import Listener
from lapse_client.session.shard import Shard

log = logging.getLogger("lapse_client")

_IN_VAIN_S: Final = 1.0
"""How long to wait for Kafka at the end of a session whose shards or brokers were silent, in seconds."""

T = TypeVar("T")


class Session(Generic[T]):
    """One session. Every method may be called from any thread.

    Args:
        connection: the cluster.
        entities: names of queues or SOW topics, each with its number of shards.
        lifecycle: lifecycle of the client object that opens the session.
        subscription: name of the subscription; empty = none.

    Attributes:
        channel: sends commands to the shards, and reads answers and deliveries.
        shards: all shards of the session, by their numbers.
        clock: the broker's clock, as the session measures it.
        lifecycle: lifecycle of the client object.
    """

    def __init__(
        self,
        connection: Connection,
        entities: Sequence[tuple[str, int]],
        lifecycle: Lifecycle,
        subscription: str = "",
    ) -> None:
        self.channel: Channel[T] = Channel(connection, entities)
        self.shards: Sequence[Shard] = self.channel.shards
        self.clock: ClientClock = self.channel.clock
        self.lifecycle = lifecycle
        self._subscription = subscription
        self._unconfirmed: set[int] = set()
        self._listener: Listener[T] | None = None
        self._flush_s = METADATA_TIMEOUT_S
        if subscription:
            self.channel.ours.add(subscription.encode())
            self._unconfirmed.update(range(len(self.shards)))

    # From start to end

    def open(self, listener: Listener[T], timeout_s: float, how: str = "subscribe") -> None:
        """Begin to read. With a subscription, wait until every shard has confirmed it.

        Args:
            listener: receives answers and deliveries, and sends the subscribe commands.
            timeout_s: how long to wait, in seconds.
            how: name of the subscribe command, for error messages.

        Raises:
            ConnectionFailed: no broker answered.
            AnswerTimeout: a shard did not confirm the subscription.
            Closed: the object was stopped or closed meanwhile.
            LapseError: the error that ended the session meanwhile.
        """
        self.lifecycle.check()
        self._listener = listener
        self._flush_s = min(METADATA_TIMEOUT_S, max(_IN_VAIN_S, timeout_s))
        self.channel.start(listener, self.fail)
        with self.channel.backpressure.awaiting():
            self._confirmed(timeout_s, how)

    def _confirmed(self, timeout_s: float, how: str) -> None:
        """Wait until every shard has confirmed the subscription."""
        attendance = self.channel.sender.attendance
        first_s = attendance.first_wait_s(timeout_s)
        ready = self._await_ready(self.channel.sender.patience(first_s))
        if not ready and first_s < timeout_s:
            ready = self._await_ready(attendance.check(self._late(), how, timeout_s))
        if not ready and (late := self._late()):
            raise attendance.why_silent(late[0].entity, how, [shard.partition for shard in late], timeout_s)

    def _await_ready(self, wait_s: float) -> bool:
        return self.lifecycle.await_ready(lambda: not self._unconfirmed, wait_s)

    def _late(self) -> list[Shard]:
        """Return the shards that have not confirmed the subscription."""
        return [self.shards[index] for index in sorted(self._unconfirmed)]

    def undo(self) -> None:
        """Unsubscribe without waiting, so that a late confirmation of a failed start does not hold messages.

        Kafka gets no longer for that than the start had, and little time if its brokers were silent.
        """
        if self._subscription and self.channel.is_started:
            for shard in list(self.shards):
                self.channel.sender.send(shard, self.command("unsubscribe", answer="none"))
        self.channel.close(_IN_VAIN_S if isinstance(self.lifecycle.error, ConnectionFailed) else self._flush_s)

    def leave(self, timeout_s: float) -> None:
        """Unsubscribe and disconnect. A missing answer within `timeout_s` seconds is logged, not raised.

        After that Kafka gets little more time for what is queued: if it could answer, it would have it by then.

        In the channel's thread, it does not wait for answers, because this thread reads them.
        """
        if threading.current_thread() is self.channel.thread:
            self.undo()
            return
        # Without a subscription, each command had a caller who waited for it.
        flush_s = METADATA_TIMEOUT_S if self._subscription else _IN_VAIN_S
        if self._subscription and self.lifecycle.error is None:
            leave = self.command("unsubscribe")
            try:
                self.channel.sender.ask([(shard, leave) for shard in list(self.shards) if not shard.gone], timeout_s)
            except EntityDeleted:
                log.debug("%s ended with the entity", self.lifecycle.what)
            except LapseError as error:
                log.warning("%s ends when heartbeats are missed, not at once: %s", self.lifecycle.what, error)
                flush_s = _IN_VAIN_S
        self.channel.close(flush_s)

    def fail(self, error: BaseException) -> None:
        """End the session with an error. All waiting calls raise it."""
        if self.lifecycle.fail(error) and self._listener is not None:
            self._listener.failed(error)

    # The subscription

    def confirm(self, *shards: int) -> None:
        """Mark shards, by their numbers, as confirmed. Shards of a deleted entity count as confirmed, too."""
        if self._unconfirmed:
            self._unconfirmed.difference_update(shards)
            self.lifecycle.changed()

    def is_confirmed(self, shard: int) -> bool:
        """Return whether a shard has confirmed the subscription."""
        return shard not in self._unconfirmed

    def command(self, name: str, **fields: Any) -> Command:
        """Return a command with the subscription's name."""
        return Command.of(command=name, subscription=self._subscription, **fields)

    def send_if_open(self, shard: Shard, command: Command) -> Future[Answer] | None:
        """Send a command that must not follow `unsubscribe`. Return None, and send nothing, in a closing session."""
        with self.lifecycle.gate:
            return self.channel.sender.send(shard, command) if self.lifecycle.is_open else None

    # Inquiries

    @property
    def partitions(self) -> range:
        """The numbers of all shards, for a session with one entity."""
        return range(len(self.shards))

    def shard_of(self, partition: int) -> int:
        """Return the number of the shard that reads an underlying partition (Q17, C81)."""
        return partition % len(self.shards)

    def shards_of(self, partition: int) -> list[int]:
        """Return the shards that may have messages of an underlying partition, first the one that reads it.

        The others may have read it while the queue had fewer shards. What they scheduled then, they have still (C81).
        """
        count = len(self.shards)
        return list(dict.fromkeys(partition % fewer for fewer in range(count, 0, -1) if count % fewer == 0))

    def ask(self, partitions: Iterable[int], command: Command, timeout_s: float) -> list[Answer]:
        """Send a command to some shards and wait for all answers, as `CommandSender.ask` does."""
        return self.ask_each([(number, command) for number in partitions], timeout_s)

    def ask_each(self, asked: Iterable[tuple[int, Command]], timeout_s: float) -> list[Answer]:
        """Send each shard a command of its own and wait for all answers, as `CommandSender.ask` does."""
        return self.channel.sender.ask([(self.shards[number], command) for number, command in asked], timeout_s)
