"""What a subscriber makes of the messages that it gets."""

from __future__ import annotations

import json

from lapse.core.sow.step import Kind, Message
from unit.core.sow.oracle import merged


class Mirror:
    """The picture that a subscriber has of the records; complains of a gap or a duplicate."""

    def __init__(self) -> None:
        self.rows: dict[bytes, dict] = {}
        self.complete = True
        self.strict = True
        """A shard that took over may tell once more what has left."""

    def take(self, message: Message) -> None:
        if message.kind is Kind.GROUP_BEGIN:
            self.rows = {}
            self.complete = False
        elif message.kind is Kind.GROUP_END:
            assert not self.complete, "an end without a begin"
            self.complete = True
        elif message.kind is Kind.SOW:
            assert not self.complete, "outside a group"
            assert message.key not in self.rows, "told twice"
            self.rows[message.key] = json.loads(message.payload)
        elif message.kind is Kind.PUBLISH:
            self.rows[message.key] = json.loads(message.payload)
        elif message.kind is Kind.DELTA:
            assert message.key in self.rows, "a delta to what was never seen"
            self.rows[message.key] = merged(self.rows[message.key], json.loads(message.payload))
        else:
            assert message.reason is not None
            assert message.key in self.rows or not self.strict, "out of focus without having been in it"
            self.rows.pop(message.key, None)
