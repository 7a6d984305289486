"""What a runner drives: the state machine of one shard with its wire formats around it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from faust.types import TP

from lapse.core.error_code import Refusal
from lapse.runtime.journal.store import Items
from lapse.runtime.kafka.producer import Output, Packed
from lapse.runtime.letters.expiry_rule import ExpiryRule
from lapse.runtime.letters.letter_retry import LetterRetry, Write
from lapse.runtime.shard.command_authorizer import CommandAuthorizer
from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.shard.under_way import UnderWay


@dataclass(slots=True)
class Effects:
    """What a step does to the world, in the order in which it must happen (design: order of effects).

    Attributes:
        before: events, and whatever else has to be safe before the journal is written; letters are already.
        journal: the step's changes; empty = nothing has to be durable.
        after: deliveries and answers; sent once the journal is safe.
        must_arrive: whether they have to be safe before the next step (C35).
        step: by which number the journal knows the step (C55).
    """

    before: list[Output | Packed] = field(default_factory=list)
    journal: Items = field(default_factory=list)
    after: list[Output | Packed] = field(default_factory=list)
    must_arrive: bool = False
    step: int = 0


class Machine(Protocol):
    """One shard's state machine, with the wire around it; `lapse.runtime.queue` and `lapse.runtime.sow` have one each.

    Inputs collect into a step; `finish` ends the step.

    Attributes:
        figures: what the shard has done.
        rule: what is called with each message that leaves; None = nothing is (L15).
        step_records: how many messages make a step, at most.
        most_at_once: after so many others have their turn.
        step_turns: how often `advance` is called in a step, at most.
        delivery_turns: how often `deliver` is.
        delivery_patience_s: a delivery that Kafka has not taken for so long ends the process: it would come too late.
        retry: the letters that the broker refused (C27).
        under_way: notes what the machine is doing, so that what stops the worker again and again can be set aside (X7).
    """

    figures: ShardFigures
    rule: ExpiryRule | None
    step_records: int
    most_at_once: int
    step_turns: int
    delivery_turns: int
    delivery_patience_s: float
    retry: LetterRetry[Any]
    under_way: UnderWay

    def guarded(self, authorizer: CommandAuthorizer) -> None:
        """Let users in by an authorizer only; before the first command (X4)."""

    @property
    def waits_for_ends(self) -> bool:
        """Whether timers have to wait until the underlying logs are read as far as they reached (C1)."""

    @property
    def merged_by_time(self) -> bool:
        """Whether messages of all partitions have to arrive in the order of their timestamps (Q17, C33)."""

    @property
    def takes_ahead(self) -> bool:
        """Whether `arrive` and `advance` may come while the effects of the step before are being written."""

    def room(self) -> int:
        """How many more messages it takes now (Q13)."""

    def room_for(self, topic: str, partition: int) -> int:
        """How many more messages of an underlying partition it takes now."""

    def arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        """Take in records of an underlying topic; how many there was room for: the rest has to come again (C51)."""

    def set_aside(self, topic: str, partition: int, record: Any, why: str) -> None:
        """Take in a record that stopped the worker again and again: unread, as a dead letter (X7)."""

    def command(self, record: Any, refused: Refusal | None = None) -> None:
        """Carry out a record of the commands topic; with a reason to refuse it, answer with that instead."""

    @property
    def stopped(self) -> bool:
        """Whether the entity is deleted and nothing is left to do, so that nothing may be written any more (C4)."""

    @property
    def step_bytes(self) -> int:
        """About how many bytes the step takes in the journal so far; a step is one RecordBatch."""

    @property
    def unfinished(self) -> int | None:
        """Offset of the command that it is in the middle of: none is handed to it before `go_on` has ended that one."""

    def go_on(self) -> None:
        """Do a part of that command."""

    def advance(self, now_ms: int) -> None:
        """Do what is due; may stop early, `next_due_ms` is then still due."""

    def took(self, seconds: float) -> None:
        """Learn how long the last step took, until all was written: a crowd leaves in smaller parts then (C60)."""

    def deliver(self, now_ms: int) -> bool:
        """Hand out what can be handed out; True if there is more."""

    def next_due_ms(self) -> int:
        """The next instant at which `advance` has something to do."""

    def is_due(self, at_ms: int) -> bool:
        """Whether `advance` has something to do at an instant; not while all that is due waits for arrivals."""

    def waits_for_arrivals(self, at_ms: int) -> bool:
        """Whether something is due at an instant that has to stand behind what arrived before it (C76)."""

    def arrivals_are_in(self, to_ms: int) -> None:
        """Know that what arrived up to an instant was taken in."""

    def begin_topics(self, replaced: Collection[str], since: Mapping[TP, int]) -> None:
        """Know which topics were created anew, and since when sources are what they are; before all else (C42)."""

    def replace(self, topics: Collection[str], now_ms: int) -> bool:
        """Close what is known of topics that were created anew; False if there is more to close in the next step."""

    def held_sources(self) -> list[TP]:
        """Partitions whose records may still be needed."""

    def log_begins(self, tp: TP, begin_offset: int, now_ms: int) -> bool:
        """Let go of records that Kafka has removed; False if there are more for the next step (C40)."""

    def take_over(self, now_ms: int) -> Items:
        """Begin an epoch: what the journal is to hold before the first step."""

    def maintain(self) -> Items:
        """What the journal is to hold before the next step; `finish` may add to it."""

    def gauges(self) -> dict[str, int]:
        """How things stand now, by name."""

    async def oldest_ms(self) -> int | None:
        """Arrival of the oldest message or record that is held, ms since the epoch; None if that has no meaning."""

    async def finish(self, write_letters: Write) -> Effects:
        """End the step: its letters are written, and what is refused stays in the state."""

    def look_up(self, key: bytes, now_ms: int) -> bytes | None:
        """The value of a table key; None if there is none, or it has expired."""

    def look_through(self, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values."""
