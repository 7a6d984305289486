"""Answers that the journal keeps until Kafka has them, so that a crash loses none of them (C55).

A purge, a settlement by filter and similar commands have a further effect if they are carried out twice, so their
sender cannot ask again. Their step journals the answer too. So does that of a settlement by bookmarks that found
messages settled, because a second one could not tell that from its first copy's effect. Once Kafka has the answer, the
journal drops it. A new owner writes the answers that it still finds. So an answer may come twice, with the same id.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from lapse.core.queue.settlement.settlement import Result
from lapse.core.shard.answer import CommandAnswer
from lapse.core.shard.changelog import Items
from lapse.protocol import header
from lapse.protocol.command import Command
from lapse.protocol.repetition import bears_repetition
from lapse.runtime.kafka.output import Output

KEY: Final = b"\x00a"
_REST: Final = struct.Struct(">qq")
_MOST_BYTES: Final = 2 << 20
"""A larger answer is not kept, because it must fit into one RecordBatch of the journal."""

_SETTLING: Final = frozenset({"acknowledge", "expire", "cancel"})
_STANDING: Final = frozenset(
    {"heartbeat", "subscribe", "sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"}
)
"""Commands that clients send again after a take-over."""


class KeptAnswers:
    """The answers of one shard that Kafka may not have yet.

    Args:
        epoch: the shard's epoch.
        journal: the runtime's keys of the changelog, in which earlier epochs may have left answers.
    """

    def __init__(self, epoch: int, journal: Mapping[bytes, bytes] | None = None) -> None:
        self._epoch = epoch
        self._number = 0
        self._expected: set[str] = set()
        self._settling: set[str] = set()
        self._forgotten: list[bytes] = []
        self._left = {key: value for key, value in (journal or {}).items() if key.startswith(KEY)}

    def expect(self, command: Command) -> None:
        """Note that a command is carried out. Its answer is kept if the command cannot be repeated."""
        if command.answer != "all" or command.command in _STANDING:
            return
        if not bears_repetition(command):
            self._expected.add(command.id)
        elif command.command in _SETTLING and command.bookmarks:
            self._settling.add(command.id)

    def keep(self, answer: CommandAnswer, written: Output) -> Items:
        """Return the journal item that keeps an answer; none if it need not be kept.

        Args:
            answer: the answer. Answers to deletions are always kept, since an earlier epoch may have been asked.
            written: its record.
        """
        found_settled = answer.id in self._settling and _has_found_settled(answer)
        self._settling.discard(answer.id)
        if answer.id not in self._expected and answer.command != "delete" and not found_settled:
            return []
        self._expected.discard(answer.id)
        if written.value is None or len(written.value) > _MOST_BYTES:
            return []
        self._number += 1
        return [(KEY + _REST.pack(self._epoch, self._number), _encode(written))]

    def written(self, keys: Iterable[bytes]) -> None:
        """Note that Kafka has the answers with these journal keys."""
        self._forgotten += keys

    def forgotten(self) -> Items:
        """Return items that remove answers from the journal that Kafka has."""
        done, self._forgotten = self._forgotten, []
        return [(key, None) for key in done]

    def left(self, topics: Iterable[str]) -> list[Output]:
        """Return answers of earlier epochs whose topics are among `topics`, to be written again."""
        known = set(topics)
        answers = [_decode(value, self._epoch) for _, value in sorted(self._left.items())]
        self.written(self._left)
        self._left = {}
        return [answer for answer in answers if answer.topic in known]


def _has_found_settled(answer: CommandAnswer) -> bool:
    settlements: Any = dict(answer.facts).get("settlements", ())
    return any(one.result == Result.ALREADY_SETTLED for one in settlements)


def _encode(answer: Output) -> bytes:
    names = {name: value.decode() for name, value in answer.headers if name != header.EPOCH}
    return json.dumps([answer.topic, answer.partition, names]).encode() + b"\n" + (answer.value or b"")


def _decode(kept: bytes, epoch: int) -> Output:
    facts, _, value = kept.partition(b"\n")
    topic, partition, names = json.loads(facts)
    headers: list[tuple[str, Any]] = [(name, text.encode()) for name, text in names.items()]
    return Output(topic, partition, None, value, [*headers, (header.EPOCH, b"%d" % epoch)])
