"""From records of the underlying topics to messages (L1 to L12)."""

from __future__ import annotations

from unit.core.queue.expected.due import Due
from unit.core.queue.expected.message import NEVER, Message, MessageEvent, Published


class Arrival(Due):
    """Records as they come."""

    def deadline(self, record: Published, duration_ms: int | None) -> int | None:
        """The deadline, None = never; raises ValueError where there can be none (C6, C9)."""
        start_ms = max(record.timestamp, -1 if record.enqueue_at_ms is None else record.enqueue_at_ms)
        ceiling_ms = duration_ms if self.settings.expiration.model == "ceiling" else None
        durations: list[int] = []
        absolutes: list[int] = []
        if record.expires_at_ms is not None:
            absolutes.append(record.expires_at_ms)
        elif record.ttl_ms is None:
            durations += [] if duration_ms is None else [duration_ms]
        elif record.ttl_ms > 0:
            durations.append(record.ttl_ms)
        if ceiling_ms is not None:
            durations.append(ceiling_ms)
        if durations:
            if start_ms == -1 or start_ms + min(durations) >= 2**63 - 1:
                raise ValueError
            absolutes.append(start_ms + min(durations))
        return min(absolutes) if absolutes and min(absolutes) < 2**63 - 1 else None

    def arrive(self, topic: str, partition: int, records: list[Published], now_ms: int = 0) -> None:
        """What is due comes before a record that is stamped then or later, however late it is read (C76)."""
        duration_ms = self.settings.expiration_of(topic).default_ms
        for record in records:
            if record.offset < self.next_offset.get((topic, partition), 0):
                continue
            if self.room():
                self.come_due(min(record.timestamp, now_ms))
            if not self.room():
                break
            self.next_offset[topic, partition] = record.offset + 1
            arrived_ms = min(record.timestamp, now_ms or NEVER)  # a stamp may be ahead of the clock (L5, L10)
            acknowledged = (topic, partition, record.offset) in self.remembered
            self.remembered = {
                one for one in self.remembered if one[:2] != (topic, partition) or one[2] > record.offset
            }
            if acknowledged:
                self.honour(topic, partition, record, duration_ms, arrived_ms)
                continue
            if record.redriven_for not in ("", self.settings.name):
                continue
            if record.transferred is not None and record.transferred[0] != self.settings.name:
                continue
            bookmark = (topic, partition, record.offset)
            if record.transferred is None and self.repeats(topic, partition, record):
                self.events.append(MessageEvent("repeated", bookmark))
                continue
            try:
                if record.broken:
                    raise ValueError
                deadline_ms = self.deadline(record, duration_ms)
            except ValueError:
                self._gone(Message(bookmark, "", None), now_ms or record.timestamp, "invalid_lifetime")
                continue
            message = Message(bookmark, "available", deadline_ms, body=record.body, retry=record.retry)
            self.read_traits(message)
            if self.late(message, arrived_ms):
                self._gone(message, now_ms or record.timestamp, "time_limit")
                continue
            if record.message_id and self.settings.dedup_window_ms and record.transferred is None:
                self.occupy(topic, partition, record)
            if record.transferred is not None:
                message.state, message.transfer, message.came = "unconfirmed", record.transferred[1], True
                message.deliveries, message.cancels = record.counts
                message.at_ms, message.then_ms = NEVER, record.enqueue_at_ms or 0
                self.messages[bookmark] = message
            elif record.enqueue_at_ms is not None and record.enqueue_at_ms > arrived_ms:
                message.state, message.at_ms = "scheduled", record.enqueue_at_ms
                self.messages[bookmark] = message
                self.events.append(MessageEvent("scheduled", bookmark))
            else:
                self.messages[bookmark] = message
                self.take_place(bookmark)

    def honour(self, topic: str, partition: int, record: Published, duration_ms: int | None, arrived_ms: int) -> None:
        """What was acknowledged before it was active uses its id up, if it would have entered (Q13, X6, C43)."""
        if record.redriven_for not in ("", self.settings.name) or record.transferred is not None or record.broken:
            return
        try:
            message = Message((topic, partition, record.offset), "", self.deadline(record, duration_ms))
        except ValueError:
            return
        used = record.message_id and self.settings.dedup_window_ms and not self.repeats(topic, partition, record)
        if used and not self.late(message, arrived_ms):
            self.occupy(topic, partition, record)

    def occupy(self, topic: str, partition: int, record: Published) -> None:
        """Note a record's id with its timestamp."""
        self.seen.setdefault((topic, partition, record.message_id), []).append(record.timestamp)

    def repeats(self, topic: str, partition: int, record: Published) -> bool:
        """Whether the record's id entered before it, with a timestamp less than the window away (X6, C43)."""
        seen_ms = self.seen.get((topic, partition, record.message_id), []) if record.message_id else []
        return any(abs(record.timestamp - one_ms) < self.settings.dedup_window_ms for one_ms in seen_ms)

    def read_traits(self, message: Message) -> None:
        """Priority, barrier and group, as far as the queue asks for them now (Q11, Q12, Q20, C31, C32)."""
        traits, body = self.settings.traits, message.body
        value = body.get("p")
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**70
        message.rank = int(value) if traits.priority and number and 0 <= int(value) < 2**64 else None
        message.barrier = bool(traits.barrier) and body.get("b") == "yes"
        group = body.get("g")
        group = int(group) if isinstance(group, float) and group.is_integer() else group
        message.group = repr(group) if traits.group and isinstance(group, str | int | float) else None
