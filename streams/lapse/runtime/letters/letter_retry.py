"""Tries letters that the broker refused again, each alone and less and less often (C27).

This runs beside the shard, which goes on. A message whose letter was written leaves in the shard's next step. After a
take-over, all dying messages are tried at once.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.letters.refusal import Write
from lapse.runtime.watch import end_process

logger = logging.getLogger(__name__)

FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0

LetterKey = TypeVar("LetterKey", bound=Hashable)


class LetterRetry(Generic[LetterKey]):
    """The pending letters of one shard.

    Args:
        shard: the shard, for messages.
        letter: makes a letter; returns None if its message is gone, or the entity writes no letters any more (D1).
        left: keys of letters that an earlier epoch left.
    """

    def __init__(
        self,
        shard: str,
        letter: Callable[[LetterKey], Awaitable[Output | Packed | None]],
        left: Iterable[LetterKey] = (),
    ) -> None:
        self._shard = shard
        self._letter = letter
        self._delays_s: dict[LetterKey, float] = {}
        self._why: dict[LetterKey, str] = {}
        self._of_all = ""
        """Why no letter is accepted; empty if only single letters are refused."""
        self._due: list[tuple[float, int, LetterKey]] = []
        self._number = 0
        self._safe: list[LetterKey] = []
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        for letter_key in left:
            self._plan(letter_key, 0.0)

    def start(self, write: Write, wake: Callable[[], None]) -> None:
        """Start to try. `wake` makes the shard take another step."""
        self._task = asyncio.create_task(self._run(write, wake), name=f"letters {self._shard}")

    def stop(self) -> None:
        """Stop trying, because the shard is given up. Its next owner tries the pending letters."""
        if self._task is not None:
            self._task.cancel()

    def add(self, refused: Iterable[tuple[LetterKey, str]]) -> None:
        """Try these letters again, each with the broker's reason; the first try is in a second."""
        due = asyncio.get_running_loop().time() + FIRST_S
        for letter_key, why in refused:
            self._why[letter_key] = why
            self._plan(letter_key, due)
        self._news.set()

    def why(self, letter_key: LetterKey) -> str:
        """Return the broker's last reason for a pending letter; empty after a take-over until it was tried (C48)."""
        return self._why.get(letter_key, self._of_all)

    def safe(self) -> list[LetterKey]:
        """Return the keys of letters that were written, or are not needed, once."""
        safe, self._safe = self._safe, []
        return safe

    def _plan(self, letter_key: LetterKey, due: float) -> None:
        self._number += 1
        heapq.heappush(self._due, (due, self._number, letter_key))

    async def _run(self, write: Write, wake: Callable[[], None]) -> None:
        try:
            pause_s = FIRST_S
            while True:
                await self._until_due()
                due, number, letter_key = heapq.heappop(self._due)
                try:
                    letter = await self._letter(letter_key)
                except Exception as error:  # noqa: BLE001  # a log that cannot be read now may be readable later
                    logger.warning("%s: a pending letter cannot be made: %s; trying again", self._shard, error)
                    self._why[letter_key] = f"the letter cannot be made: {error}"
                    self._put_off(letter_key)
                    continue
                refusal = None if letter is None else (await write([letter])).get(0)
                if refusal is not None:
                    self._why[letter_key] = refusal.why
                self._of_all = refusal.why if refusal is not None and refusal.of_topic else ""
                if self._of_all:
                    # No letter would be accepted, so this one is tried next again.
                    heapq.heappush(self._due, (due, number, letter_key))
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_S)
                    continue
                pause_s = FIRST_S
                if refusal is not None:
                    self._put_off(letter_key)
                    continue
                self._forget(letter_key)
                self._safe.append(letter_key)
                wake()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  # crash-only: an error that is not a refusal ends the process
            end_process(f"{self._shard}: a letter that waited could not be written: {error}", error)

    def _forget(self, letter_key: LetterKey) -> None:
        self._delays_s.pop(letter_key, None)
        self._why.pop(letter_key, None)

    def _put_off(self, letter_key: LetterKey) -> None:
        delay_s = min(2 * self._delays_s.get(letter_key, FIRST_S), LONGEST_S)
        self._delays_s[letter_key] = delay_s
        self._plan(letter_key, asyncio.get_running_loop().time() + delay_s)

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._due or self._due[0][0] > loop.time():
            self._news.clear()
            wait_s = self._due[0][0] - loop.time() if self._due else None
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                return
