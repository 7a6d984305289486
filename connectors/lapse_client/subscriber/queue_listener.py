"""The listener of a queue subscription: it handles credits, heartbeats and deliveries (Q3, Q5)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import chain
from typing import Final

from confluent_kafka import Message, TopicPartition

from lapse.protocol import header, packed_delivery, prefetch, reference
from lapse.protocol.answer import Answer
from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import Lot, PackedLot, SingleLot, landed_ms
from lapse_client.delivery.prefetched import Prefetched
from lapse_client.delivery.referenced import RecordReader, Referenced
from lapse_client.error import CommandFailed, LapseError, refusal
from lapse_client.kafka.clock import elapsed_ms
from lapse_client.kafka.connection import Connection
from lapse_client.session.answer_code import is_deletion, is_shut_out, is_unknown_subscription
from lapse_client.session.channel_thread import ChannelThread
from lapse_client.session.further_shards import FurtherShards
from lapse_client.session.heartbeat import Heartbeat
from lapse_client.session.listener import TICK_S, Fields, Listener
from lapse_client.session.session import Session
from lapse_client.session.shard import Shard
from lapse_client.subscriber.credit import Credits, Grant
from lapse_client.subscriber.joined_queues import JoinedQueues
from lapse_client.subscriber.subscription_settler import SubscriptionSettler
from lapse_client.subscriber.terms import Terms

log = logging.getLogger("lapse_client")

_HEARTBEAT_TIMEOUT_MS: Final = 10_000
"""The heartbeat timeout that is assumed until a shard's answer has the queue's own, in ms."""

_READING_S: Final = 5.0
_FOREVER: Final = float("inf")

RESEND_MS: Final = 15_000.0
"""A `subscribe` without an answer is sent again after this time, in ms."""


class QueueListener(Listener[Lot | Referenced | None]):
    """Keeps a queue subscription alive, and passes on its deliveries. Any thread may call `close` and `failed`.

    Args:
        connection: connection to the cluster.
        session: session of the subscription.
        terms: settings of the subscription.
        queues: names of its queues.
        credits: divides the backlog among the shards.
        settler: sends the settlements.
        arrivals: buffer of deliveries for the application.
        by_pattern: whether the queues come from a regular expression, so that the subscription goes on when one of
            them is deleted (Q3).
    """

    def __init__(
        self,
        connection: Connection,
        session: Session[Lot | Referenced | None],
        terms: Terms,
        queues: JoinedQueues,
        credits: Credits,  # noqa: A002  # the field's word
        settler: SubscriptionSettler,
        arrivals: Prefetched,
        by_pattern: bool,
    ) -> None:
        self._session = session
        self._terms = terms
        self._queues = queues
        self._credits = credits
        self._settler = settler
        self._arrivals = arrivals
        self._by_pattern = by_pattern
        self._further = FurtherShards(connection, session)
        self._heartbeat = Heartbeat(session, terms.heartbeat_timeout_ms, _HEARTBEAT_TIMEOUT_MS)
        self._subscribing: dict[int, tuple[float, Future[Answer]]] = {}
        self._subscribed: deque[tuple[Grant, Future[Answer]]] = deque()  # filled by the thread that ends a future
        self._generations = [0] * len(session.shards)  # per shard: how often it has forgotten the subscription
        self._returning: set[int] = set()
        """Shards that have forgotten the subscription, and have not yet answered the next `subscribe`."""
        self._first = len(session.shards)
        self._advised: set[str] = set()
        self._counting_cancels: set[str] = set()
        """Queues in which a message that is returned may have been cancelled too often."""
        self._lingers = connection.transport.lingers
        self._records: RecordReader | None = None
        if terms.payload == "reference":
            self._records = RecordReader(connection, settler, arrivals.await_room, self._read_records, session.fail)

    def close(self) -> None:
        """Stop reading the records of references. May be called from any thread."""
        if self._records is not None:
            self._records.close()

    @property
    def reading_s(self) -> float:
        """How long the reading of referenced records may still take, in seconds; 0 = none are to be read."""
        return _READING_S if self._records is not None and self._records.is_busy else 0.0

    def failed(self, error: BaseException) -> None:
        """Pass the error on to threads that take deliveries. May be called from any thread."""
        self._settler.close()
        self._arrivals.end(error)

    def on_record(self, shard: Shard, message: Message, fields: Fields) -> Lot | Referenced | None:
        """Decode a delivery record into a lot or a reference; None if it cannot be decoded.

        Raises:
            LapseError: a worker of another version wrote it, and will write more such records.
        """
        kind = fields.get(header.KIND)
        try:
            if kind == packed_delivery.KIND:
                packed = packed_delivery.decode(message.value() or b"")
                return (
                    PackedLot(self._settler, shard, packed, fields, landed_ms(message, fields)) if len(packed) else None
                )
            if kind == reference.KIND:
                return Referenced.read(shard, message, fields, self._generations[shard.index])
            return SingleLot(self._settler, shard, message, fields)
        except packed_delivery.UnknownVersion as error:
            raise LapseError(f"{shard.entity}: {error}") from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:  # the last two: a header without a value
            where = f"{message.topic()}:{message.partition()}:{message.offset()}"
            log.warning("%s is dropped, what it hands out comes again when the leases end: %s", where, error)
            return None

    def on_received(self, records: Sequence[Lot | Referenced | None]) -> None:
        """Count deliveries and buffer them for the application."""
        arrived: list[Lot] = []
        counts: dict[tuple[int, float], int] = {}
        for record in records:
            if record is None or record.shard.gone:
                continue
            index = record.shard.index
            if isinstance(record, Referenced):
                if self._records is not None:  # count first, because the reader's thread may be faster
                    self._credits.delivered(index, len(record.messages), elapsed_ms(), record.lease_ends_ms)
                    self._records.add(record)
                continue
            arrived.append(record)
            if not record.is_barrier:
                place = index, record.lease_ends_ms
                counts[place] = counts.get(place, 0) + len(record)
        now_ms = elapsed_ms()
        for (index, ends_ms), count in counts.items():
            self._credits.delivered(index, count, now_ms, ends_ms)
        self._buffer_lots(arrived)

    def on_refused(self, shard: Shard, answer: Answer) -> None:
        """Subscribe again if the shard does not know the subscription, and report refused settlements.

        The subscription fails if its user has lost the right to it.
        """
        if answer.status != "ok":
            if is_unknown_subscription(answer):
                self._resubscribe(shard)
            elif is_shut_out(answer) and shard.index < self._first:
                self._session.fail(refusal(shard.entity, answer))
            else:
                log.warning("%s", CommandFailed(shard.entity, answer))
        self._settler.report_refused(answer)

    def on_taken_over(self, shard: Shard) -> None:
        """Send an unanswered `subscribe` again, because its answer may be lost (C55)."""
        _, future = self._subscribing.get(shard.index, (0.0, None))
        if future is not None and not future.done():
            self._send_again(shard.index, future)

    def on_size(self, entity: str, shards: int) -> None:
        """Look for new shards of a queue (C81)."""
        self._further.note_size(entity, shards)

    def on_deleted(self, thread: ChannelThread, entity: str) -> bool:
        """Leave a deleted queue if the queues come from a regular expression. Else return False."""
        if not self._by_pattern:
            return False
        log.warning("%s was deleted; the subscription goes on without it", entity)
        self._queues.remove(entity)
        self._further.forget(entity)
        gone = thread.leave(entity)
        self._arrivals.drop(lambda lot: lot.shard.gone)
        for index in gone:
            self._generations[index] += 1
            self._subscribing.pop(index, None)
            self._returning.discard(index)
        self._credits.drop(gone)
        self._session.confirm(*gone)
        return True

    def on_tick(self, thread: ChannelThread) -> float:
        """Send due acknowledgments, credits and heartbeats."""
        self._settler.flush_older(self._terms.ack_interval_ms if self._lingers else 0)
        while self._subscribed:
            self._take_answer(thread, *self._subscribed.popleft())
        if self._session.lifecycle.is_open:
            for queue, ends in chain(self._queues.waiting(), self._further.found()):
                self._join(thread, queue, ends)
            self._credits.end_leases(self._session.clock.past_ms(), elapsed_ms())
            self._grant(elapsed_ms())
            self._return_withheld()
            self._heartbeat.beat(self._session.shards)
        if self._credits.travelling:
            return TICK_S / 5
        return min(self._heartbeat.wait_s, max(0.001, self._terms.ack_interval_ms / 2000))

    def is_full(self) -> bool:
        """Return whether the application lags behind, so that barriers would fill the memory.

        Once credit is taken back for good, the shards' answers to that are waited for.
        """
        return not self._credits.ended and self._arrivals.is_full(self._terms.max_backlog)

    def _return_withheld(self) -> None:
        """Return what came for a stopped subscriber, once its shard sends no more: it would come again.

        A queue with `max_cancels` counts that, although nobody has seen the messages. There `close` returns them, as
        the shard knows them. Here they would only take memory: records are read without a limit once nobody takes any.
        """

        def has_ended(lot: Lot) -> bool:
            return not self._credits.awaits(lot.shard.index)

        withheld = self._arrivals.withheld(has_ended)
        if returned := [one for one in withheld if self._may_return(one.lot)]:
            self._settler.command("cancel", returned, delay_ms=0)

    def _may_return(self, lot: Lot) -> bool:
        """Return whether messages of a lot can be cancelled, and nothing counts that."""
        leased = not lot.is_barrier and lot.lease_ends_ms < _FOREVER
        return leased and lot.shard.entity not in self._counting_cancels

    def _join(self, thread: ChannelThread, queue: str, ends: Sequence[TopicPartition]) -> None:
        log.info("%s: joined", queue)
        self._settler.grow(len(ends))
        self._generations += [0] * len(ends)
        thread.join(queue, ends)
        self._credits.grow(len(ends))

    def _grant(self, now_ms: float) -> None:
        for index, (sent_ms, future) in list(self._subscribing.items()):
            if now_ms - sent_ms >= RESEND_MS:
                self._send_again(index, future)
        for grant in self._credits.due(now_ms):
            command = self._session.command(
                "subscribe",
                max_backlog=grant.credit,
                filter=self._terms.filter,
                payload=self._terms.payload,
                heartbeat_timeout_ms=self._terms.heartbeat_timeout_ms,
            )
            future_answer = self._session.send_if_open(self._session.shards[grant.shard], command)
            if future_answer is None:
                return
            self._subscribing[grant.shard] = (now_ms, future_answer)
            future_answer.add_done_callback(lambda done, grant=grant: self._subscribed.append((grant, done)))  # type: ignore[misc]

    def _send_again(self, index: int, future: Future[Answer]) -> None:
        future.cancel()
        del self._subscribing[index]
        self._credits.lost(index)

    def _take_answer(self, thread: ChannelThread, grant: Grant, future: Future[Answer]) -> None:
        """Handle a shard's answer to a `subscribe`."""
        shard = self._session.shards[grant.shard]
        if future.cancelled() or shard.gone or not self._session.lifecycle.is_open:
            return
        error = future.exception()
        if error is not None:
            return  # `_grant` sends it again
        answer = future.result()
        if answer.status != "ok":
            self._refused_subscription(thread, shard, answer)
            return
        if self._subscribing.get(grant.shard, (0.0, None))[1] is future:
            del self._subscribing[grant.shard]
        self._returning.discard(grant.shard)
        self._credits.answered(grant.shard, grant.credit, elapsed_ms())
        self._credits.allows(grant.shard, answer.counts.get("max_per_subscription_backlog"))
        self._heartbeat.on_answer(answer)
        counting = self._counting_cancels
        (counting.add if answer.counts.get("max_cancels") else counting.discard)(shard.entity)
        self._advise(shard.entity, answer)
        self._session.confirm(grant.shard)

    def _refused_subscription(self, thread: ChannelThread, shard: Shard, answer: Answer) -> None:
        if is_deletion(answer) and self.on_deleted(thread, shard.entity):
            return
        refused = refusal(shard.entity, answer)
        if shard.index >= self._first:
            log.warning("the subscription goes on without it: %s", refused)  # a shard that joined later
        else:
            self._session.fail(refused)  # another try would be refused, too

    def _advise(self, queue: str, answer: Answer) -> None:
        """Warn, once for each queue, if prefetching can use up a message's deliveries (C24)."""
        most = min(self._terms.max_backlog, answer.counts.get("max_per_subscription_backlog", self._terms.max_backlog))
        advice = prefetch.max_deliveries_warning(queue, answer.counts.get("max_deliveries", 0), most)
        if advice is not None and queue not in self._advised:
            self._advised.add(queue)
            log.warning("%s", advice)

    def _resubscribe(self, shard: Shard) -> None:
        """Subscribe again, once for all commands that a shard refuses because it does not know the subscription.

        Further such answers may come after deliveries of the new subscription, which must not be dropped (C5).
        """
        if shard.gone or shard.index in self._returning:
            return
        self._returning.add(shard.index)
        log.info("%s, shard %d does not know the subscription: subscribing again", shard.entity, shard.partition)
        self._generations[shard.index] += 1
        self._credits.lost(shard.index)
        dropped = self._arrivals.drop(lambda lot: lot.shard is shard)
        self._credits.settled(shard.index, dropped, elapsed_ms())

    def _read_records(self, referenced: Referenced, count: int, lots: list[Lot]) -> None:
        """Pass on records of a reference, of which `count` were looked for. Called by the `RecordReader`'s thread."""
        index = referenced.shard.index
        if referenced.generation != self._generations[index]:
            lots = []
        if missing := count - sum(map(len, lots)):
            self._credits.settled(index, {referenced.lease_ends_ms: missing}, elapsed_ms())
        self._buffer_lots(lots)

    def _buffer_lots(self, lots: list[Lot]) -> None:
        """Buffer lots. First cancel the messages that came after their deadlines: the queue then expires them."""
        for lot in lots:
            if lot.overdue:
                log.info(
                    "%d deliveries of %s dropped: they came after their deadlines", len(lot.overdue), lot.shard.entity
                )
                self._settler.command("cancel", [Delivery(lot, at) for at in sorted(lot.overdue)], delay_ms=0)
        self._arrivals.put([lot for lot in lots if not lot.overdue or lot.left_count()])
