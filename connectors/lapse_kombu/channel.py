"""The channel, through which kombu declares queues, publishes, consumes and settles."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from queue import Empty
from typing import Any, Final

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.base import queue_declare_ok_t
from kombu.utils.uuid import uuid

from lapse_client import (
    Admin,
    CommandFailed,
    Delivery,
    EntityDeleted,
    LapseError,
    PublishFailed,
    Queue,
    QueueSubscriber,
    UnknownEntity,
)
from lapse_kombu import task_message
from lapse_kombu.consumption import Consumption, Listening
from lapse_kombu.queue_name import queue_name
from lapse_kombu.queue_settings import queue_settings
from lapse_kombu.task_message import TaskMessage
from lapse_kombu.transient import Transient
from lapse_kombu.unsettled import Unsettled

logger = logging.getLogger(__name__)

_NO_LIMIT: Final = 100
"""The number of prefetched messages if kombu sets no limit."""

_TOGETHER: Final = 100
"""The most messages that are handed out in one turn."""

_TURN_S: Final = 0.02
"""With several consumers, how long to wait for one before the others have their turn, in seconds."""

_GET_S: Final = 0.5
"""How long a `get` waits for a message, in seconds."""

_GOING_S: Final = 0.5
"""Pause before a deleted queue may be declared again, in seconds. Its topics are gone within seconds."""

_NO_TOPIC: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
"""Kafka's names of the error for a topic that is not there."""

_NOT_KEPT: Final = 1
"""AMQP's `delivery_mode` of transient messages."""


