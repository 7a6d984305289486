"""The dead letters of a shard: a letter is safe before what it is about leaves the shard (D3).

This is the one place where that is decided:

1. A step ends. The letters of what it removes are written, and Kafka has confirmed them, before the step's events and
   its journal are written. A crash before that leaves everything as it was; a crash behind the letters has them written
   once more, with the same ids.
2. Kafka refuses a letter. What it is about does not leave: the step says `dying` of it instead, and the journal keeps
   it, with what its letter has to say (C27). The other messages of the step go on.
3. The letter is tried again beside the shard, less and less often, until Kafka has it.
4. Then the next step lets the message go: its event says that it left, and the journal forgets it.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from lapse.core.shard.step import Step
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.letters.letter_retry import LetterRetry
from lapse.runtime.letters.refusal import Write, WriteExpired
from lapse.runtime.shard.effects import StepInFlight
from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Step[Any, Any, Any])
"""A step of the core."""

F = TypeVar("F", bound=StepInFlight[Any])
"""That step on its way."""

AnyStep = TypeVar("AnyStep", bound=Step[Any, Any, Any], contravariant=True)
AnyFlight = TypeVar("AnyFlight", bound=StepInFlight[Any], contravariant=True)

Removed = TypeVar("Removed")
"""What one letter is about, in the words of the shard."""

LetterKey = TypeVar("LetterKey", bound=Hashable)
"""By which the shard keeps something whose letter is refused."""


class LetterSource(Protocol[AnyFlight, AnyStep, Removed, LetterKey]):
    """What a kind of shard knows of its dead letters."""

    async def letters_of(self, at_work: AnyFlight) -> tuple[Sequence[Output | Packed], Sequence[Removed]]:
        """The letters of a step, and what each of them is about, in the same order; the rule learns of what left."""

    def expired(self, at_work: AnyFlight) -> Mapping[TP, int] | None:
        """The sources of a step's letters, each with the offset behind the last message, if time alone removes them.

        None if a letter has another reason.
        """

    def keep_pending(self, refused: Sequence[tuple[Removed, str]], step: AnyStep) -> Iterable[tuple[LetterKey, str]]:
        """Keep what refused letters are about, each with why; returns the keys of those to try again, with why."""

    async def pending_letter(self, letter_key: LetterKey) -> Output | Packed | None:
        """The letter of something that is kept, to be tried again; None = it is gone."""

    def letter_written(self, letter_key: LetterKey, step: AnyStep) -> None:
        """Let go of something that was kept; nothing to do if it went before."""


class ShardLetters(Generic[F, S, Removed, LetterKey]):
    """Writes the letters of one shard's steps.

    Args:
        shard: its entity and partition, for people.
        source: knows the letters.
        left: what an earlier epoch kept.
        figures: the shard's.

    Attributes:
        source: the same.
        retry: the letters that Kafka refused.
    """

    def __init__(
        self,
        shard: str,
        source: LetterSource[F, S, Removed, LetterKey],
        left: Iterable[LetterKey],
        figures: ShardFigures,
    ) -> None:
        self._shard = shard
        self.source = source
        self._figures = figures
        self.retry: LetterRetry[LetterKey] = LetterRetry(shard, source.pending_letter, left)

    async def write(self, at_work: F, write: Write, write_expired: WriteExpired | None = None) -> None:
        """Write the letters of a step; what is refused stays.

        Args:
            at_work: the step.
            write: writes letters, and says which of them Kafka refuses.
            write_expired: the same for a step whose letters are all about messages whose time is over.
        """
        letters, about = await self.source.letters_of(at_work)
        if not letters:
            return
        self._figures.letters_waiting = len(about)
        if write_expired is None or (expired := self.source.expired(at_work)) is None:
            refused = await write(letters)
        else:
            refused = await write_expired(letters, expired)
        self._figures.letters_waiting = 0
        if not refused:
            return
        why = next(iter(refused.values())).why
        logger.warning("%s: %d dead letters refused, to be tried again: %s", self._shard, len(refused), why)
        kept = [(about[at], refusal.why) for at, refusal in refused.items()]
        self.retry.add(self.source.keep_pending(kept, at_work.core))

    def let_go(self, step: S) -> None:
        """Let go of what was kept and whose letters are safe at last; a barrier may wait for that (C48)."""
        for letter_key in self.retry.safe():
            self.source.letter_written(letter_key, step)
