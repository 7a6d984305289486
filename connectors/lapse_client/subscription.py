"""A queue subscription: credits, heartbeats and settlements, kept up by the channel's thread (Q3, Q5, Q8)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Final

from confluent_kafka import Message, TopicPartition

from lapse.protocol import header, packed_delivery, prefetch, reference
from lapse.protocol.answer import Answer, Settlement
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command import Command
from lapse_client.acknowledgments import Acknowledgments
from lapse_client.channel import Channel, Fields, forgotten, tells_of_end
from lapse_client.clock import elapsed_ms
from lapse_client.connection import Connection
from lapse_client.credit import Credits, Grant
from lapse_client.delivery import Delivery
from lapse_client.error import AnswerTimeout, Closed, CommandFailed, LapseError
from lapse_client.lot import Lot, PackedLot, SingleLot
from lapse_client.prefetched import Prefetched
from lapse_client.referenced import RecordReader, Referenced
from lapse_client.settlement import NOT_SENT, SettlementBatch, SettlementResult, chunks, results
from lapse_client.settler import Settling
from lapse_client.shard import Shard
from lapse_client.terms import Terms

log = logging.getLogger("lapse_client")

TICK_S: Final = 0.05
"""The channel's thread looks for due work at least this often."""

_HEARTBEAT_TIMEOUT_MS: Final = 10_000
"""Assumed until a shard has told the queue's own."""

CLEANUP_MS: Final = 10_000.0
"""How long the topics of a deleted queue may still be there; it is not joined again before."""

_SHOWN: Final = 5
"""Ranges that a line of the log names."""

RESEND_MS: Final = 15_000.0
"""A `subscribe` without an answer for so long is sent again."""


