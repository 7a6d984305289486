"""A fake SOW topic that clients are tested against without a worker: all shards in one thread, JSON payloads."""

import threading
import time

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.core.error_code import ErrorCode
from lapse.core.expression import ExpressionError, compile_filter, compile_value
from lapse.protocol import answer as answers
from lapse.protocol import command as commands
from lapse.protocol import header, topic
from lapse.protocol.answer import Answer, OpenSubscription, ScheduledUpdate
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command import Command
from lapse.topic_creation import NewTopic
from support.kafka.created_topic import create


class ScriptedSow:
    """Serves one SOW topic over the topic of the same name, until `stop`."""

    def __init__(self, servers: str, name: str, partitions: int) -> None:
        self.servers, self.name, self.partitions = servers, name, partitions
        self.records: list[dict[bytes, tuple[int, bytes]]] = [{} for _ in range(partitions)]
        self.scheduled: list[dict[int, tuple[ScheduledUpdate, bytes]]] = [{} for _ in range(partitions)]
        self.subscriptions: list[dict[str, Command]] = [{} for _ in range(partitions)]
        self._seen: list[dict[str, set[bytes]]] = [{} for _ in range(partitions)]
        self.refusals = 1
        """How many answers say that there is no such subscription, as if that many heartbeats had come together."""
        self.queries_lost = [0] * partitions
        """By shard, how many subscriptions are lost before their queries are finished."""
        self.groups = 0
        """How many results of queries were begun."""
        self.most_sent: int | None = None
        """After how many records a result breaks off, as if the worker died; None = it is whole."""
        self.ended: dict[int, int] = {}
        """By shard that has ended with its topic, how many heartbeats it has refused."""
        self._epoch = 1
        self._running = True
        admin = AdminClient({"bootstrap.servers": servers})
        names = [name, topic.commands(name), topic.deliveries(name), topic.sow(name)]
        create(admin, *(NewTopic(one, partitions, 1) for one in names))
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "enable.idempotence": True})
        options = {"group.id": "scripted", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self._consumer = Consumer({"bootstrap.servers": servers, **options})
        self._consumer.assign([TopicPartition(one, p, 0) for one in names[:2] for p in range(partitions)])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._running = False
        self._thread.join()
        self._consumer.close()
        self._producer.flush(10)

    def forget(self) -> None:
        for subscriptions in self.subscriptions:
            subscriptions.clear()

    def take_over(self) -> None:
        """Begin the next epoch of every shard. Results are whole from now on."""
        self.most_sent = None
        self._epoch += 1
        for partition in range(self.partitions):
            self._send(partition, {"lapse-kind": "epoch", "lapse-epoch": str(self._epoch)})

    def begin_again(self, partition: int, gone: bytes) -> None:
        """Begin the queries of a shard's subscriptions again, as after a take-over. A record has left meanwhile."""
        del self.records[partition][gone]
        for command in list(self.subscriptions[partition].values()):
            self._group(partition, command)

    def end(self, partition: int) -> None:
        """End a shard, because the topic is deleted with all records."""
        for key in list(self.records[partition]):
            self._update(partition, key, None)
        self.ended[partition] = 0

    def size(self) -> int:
        return sum(map(len, self.records))

    def _run(self) -> None:
        while self._running:
            message = self._consumer.poll(0.01)
            self._producer.poll(0)
            if message is None or message.error():
                continue
            partition = message.partition()
            if message.topic() == self.name and header.ENQUEUE_AT_MS in (headers := dict(message.headers() or [])):
                at_ms, place = int(headers[header.ENQUEUE_AT_MS]), f"{self.name}:{partition}:{message.offset()}"
                update = ScheduledUpdate(bookmark=place, key=message.key().decode(), enqueue_at_ms=at_ms)
                self.scheduled[partition][message.offset()] = update, message.value()
            elif message.topic() == self.name:
                self._update(partition, message.key(), message.value(), message.offset())
            else:
                command, _ = commands.decode(message.value())
                try:
                    self._command(partition, command)
                except ExpressionError as error:
                    self._answer(partition, command, error=f"filter: {error}", code=ErrorCode.INVALID_EXPRESSION)

    def _update(self, partition: int, key: bytes, value: bytes | None, offset: int = -1) -> None:
        if value is None:
            if self.records[partition].pop(key, None):
                for name in self.subscriptions[partition]:
                    self._leaves_view(partition, name, key, "deleted")
            return
        self.records[partition][key] = (offset, value)
        for name, command in self.subscriptions[partition].items():
            if command.filter is None or compile_filter(command.filter).match(orjson.loads(value)):
                facts = {"lapse-kind": "publish", "lapse-bookmark": f"{self.name}:{partition}:{offset}"}
                self._send(partition, {**facts, "lapse-subscription": name}, key, value)
                self._seen[partition][name].add(key)
            else:
                self._leaves_view(partition, name, key, "no_longer_matches")

    def _leaves_view(self, partition: int, name: str, key: bytes, why: str) -> None:
        """Send an out-of-focus notice to a subscriber that has got the record."""
        if key in self._seen[partition][name]:
            self._seen[partition][name].discard(key)
            facts = {"lapse-kind": "oof", "lapse-operation": why, "lapse-reasons": ""}
            self._send(partition, {**facts, "lapse-subscription": name}, key, None)

    def _command(self, partition: int, command: Command) -> None:
        records = self.records[partition]
        match command.command:
            case "sow" if command.state == "scheduled":
                waiting = sorted(
                    (self.scheduled[partition][at][0] for at in self._selected_updates(partition, command)), key=_due
                )
                first = command.skip or 0
                shown = waiting[first:][: command.top_n]
                self._answer(partition, command, counts={"scheduled": len(waiting)}, updates=tuple(shown))
            case "sow":
                self._group(partition, command)
            case "subscribe" | "sow_and_subscribe" | "delta_subscribe" | "sow_and_delta_subscribe":
                self._subscribe(partition, command)
            case "heartbeat" if partition in self.ended:
                self._answer(partition, command, error=f"{self.name} is no more", code=ErrorCode.DELETED)
                self.ended[partition] += 1
            case "heartbeat" if command.subscription not in self.subscriptions[partition]:
                for _ in range(self.refusals):
                    unknown = "unknown subscription 'x'"
                    self._answer(partition, command, error=unknown, code=ErrorCode.UNKNOWN_SUBSCRIPTION)
            case "unsubscribe":
                self.subscriptions[partition].pop(command.subscription, None)
                self._answer(partition, command)
            case "subscriptions":
                known = tuple(OpenSubscription(subscription=name, since_ms=1) for name in self.subscriptions[partition])
                self._answer(partition, command, subscriptions=known)
            case "depth":
                counts = {"records": len(records), "scheduled": len(self.scheduled[partition])}
                self._answer(partition, command, counts=counts)
            case "sow_delete" if command.state == "scheduled":
                withdrawn = self._selected_updates(partition, command)
                for offset in withdrawn:
                    del self.scheduled[partition][offset]
                self._answer(partition, command, counts={"removed": len(withdrawn)})
            case "sow_delete":
                gone = [key for key in command.keys if key in records]
                if command.filter is not None:
                    match = compile_filter(command.filter).match
                    gone = [key for key, (_, value) in records.items() if match(orjson.loads(value))]
                for key in gone:
                    self._update(partition, key, None)
                self._answer(partition, command, counts={"removed": len(gone)})

    def _subscribe(self, partition: int, command: Command) -> None:
        self.subscriptions[partition][command.subscription] = command
        self._seen[partition][command.subscription] = set()
        if command.command == "sow_and_subscribe" and self.queries_lost[partition]:
            self.queries_lost[partition] -= 1
            del self.subscriptions[partition][command.subscription]
            self._begin_group(partition, command)
            ended = "subscription 'x' ended before its query was finished"
            self._answer(partition, command, error=ended, code=ErrorCode.UNKNOWN_SUBSCRIPTION)
        elif command.command == "sow_and_subscribe":
            self._group(partition, command)
        else:
            self._answer(partition, command)

    def _selected_updates(self, partition: int, command: Command) -> list[int]:
        """Return the offsets of the scheduled updates that a command selects."""
        waiting = self.scheduled[partition]
        if command.bookmarks:
            ranges = [BookmarkRange.parse(text) for text in command.bookmarks]
            return [
                at
                for at in waiting
                if any(
                    (one.topic, one.partition) == (self.name, partition) and one.first <= at <= one.last
                    for one in ranges
                )
            ]
        if command.filter is None:
            return list(waiting)
        match = compile_filter(command.filter).match
        return [at for at, (_, value) in waiting.items() if match(orjson.loads(value))]

    def _group(self, partition: int, command: Command) -> None:
        found = [
            (key, offset, value)
            for key, (offset, value) in self.records[partition].items()
            if (not command.keys or key in command.keys)
            and (command.filter is None or compile_filter(command.filter).match(orjson.loads(value)))
        ]
        if command.order_by is not None:
            text, _, way = command.order_by.partition(" ")
            evaluate = compile_value(text).evaluate
            found.sort(key=lambda item: evaluate(orjson.loads(item[2])), reverse=way == "DESC")
            values = {key: orjson.dumps(evaluate(orjson.loads(value))).decode() for key, _, value in found}
        facts = self._begin_group(partition, command)
        if command.command == "sow_and_subscribe":
            self._seen[partition][command.subscription].update(key for key, _, _ in found)
        for key, offset, value in found[: command.top_n][: self.most_sent]:
            place = f"{self.name}:{partition}:{offset}"
            more = {"lapse-order-value": values[key]} if command.order_by is not None else {}
            more |= {"lapse-bookmark": place, "lapse-timestamp-ms": "5", "lapse-expires-at-ms": str(offset + 10_000)}
            self._send(partition, {"lapse-kind": "sow", **facts, **more}, key, value)
        self.groups += 1
        if self.most_sent is not None:
            return
        self._send(partition, {"lapse-kind": "group-end", **facts})
        self._answer(partition, command, counts={"records": len(found)})

    def _begin_group(self, partition: int, command: Command) -> dict[str, str]:
        """Begin the result of a query; return the headers of its records."""
        facts = {"lapse-subscription": command.subscription, "lapse-command-id": command.id}
        facts["lapse-epoch"] = str(self._epoch)
        self._send(partition, {"lapse-kind": "group-begin", **facts})
        return facts

    def _answer(
        self,
        partition: int,
        command: Command,
        error: str = "",
        counts: dict[str, int] | None = None,
        code: str = "",
        subscriptions: tuple[OpenSubscription, ...] = (),
        updates: tuple[ScheduledUpdate, ...] = (),
    ) -> None:
        if command.answer == "none" or (command.answer == "errors" and not error):
            return
        answer = Answer(
            id=command.id,
            command=command.command,
            status="error" if error else "ok",
            subscriptions=subscriptions,
            updates=updates,
            error=error,
            code=code,
            partition=partition,
            at_ms=int(time.time() * 1000),
            counts=counts or {},
        )
        facts = {"lapse-kind": "answer", "lapse-subscription": command.subscription, "lapse-command-id": command.id}
        self._send(partition, facts, None, answers.encode(answer, "avro"))

    def _send(
        self, partition: int, facts: dict[str, str], key: bytes | None = None, value: bytes | None = None
    ) -> None:
        headers = [(name, text.encode()) for name, text in facts.items()]
        self._producer.produce(topic.deliveries(self.name), value, key, partition=partition, headers=headers)


def _due(update: ScheduledUpdate) -> int:
    return update.enqueue_at_ms
