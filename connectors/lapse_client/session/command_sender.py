"""A command sender: sends commands to the shards of entities, and waits for their answers.

Commands may be sent from any thread. The channel's thread reads the answers, and hands them over by `answer`.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from dataclasses import replace
from typing import Final
from uuid import uuid4

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer

from lapse.core.error_code import ErrorCode
from lapse.protocol import command as commands
from lapse.protocol import topic
from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse.protocol.command_field import SHOWN_CHARACTERS
from lapse_client.error import Closed, ConnectionFailed, EntityDeleted, LapseError, refusal, too_large
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.fault import FORBIDDEN, NOT_THERE, PURGED, TOO_LARGE, flushed, unwritable
from lapse_client.session.attendance import Attendance
from lapse_client.session.backpressure import Backpressure
from lapse_client.session.repeated_commands import RepeatedCommands, copy_of
from lapse_client.session.shard import Shard
from lapse_client.subscriber.settlement import correct_repeated

log = logging.getLogger("lapse_client")

_PURGE_S: Final = 1.0
"""How long a close waits for the delivery reports of purged commands, in seconds."""

_REPORT_S: Final = 2.0
"""How long to wait for the delivery report of a command that is already answered, in seconds."""

_PROPAGATION_MS: Final = 3_000
"""How long all brokers may take to learn of a topic, in ms. A topic that is missing after that was deleted."""

_LOOK_EVERY_S: Final = 2.0
"""How often a caller without an answer looks whether the entity's topics are gone, in seconds."""

_GONE: Final = "deleted: nothing can be asked of it any more"