class Subscription:
    """The standing request, from `subscribe` to `unsubscribe`.

    Args:
        connection: the cluster.
        queues: names and numbers of shards.
        terms: what is asked for.
        on_refused: told of settlements that were refused and that nobody waits for; called by the channel's thread.
        by_pattern: the queues are not named one by one: it goes on when one of them is deleted (Q3).
    """

    def __init__(
        self,
        connection: Connection,
        queues: Sequence[tuple[str, int]],
        terms: Terms,
        on_refused: Callable[[SettlementResult], None] | None = None,
        by_pattern: bool = False,
    ) -> None:
        self._by_pattern = by_pattern
        self.terms = terms
        self._records: RecordReader | None = None
        if terms.payload == "reference":
            self._records = RecordReader(connection, self, self._read_records, self.failed)
        self.channel: Channel[Lot | Referenced | None] = Channel(connection, queues, self)
        self.arrivals = Prefetched(self.channel.clock.past_ms, self._forget)
        self.channel.ours.add(terms.name.encode())
        self._on_refused = on_refused
        self._lock = threading.Lock()
        self._gate = threading.RLock()
        """Held while a settlement is sent, and while the end is noted: what is sent is sent before the end."""
        self._shards = self.channel.shards
        self._heartbeat_timeout_ms = terms.heartbeat_timeout_ms or _HEARTBEAT_TIMEOUT_MS
        self._told_ms: int | None = None
        self._credits = Credits(len(self._shards), terms.max_backlog, after_caps=len(queues) > 1)
        self._acknowledgments = Acknowledgments(self._shards, self._enough, self._send_acks)
        self._subscribing: dict[int, tuple[float, Future[Answer]]] = {}
        self._unconfirmed = set(range(len(self._shards)))
        self._confirmed = threading.Event()
        self._error: BaseException | None = None
        self._generations = [0] * len(self._shards)  # one more each time that a shard has forgotten us
        self._first = len(self._shards)
        self._joining: deque[tuple[str, Sequence[TopicPartition]]] = deque()
        self.queues = {queue for queue, _ in queues}
        """Names of the queues that are subscribed to, or about to be."""
        self._left_at_ms: dict[str, float] = {}
        self._stopped = False
        self._started = False
        self._closing = False
        self._advised: set[str] = set()

    def start(self, timeout_s: float) -> None:
        """Subscribe at every shard and wait for their answers.

        Raises:
            CommandFailed: a shard refused.
            AnswerTimeout: one did not answer within `timeout_s` seconds.
            ConnectionFailed: no broker answered.
        """
        self.channel.start()
        try:
            self._confirmed.wait(timeout_s)
            with self._gate:
                if self._error is not None:
                    raise self._error
                if self._unconfirmed:
                    late = [self._shards[index] for index in sorted(self._unconfirmed)]
                    raise AnswerTimeout(late[0].entity, "subscribe", [shard.partition for shard in late], timeout_s)
                self._started = True
        except BaseException:  # Ctrl-C, too
            with self._gate:  # no `subscribe` follows the `unsubscribe`
                self._closing = True
                for shard in self._shards:  # whatever answers late shall not hold leases for nobody
                    self.channel.send(shard, self._command("unsubscribe", answer="none"))
            self._close_channel()
            raise

    def give_up(self) -> None:
        """End a `start` that is under way: it raises `Closed`, and leaves no subscription behind; from any thread."""
        with self._gate:
            if not self._started:
                self.failed(Closed(f"the subscriber of {', '.join(sorted(self.queues))}"))

    def may_join(self, queue: str) -> bool:
        """Whether a queue is new; one that was deleted is, once its topics had the time to go."""
        left_at_ms = self._left_at_ms.get(queue)
        return queue not in self.queues and (left_at_ms is None or elapsed_ms() - left_at_ms >= CLEANUP_MS)

    def join(self, queue: str, ends: Sequence[TopicPartition]) -> None:
        """Take in one more queue, whose deliveries end there; by the channel's thread, soon."""
        if queue not in self.queues:
            self.queues.add(queue)
            self._joining.append((queue, ends))

    def stop(self) -> None:
        """Hand out no more; what was handed out can still be settled."""
        self._stopped = True
        self.arrivals.drop(lambda _: True)
        self.arrivals.end()

    def close(self, timeout_s: float) -> None:
        """Send what is settled, give everything else back, and wait for the shards' answers.

        Prefetched deliveries return to the queue at once. Where no answer comes, they return when the heartbeats
        are missed; that is logged, not raised.
        """
        if self._closing:
            return
        self.stop()
        with self._gate:
            self._closing = True
        self._acknowledgments.close()
        if self._error is None:
            leave = [(shard, self._command("unsubscribe")) for shard in self._shards if not shard.gone]
            try:
                self.channel.ask(leave, timeout_s)
            except LapseError as error:
                log.warning("leases return when heartbeats are missed, not at once: %s", error)
        self._close_channel()

    def _close_channel(self) -> None:
        self.channel.close()
        if self._records is not None:
            self._records.close()

    def take(self, most: int, timeout_s: float | None) -> list[Delivery]:
        """Return up to `most` deliveries whose leases still hold, waiting for the first one as `Arrivals.take` does."""
        return self.arrivals.take(most, timeout_s)

    def receive(self, timeout_s: float | None) -> Delivery | None:
        """Return one delivery whose lease still holds; None after the timeout, or at the end."""
        delivery = self.arrivals.pop()
        if delivery is not None:
            return delivery
        taken = self.take(1, timeout_s)
        return taken[0] if taken else None

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Collect acknowledgments; a shard's are sent when they are enough, or old enough.

        Once the subscription has ended, they are reported as not sent, and not marked as settled.
        """
        if not self._acknowledgments.add(deliveries):
            self._ended("acknowledge", deliveries)

    def flush(self) -> None:
        """Send all acknowledgments that were collected."""
        self._acknowledgments.flush_all()

    def command(
        self,
        how: Settling,
        deliveries: Sequence[Delivery],
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        answer: bool = False,
    ) -> list[tuple[Shard, Command]]:
        """Settle at once, not in the batch.

        Args:
            how: the command.
            deliveries: what is settled.
            delay_ms: of cancel.
            lease_ms: of renew.
            answer: return the commands unsent, for `Channel.ask`.

        Returns:
            The commands that still have to be sent: none unless `answer`.

        Raises:
            AlreadySettled: one of them was settled before.
            Closed: with `answer`, once the subscription has ended. Without it, they are reported as not sent.
        """
        with self._gate:
            if not self._over:
                return self._settle(how, deliveries, delay_ms, lease_ms, answer)
        self._ended(how, deliveries, raising=answer)
        return []

    def _settle(
        self, how: Settling, deliveries: Sequence[Delivery], delay_ms: int | None, lease_ms: int | None, answer: bool
    ) -> list[tuple[Shard, Command]]:
        asked: list[tuple[Shard, Command]] = []
        for shard, group in _by_shard(how, deliveries).items():
            batch = SettlementBatch()
            for delivery in group:
                batch.add(delivery.lot.source, delivery.token, delivery.lot.offsets[delivery.at])
            want = "all" if answer or how == "renew" else "errors"
            for bookmarks in chunks(batch.take()):
                command = self._command(how, bookmarks=bookmarks, delay_ms=delay_ms, lease_ms=lease_ms, answer=want)
                if answer:
                    asked.append((shard, command))
                    continue
                if shard.gone:
                    self._too_late(shard, how, bookmarks)
                    continue
                future = self.channel.send(shard, command)
                self._tell_failure(how, bookmarks, future)
                if how == "renew":
                    future.add_done_callback(lambda done, group=group: self._renewed(done, group))  # type: ignore[misc]
            if how != "renew":
                with self._lock:
                    self._credits.settled(shard.index, len(group), elapsed_ms())
        return asked

    def read(self, shard: Shard, message: Message, fields: Fields) -> Lot | Referenced | None:
        """Make a lot of a record, or a reference to one; None of what cannot be read (from `Channel`).

        Raises:
            LapseError: a worker of another version wrote it, and will go on to.
        """
        kind = fields.get(header.KIND)
        try:
            if kind == packed_delivery.KIND:
                packed = packed_delivery.decode(message.value() or b"")
                return PackedLot(self, shard, packed, fields) if len(packed) else None
            if kind == reference.KIND:
                return Referenced.read(shard, message, fields, self._generations[shard.index])
            return SingleLot(self, shard, message, fields)
        except packed_delivery.UnknownVersion as error:
            raise LapseError(f"{shard.entity}: {error}") from error
        except (ValueError, KeyError) as error:
            where = f"{message.topic()}:{message.partition()}:{message.offset()}"
            log.warning("%s is dropped, what it hands out comes again when the leases end: %s", where, error)
            return None

    def received(self, records: Sequence[Lot | Referenced | None]) -> None:
        """Take deliveries in, and count them (from `Channel`)."""
        arrived: list[Lot] = []
        counts: dict[int, int] = {}
        for record in records:
            if record is None or record.shard.gone:
                continue
            index = record.shard.index
            if isinstance(record, Referenced):
                if self._records is not None:  # the reader may be quicker than this: so it counts first
                    with self._lock:
                        self._credits.delivered(index, len(record.messages), elapsed_ms())
                    self._records.add(record)
                continue
            arrived.append(record)
            if not record.is_barrier:
                counts[index] = counts.get(index, 0) + len(record)
        now_ms = elapsed_ms()
        with self._lock:
            for index, count in counts.items():
                self._credits.delivered(index, count, now_ms)
        if not self._stopped:
            self.arrivals.put(arrived)

    def _read_records(self, referenced: Referenced, lots: list[Lot]) -> None:
        """Records that references named were read (from `RecordReader`)."""
        index = referenced.shard.index
        if referenced.generation != self._generations[index]:
            lots = []
        if missing := len(referenced.messages) - sum(map(len, lots)):
            with self._lock:
                self._credits.settled(index, missing, elapsed_ms())
        if not self._stopped:
            self.arrivals.put(lots)

    def refused(self, shard: Shard, answer: Answer) -> None:
        """Subscribe again where the subscription is unknown; report refused settlements (from `Channel`)."""
        if answer.status != "ok":
            if forgotten(answer):
                self._lost(shard)
            else:
                log.warning("%s", CommandFailed(shard.entity, answer))
        for result in results(answer):
            if not result.settled:
                log.info("%s of %s: %s", answer.command, result.messages, result.result)
                if self._on_refused is not None:
                    self._on_refused(result)

    def taken_over(self, shard: Shard) -> None:
        """Nothing: the shard knows its subscriptions (from `Channel`)."""

    def goes_on_without(self, entity: str) -> bool:
        """Leave a queue that was deleted if more than names were subscribed to (from `Channel`)."""
        if not self._by_pattern:
            return False
        log.warning("%s was deleted; the subscription goes on without it", entity)
        self.queues.discard(entity)
        self._left_at_ms[entity] = elapsed_ms()
        gone = [shard.index for shard in self._shards if shard.entity == entity and not shard.gone]
        self.channel.leave(entity)
        self.arrivals.drop(lambda lot: lot.shard.gone)
        with self._lock:
            for index in gone:
                self._generations[index] += 1
                self._subscribing.pop(index, None)
            self._credits.drop(gone)
            self._unconfirmed.difference_update(gone)
        if not self._unconfirmed:
            self._confirmed.set()
        return True

    def _too_late(self, shard: Shard, how: str, bookmarks: Iterable[str]) -> None:
        """Report settlements of messages that left with their queue."""
        settlements = tuple(Settlement(bookmarks=text, result="already_settled") for text in bookmarks)
        self.refused(shard, Answer(id="", command=how, status="ok", settlements=settlements))

    @property
    def _over(self) -> bool:
        return self._closing or self._error is not None

    def _ended(self, how: str, deliveries: Iterable[Delivery], raising: bool = False) -> None:
        """Tell of a settlement that comes after the end; the deliveries stay unsettled."""
        batch = SettlementBatch()
        for delivery in deliveries:
            delivery.check_unsettled()
            if not delivery.is_barrier:
                batch.add(delivery.lot.source, delivery.token, delivery.lot.offsets[delivery.at])
        if raising:
            raise self._error or Closed(f"the subscriber of {', '.join(sorted(self.queues))}")
        self._not_sent(how, batch.take(), "the subscriber is closed; settle before close()")

    def _tell_failure(self, how: str, bookmarks: Sequence[str], future: Future[Answer]) -> None:
        """Tell of a settlement that Kafka does not take."""

        def done(sent: Future[Answer]) -> None:
            if not sent.cancelled() and (error := sent.exception()) is not None:
                self._not_sent(how, bookmarks, error)

        future.add_done_callback(done)

    def _not_sent(self, how: str, bookmarks: Sequence[str], why: object) -> None:
        if not bookmarks:
            return
        shown = ", ".join(bookmarks[:_SHOWN]) + (f" and {len(bookmarks) - _SHOWN} more" if bookmarks[_SHOWN:] else "")
        log.warning("%s of %s was not sent; they come again when their leases end: %s", how, shown, why)
        if self._on_refused is not None:
            for text in bookmarks:
                self._on_refused(SettlementResult(BookmarkRange.parse(text), NOT_SENT))

    def tick(self) -> float:
        """Send what is due: acknowledgments, credits, heartbeats (from `Channel`)."""
        now_ms = elapsed_ms()
        self._acknowledgments.flush_older(self.terms.ack_interval_ms)
        if not self._closing:
            while self._joining:
                self._join(*self._joining.popleft())
            self._grant(now_ms)
            beat_ms = self._heartbeat_timeout_ms / 3
            for shard in self._shards:
                if now_ms - shard.sent_at_ms >= beat_ms and not shard.gone:
                    self.channel.send(shard, self._command("heartbeat", answer="errors"))
        if self._credits.travelling:
            return TICK_S / 5
        return min(TICK_S, max(0.001, self.terms.ack_interval_ms / 2000), self._heartbeat_timeout_ms / 12_000)

    def _join(self, queue: str, ends: Sequence[TopicPartition]) -> None:
        log.info("%s: joined", queue)
        self._acknowledgments.grow(len(ends))
        self._generations += [0] * len(ends)
        self.channel.join(queue, ends)
        with self._lock:
            self._credits.grow(len(ends))

    def full(self) -> bool:
        """Never: the backlog bounds what can arrive (from `Channel`)."""
        return False

    def failed(self, error: BaseException) -> None:
        """Let takers know (from `Channel`)."""
        with self._gate:
            self._error = self._error or error
        self._acknowledgments.close()
        self._confirmed.set()
        self.arrivals.end(self._error)

    def _enough(self, shard: Shard) -> int:
        """Acknowledgments that are worth a command: no more than half the credit, so that the shard never runs dry."""
        return min(self.terms.ack_batch_size, max(1, self._credits.credit(shard.index) // 2))

    def _send_acks(self, shard: Shard, ranges: list[str], count: int) -> None:
        if shard.gone:
            self._too_late(shard, "acknowledge", ranges)
            return
        for bookmarks in chunks(ranges):
            future = self.channel.send(shard, self._command("acknowledge", bookmarks=bookmarks, answer="errors"))
            self._tell_failure("acknowledge", bookmarks, future)
        with self._lock:
            self._credits.settled(shard.index, count, elapsed_ms())

    def _grant(self, now_ms: float) -> None:
        with self._lock:
            for index, (sent_ms, future) in list(self._subscribing.items()):
                if now_ms - sent_ms >= RESEND_MS:
                    future.cancel()
                    del self._subscribing[index]
                    self._credits.lost(index)
            grants = self._credits.due(now_ms)
        for grant in grants:
            command = self._command(
                "subscribe",
                max_backlog=grant.credit,
                filter=self.terms.filter,
                payload=self.terms.payload,
                heartbeat_timeout_ms=self.terms.heartbeat_timeout_ms,
            )
            with self._gate:
                if self._closing:
                    return
                future = self.channel.send(self._shards[grant.shard], command)
            self._subscribing[grant.shard] = (now_ms, future)
            future.add_done_callback(lambda done, grant=grant: self._subscribed(grant, done))  # type: ignore[misc]

    def _subscribed(self, grant: Grant, future: Future[Answer]) -> None:
        shard = self._shards[grant.shard]
        if future.cancelled() or self._closing or shard.gone:
            return
        error = future.exception()
        answer = None if error else future.result()
        if answer is not None and answer.status != "ok":
            if tells_of_end(answer) and self.goes_on_without(shard.entity):
                return
            error = CommandFailed(shard.entity, answer)
        if answer is None or error is not None:
            if isinstance(error, CommandFailed) and grant.shard >= self._first:
                log.warning("the subscription goes on without it: %s", error)  # one that was not asked for by name
            elif isinstance(error, CommandFailed):
                self.failed(error)  # asking again would be refused again
            return
        with self._lock:
            if self._subscribing.get(grant.shard, (0.0, None))[1] is future:
                del self._subscribing[grant.shard]
            self._credits.answered(grant.shard, grant.credit, elapsed_ms())
            self._credits.allows(grant.shard, answer.counts.get("max_per_subscription_backlog"))
            self._unconfirmed.discard(grant.shard)
        self._beat_as_told(answer)
        self._advise(shard.entity, answer)
        if not self._unconfirmed:
            self._confirmed.set()

    def _beat_as_told(self, answer: Answer) -> None:
        """Heartbeat by the queue's timeout where none was asked for; of several queues by the shortest."""
        told_ms = answer.counts.get("heartbeat_timeout_ms")
        if self.terms.heartbeat_timeout_ms is None and told_ms:
            self._told_ms = min(self._told_ms or told_ms, told_ms)
            self._heartbeat_timeout_ms = self._told_ms

    def _advise(self, queue: str, answer: Answer) -> None:
        """Warn, once for each queue, where prefetching can use up a message's deliveries (C24)."""
        most = min(self.terms.max_backlog, answer.counts.get("max_per_subscription_backlog", self.terms.max_backlog))
        advice = prefetch.advice(queue, answer.counts.get("max_deliveries", 0), most)
        if advice is not None and queue not in self._advised:
            self._advised.add(queue)
            log.warning("%s", advice)

    def _lost(self, shard: Shard) -> None:
        if shard.gone:
            return
        log.info("%s, shard %d does not know the subscription: subscribing again", shard.entity, shard.partition)
        self._generations[shard.index] += 1
        with self._lock:
            self._credits.lost(shard.index)
        dropped = self.arrivals.drop(lambda lot: lot.shard is shard)
        with self._lock:
            self._credits.settled(shard.index, dropped, elapsed_ms())

    def _forget(self, shard: Shard, count: int) -> None:
        """Their leases were over before the application saw them: the queue has them again (from `Prefetched`)."""
        log.info("%d prefetched deliveries dropped: their leases are over", count)
        with self._lock:
            self._credits.settled(shard.index, count, elapsed_ms())

    def note_renewal(self, answer: Answer, deliveries: Sequence[Delivery]) -> None:
        """Set the new end of the leases that an answer says are renewed."""
        if answer.lease_until_ms is None:
            return
        settled = {str(place) for result in results(answer) if result.settled for place in result.messages}
        for delivery in deliveries:
            if str(delivery.bookmark) in settled:
                delivery.lease_ends_ms = answer.lease_until_ms

    def _renewed(self, future: Future[Answer], deliveries: Sequence[Delivery]) -> None:
        if not future.cancelled() and future.exception() is None:
            answer = future.result()
            self.note_renewal(answer, deliveries)
            self.refused(deliveries[0].shard, answer)

    def _command(self, name: str, **fields: object) -> Command:
        return Command.of(command=name, subscription=self.terms.name, **fields)


def _by_shard(how: Settling, deliveries: Iterable[Delivery]) -> dict[Shard, list[Delivery]]:
    groups: dict[Shard, list[Delivery]] = {}
    for delivery in deliveries:
        delivery.mark(how)
        if not delivery.is_barrier:
            groups.setdefault(delivery.shard, []).append(delivery)
    return groups
