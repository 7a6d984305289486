"""Deliveries in doubt: an earlier holder may have committed a transaction over them (X9).

They are set aside until that is known, so that nothing else waits for it, and a handler seldom works for nothing.
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
"""A lease that has less left is renewed while its message waits, at most once a second."""

_RENEW_S: Final = 1.0


class InDoubt:
    """Looks up what became of earlier transactions, in a thread of its own. Every method may be called from any thread.

    Args:
        connection: the cluster.
        shards: says how many shards a queue has.
        settler: acknowledges what is decided already, and renews what waits.
        put_back: takes what is in doubt no longer, to be handed out.
        past_ms: an instant that the broker's clock has passed, ms since the epoch.
        forget: called with a shard, and with how many messages were dropped because their leases are over.
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
        self._clear: set[int] = set()
        """Deliveries that were put back, by their identity: they are not set aside again."""
        self._renewed_s: dict[int, float] = {}
        self._logs: dict[str, DecisionLog] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def sift(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Return what can be handed out, and set the rest aside; never waits."""
        fine: list[Delivery] = []
        doubtful: list[Delivery] = []
        for delivery in deliveries:
            first = delivery.delivery_count <= 1 or delivery.lease_until_ms is None or delivery.is_barrier
            if first or id(delivery) in self._clear:
                self._clear.discard(id(delivery))
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
        """Look up no more; what was set aside returns to its queue."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
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
        """Put back, or acknowledge, what is known; returns what has to wait on."""
        sorted_out: dict[Verdict, list[Delivery]] = {verdict: [] for verdict in Verdict}
        for queue in {delivery.queue for delivery in waiting}:
            asked = [delivery for delivery in waiting if delivery.queue == queue]
            for delivery, verdict in zip(asked, self._verdicts(queue, asked), strict=True):
                sorted_out[verdict].append(delivery)
        if done := sorted_out[Verdict.DONE]:
            log.info("%d messages had been committed before; they are acknowledged, not handed out", len(done))
            self._settler.acknowledge(done)
            self._settler.flush()
        if clear := sorted_out[Verdict.NONE]:
            self._clear.update(map(id, clear))
            self._put_back(clear)
        return self._holding(sorted_out[Verdict.OPEN])

    def _verdicts(self, queue: str, asked: Sequence[Delivery]) -> list[Verdict]:
        try:
            known = self._logs.get(queue)
            if known is None:
                known = self._logs[queue] = DecisionLog(self._connection, queue, self._shards(queue))
            return known.verdicts(asked)
        except (KafkaException, LapseError) as error:
            # A transaction asks again before it commits, and fails where it gets no answer.
            log.warning("%s: what was decided before is not known yet: %s", queue, error)
            return [Verdict.NONE] * len(asked)

    def _holding(self, still_open: Sequence[Delivery]) -> list[Delivery]:
        """Keep the leases of what has to wait on; what has lost its lease comes again."""
        kept: list[Delivery] = []
        now_ms, now_s = self._past_ms(), time.monotonic()
        for delivery in still_open:
            left_ms = delivery.lease_ends_ms - now_ms
            if left_ms <= 0:
                self._renewed_s.pop(id(delivery), None)
                self._forget(delivery.shard, 1)
                continue
            kept.append(delivery)
            if left_ms < _RENEW_MS and now_s - self._renewed_s.get(id(delivery), 0.0) >= _RENEW_S:
                self._renewed_s[id(delivery)] = now_s
                self._settler.command("renew", [delivery])
        return kept