class CommandSender:
    """Sends commands to shards, and keeps the futures of their answers.

    Args:
        connection: the cluster.
        backpressure: notified while a caller waits for answers.

    Attributes:
        attendance: whether workers run the shards.
        producer: writes the commands.
        vanished: shards whose commands topic is gone; the channel's thread takes them out.
    """

    def __init__(self, connection: Connection, backpressure: Backpressure) -> None:
        self.attendance = Attendance(
            self.send,
            connection.insists,
            connection.transport.settles,
            connection.lacking,
            connection.await_broker,
            connection.user,
        )
        # Commands are already batches, so lingering would only add latency.
        self.producer: Producer = connection.producer(
            linger_ms=0, **{"topic.metadata.propagation.max.ms": _PROPAGATION_MS}
        )
        self.vanished: deque[Shard] = deque()
        self._clock = connection.clock
        self._connection = connection
        self._backpressure = backpressure
        self._waiting: dict[bytes, Future[Answer]] = {}
        self._signed_by_guess: dict[bytes, tuple[Shard, Command]] = {}
        self._repeated = RepeatedCommands()
        self._ended = threading.Event()
        self._ended_by: BaseException | None = None
        self._refused: LapseError | None = None

    def end(self) -> None:
        """Refuse further commands. Those that were sent may still be answered."""
        self._ended.set()

    def fail(self, error: BaseException) -> None:
        """Refuse further commands, and fail those that are not answered."""
        self._ended_by = error
        self._ended.set()
        self._abandon(error)

    def close(self, wait_s: float) -> None:
        """Send the commands that are still queued, and close the producer.

        Args:
            wait_s: how long to wait for Kafka to have them, in seconds.
        """
        left = True
        with suppress(KafkaException):  # a fatal error, such as a missing right; reports may still wait behind it
            left = bool(flushed(self.producer, wait_s))
        with suppress(KafkaException):
            if left:
                self.producer.purge()  # unsent commands fail, so that their senders learn of it
                flushed(self.producer, _PURGE_S)
        self.producer.close()
        self._abandon(Closed("the channel"))

    def send(self, shard: Shard, command: Command) -> Future[Answer]:
        """Send a command, and return the future of its answer. Cancel the future if the answer is not needed any more.

        With `answer="none"` or `"errors"` the future gets an empty answer when Kafka has the command, and a refusal
        goes to `Listener.on_refused`. This method raises nothing: an error goes into the future.
        """
        future: Future[Answer] = Future()
        if self._ended.is_set():
            future.set_exception(self._end_of(shard))
            return future
        if shard.gone:
            future.set_exception(EntityDeleted(shard.entity, _GONE))
            return future
        stamp = self._stamp(command)
        token = stamp["id"].encode()
        if command.answer == "all":
            self._waiting[token] = future
            if self._connection.user and not self._clock.is_measured:
                self._signed_by_guess[token] = (shard, replace(command, id=stamp["id"], client=stamp["client"]))
            future.add_done_callback(lambda _: self._forget(token))
        sent_ms = shard.sent_at_ms = self._clock.elapsed_ms()

        def reported(error: KafkaError | None, message: Message) -> None:
            if error is not None and error.code() in NOT_THERE:
                return self._fail_deleted(shard, future)
            if error is not None and error.code() in TOO_LARGE:
                return _fail(future, too_large(shard.entity, shard.partition, command))
            return self._reported(sent_ms, future, command, error, message)

        try:
            value = commands.encode(command, stamp)
            if len(value) > commands.MOST_BYTES:
                raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
            self._produce(shard, value, reported)
        except (KafkaException, BufferError) as error:
            self._not_produced(shard, command, token, future, error)
        except RuntimeError:
            if not self._ended.is_set():  # else another thread has just closed the producer
                raise
            _fail(future, self._end_of(shard))
        except UnicodeEncodeError as error:  # lone surrogates
            fault = f"{error.object[:SHOWN_CHARACTERS]!r} is no text that UTF-8 can hold"
            asked, code = command.command, ErrorCode.INVALID_ARGUMENT
            refusal = Answer(id="", command=asked, status="error", error=fault, partition=shard.index, code=code)
            future.set_result(refusal)
        return future

    def _end_of(self, shard: Shard) -> BaseException:
        return self._ended_by or Closed(f"the client of {shard.entity}")

    def _fail_deleted(self, shard: Shard, future: Future[Answer]) -> None:
        """Fail a command whose topic is gone. It existed when the channel was opened, so the entity was deleted."""
        self.vanished.append(shard)
        _fail(future, EntityDeleted(shard.entity, _GONE))

    def _not_produced(
        self, shard: Shard, command: Command, token: bytes, future: Future[Answer], error: BaseException
    ) -> None:
        """Fail the future of a command that could not be produced; after a fatal error, with the thread's error."""
        code = error.args[0].code() if isinstance(error, KafkaException) else None
        if code in NOT_THERE:
            self._fail_deleted(shard, future)
        elif code in TOO_LARGE:
            _fail(future, too_large(shard.entity, shard.partition, command))
        elif isinstance(error, KafkaException) and code in FORBIDDEN:
            _fail(future, unwritable(topic.commands(shard.entity), error.args[0]))
        elif code != KafkaError._FATAL:
            _fail(future, ConnectionFailed(self._connection.bootstrap_servers, error))
        else:
            self._waiting[token] = future
            if self._ended_by is not None:
                _fail(future, self._ended_by)

    def ask(self, asked: Sequence[tuple[Shard, Command]], timeout_s: float) -> list[Answer]:
        """Send commands and wait for all of their answers.

        After a take-over, unanswered inquiries and settlements by bookmark are sent again, because a crash may have
        lost their answers. If only the second settlement is answered, what it finds settled counts as settled by the
        first one (C55).

        Raises:
            AnswerTimeout: a shard did not answer within `timeout_s` seconds; or no worker runs it, and the connection
                does not insist.
            ConnectionFailed: not even the brokers answered.
            CommandFailed, EntityDeleted: a shard refused, because the entity was deleted or for another reason.
            LapseError: a command could not be sent, or the channel failed.
        """
        with self._backpressure.awaiting():
            return self._ask(asked, timeout_s)

    def _ask(self, asked: Sequence[tuple[Shard, Command]], timeout_s: float) -> list[Answer]:
        looked = self.attendance.check_first(asked, timeout_s)
        asked = [(shard, replace(command, id=command.id or uuid4().hex)) for shard, command in asked]
        repeatable = self._repeated.wait(asked)
        self._connection.transport.settle()  # earlier acknowledgments go first, if the transport can wait for them
        futures = [self.send(shard, command) for shard, command in asked]
        try:
            late = self._await_all(asked, futures, timeout_s, looked)
        finally:
            self._repeated.end(repeatable)
            for future in futures:
                future.cancel()
        if late:
            shard, command = asked[0]
            raise self.attendance.why_silent(shard.entity, command.command, late, timeout_s)
        found = [future.result() for future in futures]
        for (shard, _), answer in zip(asked, found, strict=True):
            if answer.status != "ok":
                raise refusal(shard.entity, answer)
        return [
            answer if answer.id in ("", command.id) else replace(correct_repeated(answer), id=command.id)
            for (_, command), answer in zip(asked, found, strict=True)
        ]

    def _await_all(
        self, asked: Sequence[tuple[Shard, Command]], futures: Sequence[Future[Answer]], timeout_s: float, looked: bool
    ) -> list[int]:
        """Wait for all answers until the timeout; return the partitions of the shards that have not answered."""

        def late() -> list[Shard]:
            return [shard for (shard, _), future in zip(asked, futures, strict=True) if not future.done()]

        first_s = self.attendance.first_wait_s(timeout_s)
        wait_for(futures, self.patience(first_s))
        if first_s < timeout_s and (silent := late()):
            left_s = timeout_s - first_s if looked else self.attendance.check(silent, asked[0][1].command, timeout_s)
            give_up = time.monotonic() + left_s
            while (silent := late()) and (left_s := give_up - time.monotonic()) > 0:
                self._fail_removed(silent, asked, futures)
                wait_for(futures, min(left_s, _LOOK_EVERY_S))
        return [shard.partition for shard in late()]

    def _fail_removed(
        self, silent: Sequence[Shard], asked: Sequence[tuple[Shard, Command]], futures: Sequence[Future[Answer]]
    ) -> None:
        """Fail commands to shards whose topics were removed, perhaps before their answers were read."""
        removed = {entity for entity in {shard.entity for shard in silent} if self._connection.is_removed(entity)}
        for (shard, _), future in zip(asked, futures, strict=True):
            if shard.entity in removed:
                self.vanished.append(shard)
                _fail(future, EntityDeleted.by_topics(shard.entity))

    def patience(self, timeout_s: float) -> float:
        """Return how long to wait for an answer, given a timeout in seconds; see `Transport.patience`."""
        return self._connection.transport.patience(timeout_s)

    def _stamp(self, command: Command) -> dict[str, str]:
        """Return the id and client of a command. They are kept apart because a copy of the command would cost more."""
        return {"id": command.id or uuid4().hex, "client": command.client or self._connection.client}

    def _produce(self, shard: Shard, value: bytes, reported: Callable[[KafkaError | None, Message], None]) -> None:
        name = topic.commands(shard.entity)
        headers = self._connection.signed(name, shard.partition, int(self._clock.now_ms()), value)
        while True:
            try:
                self.producer.produce(name, value, partition=shard.partition, headers=headers, on_delivery=reported)
            except BufferError:
                self.producer.poll(0.1)
            else:
                return

    def _reported(
        self, sent_ms: float, future: Future[Answer], command: Command, error: KafkaError | None, message: Message
    ) -> None:
        if error is not None:
            # The senders of these commands get the error.
            level = logging.DEBUG if error.code() in PURGED | FORBIDDEN else logging.WARNING
            log.log(level, "%s on %s was not sent: %s", command.command, message.topic(), error)
            if error.code() in FORBIDDEN:
                self._refused = self._refused or unwritable(message.topic() or "", error)
            _fail(future, self._refused or ConnectionFailed(self._connection.bootstrap_servers, error))
            return
        kind, stamp_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            self._clock.observe(sent_ms, stamp_ms, self._clock.elapsed_ms())
        if command.answer != "all" and future.set_running_or_notify_cancel():
            future.set_result(Answer(id=command.id, command=command.command, status="ok"))

    def poll(self, entity: str) -> None:
        """Serve the delivery reports of commands.

        Args:
            entity: names the commands topic, if an error does not.

        Raises:
            LapseError: the brokers refuse the commands, and waiting does not help.
        """
        try:
            self.producer.poll(0)
        except KafkaException as error:
            raise unwritable(topic.commands(entity), error.args[0]) from error
        if self._refused is not None:
            raise self._refused

    def awaiting(self, token: bytes) -> Future[Answer] | None:
        """Return the future of the answer to a command with an id; None if nobody waits for it."""
        return self._waiting.get(token)

    def resend_signed(self, token: bytes, future: Future[Answer]) -> bool:
        """Repeat a refused command that was signed before the broker's clock was known; return whether it was sent."""
        guessed = self._signed_by_guess.pop(token, None)
        # The report of the first attempt measures the clock. On a busy machine the answer may come before the report.
        give_up = time.monotonic() + _REPORT_S
        while guessed is not None and not self._clock.is_measured and time.monotonic() < give_up:
            self.producer.poll(0.05)
        if guessed is None or not self._clock.is_measured:
            return False
        shard, command = guessed
        reported = functools.partial(self._reported, self._clock.elapsed_ms(), future, command)
        self._produce(shard, commands.encode(command), reported)
        return True

    def _forget(self, token: bytes) -> None:
        self._waiting.pop(token, None)
        self._signed_by_guess.pop(token, None)

    def resend_unanswered(self, shard: Shard) -> None:
        """Send a shard's unanswered commands again. The first answer counts."""

        def is_waiting(ident: str) -> bool:
            future = self._waiting.get(ident.encode())
            return future is not None and not future.done()

        for command in self._repeated.unanswered(shard, is_waiting):
            again, future = copy_of(command), self._waiting[command.id.encode()]
            if again is not command:
                token = again.id.encode()
                self._waiting[token] = future
                future.add_done_callback(functools.partial(lambda token, _: self._forget(token), token))
            self._produce(shard, commands.encode(again, self._stamp(again)), lambda *_: None)

    def _abandon(self, error: BaseException) -> None:
        for future in list(self._waiting.values()):
            _fail(future, error)


def _fail(future: Future[Answer], error: BaseException) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
