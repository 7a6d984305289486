"""The dead letters of a shard. A letter is written before its message or record leaves the shard (D3).

Only this module decides that, in four stages:

1. A step ends. The letters of its removals are written and confirmed by Kafka before its events and its journal are
   written. A crash before that changes nothing. After a crash behind the letters, they are written again with the same
   ids.
2. Kafka refuses a letter. The message does not leave: the step emits the event `dying` instead, and the journal keeps
   the message with what its letter must say (C27). The other messages of the step go on.
3. The letter is tried again beside the shard, less and less often, until Kafka has it.
4. The next step removes the message: its event says that it left, and the journal drops it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from lapse.core.shard.contract import Shard
from lapse.core.shard.step import Step
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.letters.letter_retry import LetterRetry
from lapse.runtime.letters.refusal import Refusal, Write, WriteExpired
from lapse.runtime.shard.effects import StepInFlight
from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)

PART: Final = 512
"""The least number of letters that are written while the next letters of the step are made."""

_TURNS_TO_KAFKA: Final = 6
"""The greatest number of turns of the loop until a write is on its way."""

F = TypeVar("F", bound=StepInFlight[Any])
"""A step in flight."""

AnyFlight = TypeVar("AnyFlight", bound=StepInFlight[Any], contravariant=True)

Removed = TypeVar("Removed", covariant=True)
"""The kind of shard's own type for the subject of a letter."""

LetterKey = TypeVar("LetterKey", bound=Hashable, contravariant=True)
"""The key by which the shard keeps a message or record whose letter is refused."""


class LetterSource(Protocol[AnyFlight, Removed, LetterKey]):
    """The knowledge of a kind of shard about its dead letters."""

    def letters_of(self, flight: AnyFlight) -> AsyncIterator[tuple[Sequence[Output | Packed], Sequence[Removed]]]:
        """Yield the letters of a step and their subjects, in parts of about `PART`; call the rule with what left."""

    def expired(self, flight: AnyFlight) -> Mapping[TP, int] | None:
        """Return, for each source of a step's letters, the offset behind the last message, if all of them expired.

        Return None if a message left for another reason.
        """

    async def pending_letter(self, letter_key: LetterKey) -> Output | Packed | None:
        """Return the letter of a pending subject, to be tried again; None if it is gone."""


class ShardLetters(Generic[F]):
    """Writes the letters of one shard's steps.

    Args:
        shard: the shard, which keeps subjects whose letters are refused.
        source: makes the letters.
        left: keys of letters that an earlier epoch kept.
        figures: the shard's figures.

    Attributes:
        source: makes the letters.
        retry: the letters that Kafka refused.
    """

    def __init__(
        self,
        shard: Shard,
        source: LetterSource[F, Any, Any],
        left: Iterable[Hashable],
        figures: ShardFigures,
    ) -> None:
        self._shard = shard
        self._shown = f"{shard.settings.name}, partition {shard.settings.partition}"
        self.source = source
        self._figures = figures
        self.retry: LetterRetry[Any] = LetterRetry(self._shown, source.pending_letter, left)

    async def write(self, flight: F, write: Write, write_expired: WriteExpired | None = None) -> None:
        """Write the letters of a step. Subjects whose letters are refused stay in the shard.

        Args:
            flight: the step in flight.
            write: writes letters, and returns those that Kafka refuses.
            write_expired: the same, for a step whose letters are all of expired messages.
        """
        expired = None if write_expired is None else self.source.expired(flight)
        refused: list[tuple[Any, str]] = []
        sent: Sequence[Any] = ()
        sending: Awaitable[dict[int, Refusal]] | None = None
        try:
            async for letters, about in self.source.letters_of(flight):
                if sending is not None:
                    refused += _refused(sent, await sending)
                self._figures.letters_waiting, sent = len(about), about
                if write_expired is None or expired is None:
                    sending = write(letters)
                else:
                    sending = write_expired(letters, expired)
                for _ in range(_TURNS_TO_KAFKA if len(about) >= PART else 0):
                    await asyncio.sleep(0)
            if sending is not None:
                refused += _refused(sent, await sending)
        finally:
            # These have no effect, unless the shard is released, or the next letters cannot be made.
            if isinstance(sending, asyncio.Future):
                sending.cancel()
            elif isinstance(sending, Coroutine):  # in memory there is no event loop
                sending.close()
        self._figures.letters_waiting = 0
        if refused:
            what, why = len(refused), refused[0][1]
            logger.warning("%s: %d dead letters refused, to be tried again: %s", self._shown, what, why)
            letter_keys = self._shard.keep_refused_letters(refused, flight.core)
            self.retry.add(zip(letter_keys, (why for _, why in refused), strict=True))

    def let_go(self, step: Step[Any, Any, Any]) -> None:
        """Remove pending subjects whose letters were written. A barrier may wait for that (C48)."""
        for letter_key in self.retry.safe():
            self._shard.letter_written(letter_key, step)


def _refused(sent: Sequence[Any], refused: Mapping[int, Refusal]) -> list[tuple[Any, str]]:
    """Return the subjects of refused letters, each with the reason."""
    return [(sent[at], refusal.why) for at, refusal in refused.items()]
