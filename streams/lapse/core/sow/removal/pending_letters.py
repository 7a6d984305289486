"""Pending letters of a SOW topic: dead letters that the broker refuses are kept until it takes them (C27, D3).

A record that was refused on arrival is in the underlying log, so only its position is kept. A record that expired is
nowhere else in its last state, so it is kept whole.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any, Final

from lapse.core.reason import Reason
from lapse.core.shard.event import EventKind, ShardEvent
from lapse.core.sow import journal
from lapse.core.sow.state import SowState
from lapse.core.sow.step import EventRecord, Removal, Step
from lapse.protocol.bookmark import Bookmark

_KEY: Final = struct.Struct(">Iq")
_SIZE: Final = struct.Struct(">I")
_MOST_BYTES: Final = 7 << 20
"""A larger letter does not fit into the journal. The last update of its record is read from the log again."""


def journal_key_of(source: int, offset: int) -> bytes:
    """Return the journal key of a pending letter."""
    return journal.DYING + _KEY.pack(source, offset)


def source_and_offset(journal_key: bytes) -> tuple[int, int]:
    """Return source and offset of a pending letter's journal key."""
    source, offset = _KEY.unpack_from(journal_key, 1)
    return source, offset


def pack(letter: Removal) -> bytes:
    """Return the journal's bytes of a letter."""
    facts: dict[str, Any] = {
        "timestamp_ms": letter.timestamp_ms,
        "reasons": list(map(str, letter.reasons)),
        "at_ms": letter.at_ms,
        "deadline_ms": letter.deadline_ms,
        "detail": letter.detail,
    }
    if letter.record_key is not None:
        facts["record_key"] = _text(letter.record_key)
    if not letter.in_log:
        copied = facts | {
            "key": _text(letter.key),
            "headers": [(name, _text(value)) for name, value in letter.headers],
            "null": letter.value is None,
        }
        head = json.dumps(copied).encode()
        if len(head) + len(letter.value or b"") <= _MOST_BYTES:
            return _SIZE.pack(len(head)) + head + (letter.value or b"")
    head = json.dumps(facts).encode()
    return _SIZE.pack(len(head)) + head


def unpack(data: bytes, bookmark: Bookmark) -> Removal:
    """Read the journal's bytes of a letter. A letter that is `in_log` lacks key, value and headers."""
    size = _SIZE.unpack_from(data)[0]
    facts = json.loads(data[_SIZE.size : _SIZE.size + size])
    in_log = "null" not in facts
    value = None if in_log or facts["null"] else data[_SIZE.size + size :]
    return Removal(
        bookmark,
        None if in_log else _bytes(facts["key"]),
        value,
        () if in_log else tuple((name, _bytes(content)) for name, content in facts["headers"]),
        facts["timestamp_ms"],
        tuple(map(Reason, facts["reasons"])),
        facts["at_ms"],
        facts["deadline_ms"],
        facts["detail"],
        in_log,
        record_key=_bytes(facts.get("record_key")),
    )


class PendingLetters:
    """Keeps refused letters, and drops them once they are written.

    Args:
        state: the shard's state.
    """

    __slots__ = ("_state",)

    def __init__(self, state: SowState) -> None:
        self._state = state

    def keep_refused(self, refused: Sequence[tuple[Removal, str]], step: Step) -> list[bytes]:
        """Keep letters of a step, each with the reason for its refusal. Return their journal keys."""
        faults = {letter.bookmark: fault for letter, fault in refused}
        for at, one in enumerate(step.events):
            if one.kind == EventKind.DEAD_LETTERED and isinstance(one.messages, EventRecord):
                fault = faults.get(one.messages.bookmark)
                if fault is None:
                    continue
                detail = f"{one.detail or ', '.join(one.reasons)}; its dead letter was refused: {fault}"
                step.events[at] = one._replace(kind=EventKind.DYING, detail=detail)
        journal_keys: list[bytes] = []
        for letter, _ in refused:
            source = self._state.source(letter.bookmark.topic, letter.bookmark.partition, step)
            journal_keys.append(journal_key_of(source, letter.bookmark.offset))
            self._state.apply_change(step, journal_keys[-1], pack(letter))
        return journal_keys

    def letter_written(self, journal_key: bytes, step: Step) -> None:
        """Drop a letter, because it is safe. Do nothing if it was dropped before."""
        packed = self._state.pending.get(journal_key)
        if packed is None:
            return
        letter = unpack(packed, self._state.bookmark(*source_and_offset(journal_key)))
        key = letter.key if letter.record_key is None else letter.record_key
        step.events.append(
            ShardEvent(
                EventKind.DEAD_LETTERED,
                letter.at_ms,
                EventRecord(letter.bookmark, key, letter.deadline_ms),
                detail=letter.detail,
                reasons=letter.reasons,
            )
        )
        self._state.apply_change(step, journal_key, None)


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