class Channel(virtual.Channel):
    """A channel over the client of lapse.

    A queue of kombu is a queue of lapse with a topic of the same name, unless a topic cannot have it; see `queue_name`.
    A queue that does not outlive its connection is transient instead in two cases: it is bound to a fanout exchange, as
    Celery's `Broadcast` is, or it is not durable and is bound by something else than its own name. It gets copies of
    messages that any process sends to its exchanges, and has no leases.
    """

    Message = TaskMessage
    QoS = Unsettled
    do_restore = False
    supports_fanout = True

    def __init__(self, connection: Any, **more: Any) -> None:
        super().__init__(connection, **more)
        self.events: defaultdict[str, set[object]] = defaultdict(set)  # kombu's producer adds its `on_return` here
        self._consumed: dict[str, Consumption | Listening] = {}
        self._leaving: list[QueueSubscriber] = []
        self._turn = 0
        self._unbound: str | None = None

    @property
    def _transient(self) -> Transient:
        found: Transient = self.connection.transient
        return found

    # --- queues ------------------------------------------------------------------------------------------------

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> Any:
        """Create a queue if it is missing. Only a passive declaration returns the number of messages."""
        name = queue or f"amq.gen-{uuid()}"
        self._create_unbound()
        if not passive:
            if options.get("auto_delete") or options.get("exclusive"):
                self.connection.undecided.setdefault(name, options)  # its binding decides
                self._unbound = name if options.get("durable", True) else None
            else:
                self._new_queue(name, **options)
            return queue_declare_ok_t(name, 0, 0)
        return super().queue_declare(name, passive=True, **options)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any) -> None:
        """Delete a queue with its topics, if the deployment keeps its definitions on a topic.

        With `if_empty` it stays if it has messages, those included whose time has not come.
        """
        if queue in self._transient:
            if not (if_empty and self._size(queue)):
                self._transient.delete(queue)
            return
        try:
            self._delete(queue, force=not if_empty)
        except CommandFailed as error:
            if not if_empty or error.code != "in_use":
                raise
        else:
            self.state.queue_bindings_delete(queue)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **options: Any
    ) -> None:
        """Bind a queue to an exchange: for all processes if it is transient, else for those that declare it."""
        self._create_unbound(queue)
        source = exchange or "amq.direct"
        kind = self.typeof(source)
        if (declared := self.connection.undecided.get(queue)) is not None:
            durable = declared.get("durable", True)
            if kind.type != "fanout" and (durable or (kind.type == "direct" and routing_key == queue)):
                self._decide(queue)  # a queue for all who know its name
            else:
                self._transient.declare(queue)
                del self.connection.undecided[queue]
        if queue not in self._transient:
            super().queue_bind(queue, exchange, routing_key, arguments, **options)
            return
        key, pattern, _ = kind.prepare_bind(queue, source, routing_key, arguments)
        self._transient.bind(queue, source, kind.type, key or "", pattern)

    def prepare_queue_arguments(self, arguments: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Convert kombu's options of a queue, such as `max_priority`, to AMQP's arguments."""
        named: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **options)
        return named

    def _new_queue(self, queue: str, **options: Any) -> None:
        name, transport = queue_name(queue), self.connection
        transport.declared[queue] = options
        if name in transport.known or name in transport.queues():
            transport.known.add(name)
            return
        settings = queue_settings(options, transport.client.transport_options)
        try:
            with Admin(transport.deployment, connection=transport.lapse) as admin:
                admin.create_queue(name, **settings)
        except CommandFailed as error:
            if error.code != "exists":  # another process has just created it with other settings
                raise
        except LapseError as error:
            raise LapseError(
                f"there is no queue {name!r}; add [queue.{name}] to lapse.toml and run `lapse apply`, or: {error}"
            ) from error
        transport.known.add(name)

    def _decide(self, queue: str) -> None:
        """Create the queue of lapse for a declared queue that turned out not to be transient."""
        if (options := self.connection.undecided.pop(queue, None)) is not None:
            self._new_queue(queue, **options)

    def _create_unbound(self, queue: str | None = None) -> None:
        """Create the durable queue declared last, unless it is being bound: kombu binds right after declaring."""
        unbound, self._unbound = self._unbound, None
        if unbound is not None and unbound != queue:
            self._decide(unbound)

    def _queue_bind(self, *_: Any) -> None:
        """Do nothing: the bindings of a durable queue are kept in this process."""

    def _has_queue(self, queue: str, **_: Any) -> bool:
        queues: list[str] = self.connection.queues()
        return queue in self._transient or queue in self.connection.undecided or queue_name(queue) in queues

    def _size(self, queue: str) -> int:
        self._decide(queue)
        if queue in self._transient:
            return self._transient.size(queue)
        try:
            with Queue(queue_name(queue), connection=self.connection.lapse) as asked:
                return int(asked.depth()["depth"])
        except UnknownEntity:
            return 0

    def _purge(self, queue: str) -> int:
        if queue in self._transient:
            return self._transient.purge(queue)
        with Queue(queue_name(queue), connection=self.connection.lapse) as asked:
            return asked.purge()["removed"]

    def _delete(self, queue: str, *_: Any, force: bool = True, **__: Any) -> None:
        name = queue_name(queue)
        self.connection.known.discard(name)
        with Admin(self.connection.deployment, connection=self.connection.lapse) as admin:
            try:
                admin.delete_queue(name, force=force)
            except UnknownEntity:
                return

    # --- publishing --------------------------------------------------------------------------------------------

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any) -> Any:
        """Send a message to the durable queues that are bound here, and to transient queues of all processes."""
        self._create_unbound()
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            return self._put(routing_key, message, **options)
        if self._is_heard(message, exchange):
            self._transient.publish(message)
        return self.typeof(exchange).deliver(message, exchange, routing_key, **options)

    def _is_heard(self, message: Mapping[str, Any], exchange: str) -> bool:
        """Return whether transient queues may get a message. They are not bound to exchanges for tasks."""
        if (declared := self.state.exchanges.get(exchange)) is None:
            return True  # an undeclared exchange may be a fanout: Celery sends to a `Broadcast` without declaring it
        kind = declared.get("type", "direct")
        if kind == "fanout" or not declared.get("durable", True):
            return True
        return bool(kind != "direct" and message["properties"].get("delivery_mode") == _NOT_KEPT)

    def _put_fanout(self, exchange: str, message: Mapping[str, Any], routing_key: str, **options: Any) -> None:
        for *_, queue in self.get_table(exchange):
            self._put(queue, message, **options)

    def _put(self, queue: str, message: Mapping[str, Any], **_: Any) -> None:
        name = queue_name(queue)
        self._decide(queue)
        for again in (True, False):
            if not self.connection.knows(name):
                if message["properties"].get("delivery_mode") == _NOT_KEPT and not self.connection.has_queue(name):
                    logger.debug("there is no queue %s: a message that need not be kept is dropped", name)
                    return  # such as the result of a task whose sender is gone
                self._new_queue(queue, **self.connection.declared.get(queue, {}))
            try:
                self._submit(name, message)
            except (UnknownEntity, PublishFailed) as error:
                if not again or (isinstance(error, PublishFailed) and error.kafka_error not in _NO_TOPIC):
                    raise
                self.connection.forget(name)  # a temporary queue has deleted itself, and its topic
            else:
                return

    def _submit(self, name: str, message: Mapping[str, Any]) -> None:
        """Send a message to a queue of lapse, and wait until Kafka has it."""
        when = task_message.lifetime(message)
        report = self.connection.publisher().submit(
            name,
            task_message.write(message),
            ttl_ms=when.ttl_ms,
            expires_at_ms=when.expires_at_ms,
            enqueue_at_ms=when.enqueue_at_ms,
        )
        report.result(self.connection.timeout_s)

    # --- consuming ---------------------------------------------------------------------------------------------

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str, **_: Any
    ) -> None:
        """Subscribe to a queue."""
        self._create_unbound()
        self._decide(queue)
        if queue in self._transient:
            self._consumed[consumer_tag] = Listening(queue, self._transient, callback)
        else:
            backlog = self.qos.prefetch_count or _NO_LIMIT
            subscriber = self._subscriber(queue, backlog)
            self._consumed[consumer_tag] = Consumption(queue, subscriber, backlog, callback, self.qos, no_ack=no_ack)
        self._consumers.add(consumer_tag)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set the limit of unsettled messages. Consumers whose backlog is below it, or twice as large, subscribe anew.

        Celery raises the limit slightly while tasks wait for their time, and much when its pool grows.
        """
        self.qos.prefetch_count = prefetch_count
        backlog = prefetch_count or _NO_LIMIT
        for consumption in self._consumed.values():
            if isinstance(consumption, Consumption) and not backlog <= consumption.backlog < 2 * backlog:
                before = consumption.subscriber
                consumption.subscribe(self._subscriber(consumption.queue, backlog), backlog)
                self._leave(before)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop a consumer. Messages handed out can still be settled, and the others return to the queue."""
        consumption = self._consumed.pop(consumer_tag, None)
        self._consumers.discard(consumer_tag)
        if isinstance(consumption, Consumption):
            consumption.give_back()
            self._leave(consumption.subscriber)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> TaskMessage | None:
        """Return one message, or None if there is none within half a second."""
        wait_s = float(self._option("get_timeout") or _GET_S)
        self._create_unbound()
        self._decide(queue)
        if queue in self._transient:
            raws = self._transient.take(queue, 1, wait_s)
            return self._read_transient(queue, raws[0]) if raws else None
        subscriber = self._subscriber(queue, 1)
        try:
            delivery = subscriber.receive(wait_s)
            return None if delivery is None else self._message(queue, delivery, subscriber, no_ack=no_ack)
        finally:
            self._leave(subscriber)

    @property
    def has_consumers(self) -> bool:
        """Whether there are consumers."""
        return bool(self._consumed)

    @property
    def may_hand_out(self) -> bool:
        """Whether there are consumers, and one more message may be handed out."""
        return self.has_consumers and self.qos.can_consume()

    def drain(self, timeout_s: float) -> bool:
        """Hand messages to the consumers, waiting for the first one; return whether there was any."""
        consumptions = list(self._consumed.values())
        self._turn += 1
        first = self._turn % len(consumptions)
        for at, consumption in enumerate(consumptions[first:] + consumptions[:first]):
            wait_s = timeout_s if len(consumptions) == 1 else (_TURN_S if at == len(consumptions) - 1 else 0.0)
            if self._hand_out(consumption, min(wait_s, timeout_s)):
                return True
        return False

    def drain_events(self, timeout: float | None = None, callback: object = None) -> None:
        """Hand messages to this channel's consumers.

        Args:
            timeout: how long to wait for the first message, in seconds; None = `get_timeout`.
            callback: ignored, because the consumers have callbacks of their own.

        Raises:
            Empty: no message came, or none may be handed out at present.
        """
        wait_s = float(self._option("get_timeout") or _GET_S) if timeout is None else timeout
        if not self.may_hand_out or not self.drain(wait_s):
            raise Empty

    def reserve(self) -> None:
        """Have leases kept of what has come, while tasks of other queues are at work. May be called from any thread."""
        if self.qos.can_consume():
            return
        for consumption in list(self._consumed.values()):
            if isinstance(consumption, Consumption):
                with contextlib.suppress(Exception):  # its consumers get the error themselves
                    consumption.reserve()

    def settled(self, subscriber: QueueSubscriber) -> None:
        """Close a cancelled consumer's subscription once all of its messages are settled."""
        if subscriber in self._leaving and not self.qos.has(subscriber):
            with contextlib.suppress(ValueError):  # another thread does the same
                self._leaving.remove(subscriber)
            subscriber.close()

    def close(self) -> None:
        """Close all subscriptions, so that unsettled messages return to their queues at once."""
        if self.closed:
            return
        for consumption in self._consumed.values():
            if isinstance(consumption, Consumption):
                self._leaving.append(consumption.subscriber)
        self._consumed.clear()
        self.qos.close()
        for subscriber in self._leaving:
            subscriber.close()
        self._leaving.clear()
        super().close()

    def _hand_out(self, consumption: Consumption | Listening, timeout_s: float) -> bool:
        if isinstance(consumption, Listening):
            return consumption.hand_out(self._read_transient, _TOGETHER, timeout_s)
        room = self.qos.can_consume_max_estimate()
        return consumption.hand_out(self._message, _TOGETHER if room is None else min(room, _TOGETHER), timeout_s)

    def _message(
        self, queue: str, delivery: Delivery, subscriber: QueueSubscriber, *, no_ack: bool
    ) -> TaskMessage | None:
        """Convert a delivery to kombu's message. Expire one that kombu did not write, and return None."""
        tag = f"{delivery.queue}/{delivery.bookmark}#{delivery.delivery_count}"  # queues may share a topic
        try:
            raw = task_message.read(delivery.value)
            properties = raw["properties"]
            properties["delivery_tag"] = tag
            properties["delivery_info"] = {
                **(properties.get("delivery_info") or {}),
                "redelivered": delivery.delivery_count > 1,
            }
            message = self.Message(raw, channel=self)
        except Exception as error:  # noqa: BLE001  # any bytes may have been written; the next message may be a task
            logger.warning("%s: %s: %s; it goes to the dead letters", queue, delivery.bookmark, error)
            self.qos.settle_now(delivery, delivery.expire, str(error))
            return None
        if no_ack:
            self.qos.settle_now(delivery, delivery.acknowledge)
        else:
            self.qos.hold(tag, delivery, subscriber)
        return message

    def _read_transient(self, queue: str, raw: dict[str, Any]) -> TaskMessage | None:
        """Convert a transient queue's message to kombu's. Skip one that kombu did not write, and return None."""
        try:
            return self.Message(raw, channel=self)
        except Exception as error:  # noqa: BLE001  # any bytes may have been written
            logger.warning("%s: a message is passed over: %s: %s", queue, type(error).__name__, error)
            return None

    def _subscriber(self, queue: str, backlog: int) -> QueueSubscriber:
        name, known = queue_name(queue), self.connection.known
        subscriber = QueueSubscriber(name, backlog, connection=self.connection.lapse, ack_interval_ms=5)
        try:
            subscriber.start()
        except (EntityDeleted, UnknownEntity) as error:
            if name not in known:
                raise
            known.discard(name)
            time.sleep(_GOING_S)
            raise EntityDeleted(
                name, f"it was deleted after it was declared, and may be declared again: {error}"
            ) from error
        return subscriber

    def _leave(self, subscriber: QueueSubscriber) -> None:
        if self.qos.has(subscriber):
            subscriber.stop()
        self._leaving.append(subscriber)
        self.settled(subscriber)  # if none is at work, or another thread has settled the last one meanwhile

    def _option(self, name: str) -> Any:
        return self.connection.client.transport_options.get(name)
