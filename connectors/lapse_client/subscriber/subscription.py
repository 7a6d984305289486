"""A queue subscription: its session, its buffer of deliveries, and its settlements (Q3, Q5, Q8)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from lapse.protocol import topic
from lapse_client.argument import check_wait
from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import Lot
from lapse_client.delivery.prefetched import Prefetched
from lapse_client.delivery.referenced import Referenced
from lapse_client.delivery.typed_delivery import TypedDelivery, typed
from lapse_client.kafka.clock import elapsed_ms
from lapse_client.kafka.connection import Connection
from lapse_client.payload.serde import DeserializerLike, SerializerLike
from lapse_client.request.replier import Replier
from lapse_client.session.channel import Channel
from lapse_client.session.lifecycle import Lifecycle
from lapse_client.session.session import Session
from lapse_client.session.shard import Shard
from lapse_client.subscriber.credit import Credits
from lapse_client.subscriber.joined_queues import JoinedQueues
from lapse_client.subscriber.queue_listener import QueueListener
from lapse_client.subscriber.settlement import SettlementResult
from lapse_client.subscriber.subscription_settler import SubscriptionSettler
from lapse_client.subscriber.terms import Terms
from lapse_client.tracing import tracing
from lapse_client.transaction.atomic_work import AtomicWork
from lapse_client.transaction.in_doubt import InDoubt

log = logging.getLogger("lapse_client")

_PAUSE_S: Final = 0.005
"""How often `end_intake` looks whether the shards have answered, in seconds."""


class Subscription:
    """One subscription, from `subscribe` to `unsubscribe`. Every method may be called from any thread.

    `QueueListener` has the work of the channel's thread. `settler` sends the settlements.

    Args:
        connection: connection to the cluster.
        queues: names of queues, each with its number of shards.
        terms: settings of the subscription.
        lifecycle: lifecycle of the subscriber.
        on_refused: called with each refused settlement that no call waits for, by a background thread.
        by_pattern: whether the queues come from a regular expression, so that the subscription goes on when one of
            them is deleted (Q3).
        deserializer: converts values to payloads; None = values stay bytes.
        delivery_types: the classes of the application's deliveries, without a deserializer and with one.
        transactional_id: Kafka's `transactional.id` for transactions; None = a unique one.
        serializer: converts the payloads of replies to bytes; None = they are bytes or text.
    """

    def __init__(
        self,
        connection: Connection,
        queues: Sequence[tuple[str, int]],
        terms: Terms,
        lifecycle: Lifecycle,
        on_refused: Callable[[SettlementResult], None] | None = None,
        by_pattern: bool = False,
        deserializer: DeserializerLike | None = None,
        delivery_types: tuple[type[Delivery], type[TypedDelivery]] = (Delivery, TypedDelivery),
        transactional_id: str | None = None,
        serializer: SerializerLike | None = None,
    ) -> None:
        self._deserializer = deserializer
        self._typed = delivery_types[1]
        self._transport = connection.transport
        self.queues = JoinedQueues(queue for queue, _ in queues)
        self.session: Session[Lot | Referenced | None] = Session(connection, queues, lifecycle, terms.name)
        self.arrivals = Prefetched(self.session.clock.past_ms, self._forget, delivery_types[0])
        self._replier = Replier(connection, serializer)
        self._credits = Credits(len(self.session.shards), terms.max_backlog, after_caps=len(queues) > 1)
        self._tracing = tracing(connection.tracer_provider)
        self.settler = SubscriptionSettler(
            self.session, self._credits, terms.ack_batch_size, on_refused, self._replier, self._tracing
        )
        self._connection = connection
        self._in_doubt: InDoubt | None = None
        self._work = AtomicWork(connection, self.settler, self._shards_by_queue, transactional_id, self._screen)
        self.settler.work = self._work
        self._listener = QueueListener(
            connection, self.session, terms, self.queues, self._credits, self.settler, self.arrivals, by_pattern
        )

    @property
    def channel(self) -> Channel[Lot | Referenced | None]:
        """The channel of the session."""
        return self.session.channel

    def open(self, timeout_s: float) -> None:
        """Subscribe at every shard and wait for their answers, as `Session.open` does."""
        decisions = {topic.decisions(shard.entity) for shard in self.session.shards}
        if not decisions.isdisjoint(self._connection.partitions()):
            self._screen()
        self.session.open(self._listener, timeout_s)

    def undo(self) -> None:
        """Undo a start that failed."""
        self.session.undo()
        self._listener.close()
        self._replier.close()

    def stop(self) -> None:
        """Stop handing out messages, and receiving them. Messages that were handed out can still be settled.

        The listener returns the others as soon as the shards have confirmed that they send no more.
        """
        self._credits.end()
        self.arrivals.withhold()

    def end_intake(self, timeout_s: float) -> None:
        """Receive no more from the shards. Wait until they confirm it, at most `timeout_s`; what came can be taken.

        Nothing is waited for if the subscription has ended.
        """
        self._credits.end()
        give_up = time.monotonic() + timeout_s
        while self.session.lifecycle.is_open and self._credits.awaits_answers and time.monotonic() < give_up:
            self._transport.settle()
            time.sleep(_PAUSE_S)

    def leave(self, timeout_s: float) -> None:
        """Send settlements, return all other messages, and wait for the shards' answers.

        Prefetched deliveries return to the queue at once. If no answer comes, they return when the heartbeats
        are missed. A warning is logged, and nothing is raised.
        """
        self.stop()
        if self._in_doubt is not None:
            self._in_doubt.close()
        self.settler.close()
        self.session.leave(timeout_s)
        self._listener.close()
        self.arrivals.drop(lambda _: True)
        self._replier.close()
        self._work.close()

    def take(self, most: int, timeout_s: float | None, began_ns: int | None = None) -> list[Delivery]:
        """Return up to `most` deliveries whose leases still hold; wait for the first one as `Waiting.take` does.

        Args:
            most: the greatest number of deliveries.
            timeout_s: how long to wait, in seconds; None = until a delivery or the end comes.
            began_ns: when the application began to wait, ns since the epoch; None = now.
        """
        if self._tracing is None:
            return self._take(most, timeout_s)
        began_ns = began_ns or time.time_ns()
        if taken := self._take(most, timeout_s):
            self._tracing.received(taken, began_ns)
        return taken

    def _take(self, most: int, timeout_s: float | None) -> list[Delivery]:
        check_wait(timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            taken = self.arrivals.take(most, self.patience(timeout_s) if timeout_s else timeout_s)
            if not taken or (self._deserializer is None and self._in_doubt is None):
                return taken
            if self._in_doubt is not None:
                taken = self._in_doubt.hold_back_doubtful(taken)
            if fitting := taken if self._deserializer is None else typed(self._deserializer, taken, self._typed):
                return fitting
            timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())

    def patience(self, timeout_s: float) -> float:
        """Return how long to wait for a delivery, given a timeout in seconds; see `Transport.patience`."""
        return self._transport.patience(timeout_s, self._lingering_s)

    def _lingering_s(self) -> float:
        """Return how long travelling credits and the reading of references may delay a delivery, in seconds."""
        travelling_s = self._credits.round_trip_ms / 1000 if self._credits.travelling else 0.0
        return travelling_s + self._listener.reading_s

    def receive(self, timeout_s: float | None, began_ns: int | None = None) -> Delivery | None:
        """Return one delivery whose lease still holds; None after the timeout, or at the end. See `take`."""
        plain = self._deserializer is None and self._in_doubt is None and self._tracing is None
        delivery = self.arrivals.pop() if plain else None
        if delivery is not None:
            return delivery
        taken = self.take(1, timeout_s, began_ns)
        return taken[0] if taken else None

    def _shards_by_queue(self, queue: str) -> int:
        return self._connection.shards("queue", queue)

    def _screen(self) -> None:
        """From now on, check messages that another transaction may have committed already (X9)."""
        if self._in_doubt is None and not self._transport.settles:  # in `lapse.testing` this thread is not needed
            past_ms = self.session.clock.past_ms
            self._in_doubt = InDoubt(
                self._connection, self._shards_by_queue, self.settler, self.arrivals.put_back, past_ms, self._forget
            )

    def _forget(self, shard: Shard, count: int) -> None:
        """Count and log prefetched messages that were dropped because their leases are over."""
        log.info("%d prefetched deliveries dropped: their leases are over", count)
        self._credits.end_leases(self.session.clock.past_ms(), elapsed_ms())
