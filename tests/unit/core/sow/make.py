"""Records and commands for tests of the SOW shard."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lapse.core.lifetime import NEVER, Expiration, ExpirationModel
from lapse.core.reason import Reason
from lapse.core.sow import journal
from lapse.core.sow.query.query import Query
from lapse.core.sow.records.record import payload_of
from lapse.core.sow.settings import SowSettings
from lapse.core.sow.shard import SowShard
from lapse.core.sow.step import (
    EventRecord,
    ExpiryBatch,
    Kind,
    Message,
    OutOfFocus,
    OutOfFocusBatch,
    SowEvent,
    StateDelete,
    Step,
)
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.command import Command

T = 1_700_000_000_000
"""An instant to count from."""


@dataclass(frozen=True, slots=True)
class Arrived:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp_type: int = 1


def expiration(default_ms: int | None = None, model: str = "override", *, enabled: bool = True) -> Expiration:
    return Expiration(enabled, default_ms, ExpirationModel(model))


def shard_of(default_ms: int | None = None, model: str = "override", *, enabled: bool = True, **more: Any) -> SowShard:
    return SowShard(SowSettings(name="orders", expiration=expiration(default_ms, model, enabled=enabled), **more))


class RecordEvent(NamedTuple):
    """An event of one record, or of a subscription."""

    kind: str
    at_ms: int
    bookmark: Bookmark | None
    key: bytes | None
    deadline_ms: int
    reasons: tuple[Reason, ...]
    subscription: str
    detail: str


def events_of(one: SowEvent, shard: SowShard) -> list[RecordEvent]:
    match one.messages:
        case None:
            about = [(None, None, NEVER)]
        case EventRecord() as record:
            about = [record]
        case ExpiryBatch(records):
            about = [(shard.state.bookmark(source, offset), key, deadline) for key, source, offset, deadline in records]
    return [RecordEvent(one.kind, one.at_ms, *record, one.reasons, one.subscription, one.detail) for record in about]


def messages_of(some: Message | OutOfFocusBatch, shard: SowShard) -> list[Message]:
    if isinstance(some, Message):
        return [some]
    views = [shard.state.view(b"r" + key, entry) for key, entry in some.records]
    return [view.message(Kind.OUT_OF_FOCUS, some.subscription, reason=OutOfFocus.EXPIRED) for view in views]


def state_records(step: Step) -> Iterator[tuple[bytes, bytes | None, StateDelete | None]]:
    """What the compacted topic gets of a step: key, packed record or None, and how it left as far as that is known."""
    for name, entry in step.changes.items():
        if name.startswith(journal.RECORD):
            yield name[1:], entry, step.state_deletes.get(name) if entry is None else None


class Desk:
    """A shard with a log, a journal and a clock: what the runtime is to it."""

    def __init__(self, shard: SowShard) -> None:
        self.shard = shard
        self.offsets: dict[tuple[str, int], int] = {}
        self.journal: dict[bytes, bytes] = {}
        self.compacted: dict[bytes, bytes] = {}

    def put(
        self,
        key: bytes | str | None,
        payload: Any,
        at: int,
        *,
        topic: str = "t",
        partition: int = 0,
        raw: bool = False,
        **headers: Any,
    ) -> Step:
        """Publish; headers by name with underscores; `raw` takes the payload as bytes."""
        offset = self.offsets.get((topic, partition), 0)
        self.offsets[topic, partition] = offset + 1
        value = payload if raw or payload is None else json.dumps(payload).encode()
        pairs = [
            (name.replace("_", "-"), content if isinstance(content, bytes) else str(content).encode())
            for name, content in headers.items()
        ]
        record = Arrived(offset, T + at, key.encode() if isinstance(key, str) else key, value, pairs)
        return self.step(lambda step: self.shard.arrive(topic, partition, [record], step))

    def ask(self, command: str, at: int, *, row_filter: str | None = None, timely: bool = True, **fields: Any) -> Step:
        """Send a command; `timely` = the timers due by then have acted."""
        fields.setdefault("id", "c")
        step = Step()
        while timely and self.shard.advance(T + at, step):
            pass
        self.shard.commands.handle(Command(command=command, **fields), T + at, step, row_filter)
        for deletion in step.deletions:
            while not deletion.finished:
                self.shard.continue_deletion(deletion, step)
        return self.keep(step)

    def advance(self, at: int) -> Step:
        step = Step()
        while self.shard.advance(T + at, step):
            pass
        return self.keep(step)

    def pull(self, query: Query, at: int) -> Step:
        return self.step(lambda step: self.shard.pull(query, T + at, step))

    def answer(self, step: Step, at: int) -> list[Message]:
        """All messages of the step's one query."""
        messages = list(step.deliveries)
        for query in step.queries:
            while not query.finished:
                pulled = self.pull(query, at)
                step.answers += pulled.answers
                messages += pulled.deliveries
        return messages

    def select(self, at: int, **fields: Any) -> list[Any]:
        """Payloads that a query returns."""
        messages = self.answer(self.ask("sow", at, **fields), at)
        assert messages[0].kind == "group-begin"
        assert messages[-1].kind == "group-end"
        return [json.loads(message.payload) for message in messages[1:-1] if message.payload is not None]

    def step(self, do: Any) -> Step:
        step = Step()
        do(step)
        return self.keep(step)

    def keep(self, step: Step) -> Step:
        """Journal a step; what it tells of many records at once is told of each."""
        step.events[:] = [one for some in step.events for one in events_of(some, self.shard)]
        step.deliveries[:] = [one for some in step.deliveries for one in messages_of(some, self.shard)]
        for name, value in step.changes.items():
            if value is None:
                self.journal.pop(name, None)
            else:
                self.journal[name] = value
        for key, entry, _ in state_records(step):
            if entry is None:
                self.compacted.pop(key, None)
            else:
                self.compacted[key] = payload_of(entry)
        return step

    def crash(self, at: int, settings: SowSettings | None = None) -> Step:
        """Kill the shard, and restore another from the journal."""
        self.shard = SowShard(settings or self.shard.settings)
        self.shard.restore(self.journal.items())
        return self.step(lambda step: self.shard.take_over(T + at, step))
