"""Deliveries in doubt: an earlier subscription may have committed a transaction over them (X9).

They are set aside until that is known. So other deliveries need not wait, and handlers seldom do work that is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import KafkaException

from lapse_client.delivery.delivery import Delivery
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.session.shard import Shard
from lapse_client.subscriber.subscription_settler import SubscriptionSettler
from lapse_client.transaction.decision_log import DecisionLog, Verdict

log = logging.getLogger("lapse_client")

_AGAIN_S: Final = 0.3
_RENEW_MS: Final = 10_000
"""While a message waits, its lease is renewed if less than this is left of it, in ms, at most once a second."""

_RENEW_S: Final = 1.0


class InDoubt:
    """Looks up the outcomes of earlier transactions in a thread. Every method may be called from any thread.

    Args:
        connection: connection to the cluster.
        shards: returns the number of shards of a queue.
        settler: acknowledges committed messages, and renews the leases of waiting ones.
        put_back: called with deliveries that are not in doubt any more, to be handed out.
        past_ms: returns an instant that the broker's clock has passed, ms since the epoch.
        forget: called with a shard, and the number of its messages that were dropped because their leases are over.
    """

    def __init__(
        self,
        connection: Connection,
        shards: Callable[[str], int],
        settler: SubscriptionSettler,
        put_back: Callable[[Sequence[Delivery]], None],
        past_ms: Callable[[], float],
        forget: Callable[[Shard, int], None],
    ) -> None:
        self._connection = connection
        self._shards = shards
        self._settler = settler
        self._put_back = put_back
        self._past_ms = past_ms
        self._forget = forget
        self._changed = threading.Condition()
        self._waiting: list[Delivery] = []
        self._clear: dict[int, Delivery] = {}
        """Deliveries that were put back, by `id`, so that they are not set aside again. They are kept here until they
        are handed out or their leases are over. Otherwise another delivery could get the same `id`."""
        self._renewed_s: dict[int, float] = {}
        self._logs: dict[str, DecisionLog] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def hold_back_doubtful(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return the deliveries that can be handed out, and set the others aside, without waiting."""
        fine: list[Delivery] = []
        doubtful: list[Delivery] = []
        for delivery in deliveries:
            first = delivery.delivery_count <= 1 or delivery.lease_until_ms is None or delivery.is_barrier
            if self._clear.pop(id(delivery), None) is not None or first:
                fine.append(delivery)
            else:
                doubtful.append(delivery)
        if doubtful:
            with self._changed:
                self._waiting += doubtful
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="lapse in doubt", daemon=True)
                    self._thread.start()
                self._changed.notify()
        return fine

    def close(self) -> None:
        """Stop the thread. The messages set aside return to their queue with the unsubscribe."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._closed)
                    if self._closed:
                        return
                    waiting = list(self._waiting)
                kept = self._sort_out(waiting)
                with self._changed:
                    self._waiting = kept + self._waiting[len(waiting) :]
                    if kept and not self._closed:
                        self._changed.wait(_AGAIN_S)
        finally:
            for one in self._logs.values():
                one.close()

    def _sort_out(self, waiting: Sequence[Delivery]) -> list[Delivery]:
        """Put back or acknowledge deliveries with a known outcome; return those that must still wait."""
        sorted_out: dict[Verdict, list[Delivery]] = {verdict: [] for verdict in Verdict}
        for queue in {delivery.queue for delivery in waiting}:
            concerned = [delivery for delivery in waiting if delivery.queue == queue]
            for delivery, verdict in zip(concerned, self._verdicts(queue, concerned), strict=True):
                sorted_out[verdict].append(delivery)
        if done := sorted_out[Verdict.DONE]:
            log.info("%d messages had been committed before; they are acknowledged, not handed out", len(done))
            self._settler.acknowledge(done)
            self._settler.flush()
        self._forget_dropped()
        if clear := sorted_out[Verdict.NONE]:
            self._clear.update((id(one), one) for one in clear)
            self._put_back(clear)
        return self._holding(sorted_out[Verdict.OPEN])

    def _forget_dropped(self) -> None:
        """Forget deliveries that were put back and dropped since, because their leases are over."""
        now_ms = self._past_ms()
        for number, delivery in list(self._clear.items()):
            if delivery.lease_ends_ms <= now_ms:
                self._clear.pop(number, None)

    def _verdicts(self, queue: str, asked: Sequence[Delivery]) -> list[Verdict]:
        try:
            known = self._logs.get(queue)
            if known is None:
                known = self._logs[queue] = DecisionLog(self._connection, queue, self._shards(queue))
            return known.verdicts(asked)
        except (KafkaException, LapseError) as error:
            # Hand it out: a transaction asks again before it commits, and fails without an answer.
            log.warning("%s: what was decided before is not known yet: %s", queue, error)
            return [Verdict.NONE] * len(asked)

    def _holding(self, still_open: Sequence[Delivery]) -> list[Delivery]:
        """Renew the leases of waiting deliveries, and return these. Drop those whose lease is over: they come again."""
        kept: list[Delivery] = []
        now_ms, now_s = self._past_ms(), time.monotonic()
        renewed_s, self._renewed_s = self._renewed_s, {}
        for delivery in still_open:
            left_ms = delivery.lease_ends_ms - now_ms
            if left_ms <= 0:
                self._forget(delivery.shard, 1)
                continue
            kept.append(delivery)
            last_s = renewed_s.get(id(delivery), 0.0)
            if left_ms < _RENEW_MS and now_s - last_s >= _RENEW_S:
                last_s = now_s
                self._settler.command("renew", [delivery])
            self._renewed_s[id(delivery)] = last_s
        return kept
