"""A fake queue that clients are tested against without a worker: all shards of one queue in one thread.

It has first-in first-out order, backlogs, leases, heartbeats and settlements. Tests can make it lose its state.
"""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.core.error_code import ErrorCode
from lapse.protocol import answer as answers
from lapse.protocol import command as commands
from lapse.protocol import topic
from lapse.protocol.answer import Answer, OpenSubscription, QueuedMessage, Settlement
from lapse.protocol.bookmark import BookmarkRange
from lapse.topic_creation import NewTopic
from support.kafka.created_topic import create


@dataclass
class Held:
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int
    count: int = 0
    holder: str = ""
    until_ms: int = 0


@dataclass
class Subscribed:
    max_backlog: int
    timeout_ms: int
    seen_ms: int
    since_ms: int
    outstanding: set[int] = field(default_factory=set)


class ScriptedShards:
    """Serves one queue over the topic of the same name, until `stop`."""

    def __init__(self, servers: str, queue: str, partitions: int, lease_ms: int = 30_000) -> None:
        self.servers, self.queue, self.partitions, self.lease_ms = servers, queue, partitions, lease_ms
        self.epoch = 1
        self.most_outstanding: dict[str, int] = {}
        self.log: list[tuple[int, str]] = []
        self.queues = [OrderedDict[int, Held]() for _ in range(partitions)]
        self.subscriptions: list[dict[str, Subscribed]] = [{} for _ in range(partitions)]
        self.muted = False
        self.dies_before_it_answers = False
        self.answers_late = False
        """Whether it refuses a heartbeat from before a `subscribe` only after the first deliveries of that one."""
        self._running = threading.Event()
        self._running.set()
        admin = AdminClient({"bootstrap.servers": servers})
        stamped = {"message.timestamp.type": "LogAppendTime"}
        names = [queue, topic.commands(queue), topic.deliveries(queue)]
        create(admin, *(NewTopic(name, partitions, 1, config=stamped) for name in names))
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "enable.idempotence": True})
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "scripted",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.assign([TopicPartition(name, p, 0) for name in names[:2] for p in range(partitions)])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._running.clear()
        self._thread.join()
        self._consumer.close()
        self._producer.flush(10)

    def forget(self) -> None:
        """Drop all subscriptions, as if the shards had lost them."""
        for partition in range(self.partitions):
            for name in list(self.subscriptions[partition]):
                self._leave(partition, name)

    def take_over(self) -> None:
        """Act as another worker that restored the shards: their state is kept, unanswered commands are lost."""
        self.dies_before_it_answers = False
        self.epoch += 1
        for partition in range(self.partitions):
            self._send(partition, {"lapse-kind": "epoch", "lapse-epoch": str(self.epoch)}, None)

    def release_barriers(self, count: int, partition: int = 0) -> None:
        """Send barriers to all subscriptions, numbered from 0, as their bookmarks and values."""
        for name in list(self.subscriptions[partition]):
            for number in range(count):
                facts = {
                    "lapse-kind": "barrier",
                    "lapse-subscription": name,
                    "lapse-epoch": str(self.epoch),
                    "lapse-bookmark": f"{self.queue}:{partition}:{number}",
                    "lapse-delivery-count": "1",
                    "lapse-timestamp-ms": "1000",
                }
                self._send(partition, facts, str(number).encode())
        self._producer.flush(10)

    def depth(self) -> int:
        return sum(map(len, self.queues))

    def _run(self) -> None:
        while self._running.is_set():
            first = self._consumer.poll(0.01)
            batch = [first, *self._consumer.consume(1000, 0)] if first is not None else []
            for message in batch:
                if message.error():
                    continue
                if message.topic() == self.queue:
                    held = Held(
                        message.offset(),
                        message.key(),
                        message.value(),
                        message.headers() or [],
                        message.timestamp()[1],
                    )
                    self.queues[message.partition()][message.offset()] = held
                elif not self.muted:
                    self._command(message.partition(), message.value(), message.timestamp()[1])
            now_ms = int(time.time() * 1000)
            for partition in range(self.partitions):
                for name, subscribed in list(self.subscriptions[partition].items()):
                    if now_ms >= subscribed.seen_ms + subscribed.timeout_ms:
                        self._leave(partition, name)
                for held in self.queues[partition].values():
                    if held.holder and now_ms >= held.until_ms:
                        self._release(partition, held)
                self._deliver(partition, now_ms)
            self._producer.poll(0)

    def _deliver(self, partition: int, now_ms: int) -> None:
        available = [held for held in self.queues[partition].values() if not held.holder]
        for name, subscribed in self.subscriptions[partition].items():
            while available and len(subscribed.outstanding) < subscribed.max_backlog:
                held = available.pop(0)
                held.holder, held.count, held.until_ms = name, held.count + 1, now_ms + self.lease_ms
                subscribed.outstanding.add(held.offset)
                facts = {
                    "lapse-kind": "delivery",
                    "lapse-subscription": name,
                    "lapse-epoch": str(self.epoch),
                    "lapse-bookmark": f"{self.queue}:{partition}:{held.offset}",
                    "lapse-lease-until-ms": str(held.until_ms),
                    "lapse-delivery-count": str(held.count),
                    "lapse-timestamp-ms": str(held.timestamp_ms),
                }
                self._send(partition, facts, held.value, held.key, held.headers)
            total = sum(len(shard[name].outstanding) for shard in self.subscriptions if name in shard)
            self.most_outstanding[name] = max(total, self.most_outstanding.get(name, 0))

    def _command(self, partition: int, value: bytes, now_ms: int) -> None:
        command, encoding = commands.decode(value)
        self.log.append((partition, command.command))
        subscribed = self.subscriptions[partition].get(command.subscription)
        fields: dict = {}
        error, code = "", ErrorCode.UNKNOWN_SUBSCRIPTION
        if subscribed is not None:
            subscribed.seen_ms = now_ms
        if command.command == "subscribe":
            if command.filter == "bad":
                error, code = "filter: column 1: bad", ErrorCode.INVALID_EXPRESSION
            else:
                new = Subscribed(command.max_backlog or 0, command.heartbeat_timeout_ms or 10_000, now_ms, now_ms)
                if subscribed is not None:
                    new.outstanding, new.since_ms = subscribed.outstanding, subscribed.since_ms
                self.subscriptions[partition][command.subscription] = new
                if subscribed is None and self.answers_late:
                    self._deliver(partition, now_ms)
                    late = commands.Command.of(command="heartbeat", subscription=command.subscription)
                    facts = {"error": "nobody of that name was here", "code": ErrorCode.UNKNOWN_SUBSCRIPTION}
                    self._answer(partition, late, encoding, status="error", at_ms=now_ms, **facts)
        elif command.command == "heartbeat":
            error = "" if subscribed else "nobody of that name is here"
        elif command.command == "unsubscribe":
            self._leave(partition, command.subscription)
        elif command.command == "depth":
            fields["counts"] = {"depth": len(self.queues[partition]), "available": len(self.queues[partition])}
            fields["publish_target"] = self.queue
        elif command.command == "subscriptions":
            fields["subscriptions"] = tuple(
                OpenSubscription(
                    subscription=name,
                    since_ms=one.since_ms,
                    outstanding=len(one.outstanding),
                    max_backlog=one.max_backlog,
                )
                for name, one in self.subscriptions[partition].items()
            )
        elif command.command == "sow":
            fields["messages"] = tuple(
                QueuedMessage(
                    bookmark=f"{self.queue}:{partition}:{held.offset}", state="leased" if held.holder else "available"
                )
                for held in self.queues[partition].values()
                if command.state in ("", "leased" if held.holder else "available")
            )
        elif command.command == "renew" and (command.lease_ms or 0) > self.lease_ms:
            error, code = f"renew: lease_ms is {command.lease_ms}", ErrorCode.INVALID_ARGUMENT
        else:
            fields = self._settle(partition, command, now_ms)
        refused = bool(error) or any(item.result != "settled" for item in fields.get("settlements", ()))
        if self.dies_before_it_answers:
            return
        if command.answer == "all" or (command.answer == "errors" and refused):
            fields |= {"status": "error" if error else "ok", "error": error, "code": code if error else ""}
            self._answer(partition, command, encoding, at_ms=now_ms, **fields)

    def _answer(self, partition: int, command: commands.Command, encoding: Any, **fields: Any) -> None:
        answer = Answer(id=command.id, command=command.command, partition=partition, **fields)
        facts = {
            "lapse-kind": "answer",
            "lapse-subscription": command.subscription,
            "lapse-command-id": command.id,
            "lapse-epoch": str(self.epoch),
        }
        self._send(partition, facts, answers.encode(answer, encoding))

    def _settle(self, partition: int, command: commands.Command, now_ms: int) -> dict:
        fields: dict = {"settlements": []}
        for text in command.bookmarks:
            messages = BookmarkRange.parse(text)
            for place in messages:
                held = self.queues[partition].get(place.offset)
                if held is None:
                    result = "already_settled"
                elif command.command != "acknowledge" and messages.delivery_count not in (None, held.count):
                    result = "stale"
                else:
                    result = "settled"
                    if command.command == "renew":
                        fields["lease_until_ms"] = held.until_ms = now_ms + (command.lease_ms or self.lease_ms)
                    else:
                        self._release(partition, held)
                        if command.command != "cancel":
                            del self.queues[partition][place.offset]
                fields["settlements"].append(Settlement(bookmarks=str(place), result=result))
        return fields

    def _leave(self, partition: int, name: str) -> None:
        for held in self.queues[partition].values():
            if held.holder == name:
                self._release(partition, held)
        self.subscriptions[partition].pop(name, None)

    def _release(self, partition: int, held: Held) -> None:
        subscribed = self.subscriptions[partition].get(held.holder)
        if subscribed is not None:
            subscribed.outstanding.discard(held.offset)
        held.holder = ""

    def _send(
        self, partition: int, facts: dict[str, str], value: bytes | None, key: bytes | None = None, more: list = ()
    ) -> None:
        headers = [(name, text.encode()) for name, text in facts.items()] + list(more)
        self._producer.produce(topic.deliveries(self.queue), value, key, partition=partition, headers=headers)
