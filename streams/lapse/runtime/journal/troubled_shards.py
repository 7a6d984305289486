"""Troubled shards: shards whose take-over failed and is tried again until it succeeds (C52)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException

from lapse.runtime.repeated_error import RepeatedError
from lapse.runtime.watch import start_task

logger = logging.getLogger(__name__)

TROUBLE: Final = (KafkaError, KafkaException, TimeoutError, OSError)
"""The errors of a take-over if a broker is away, or a right is missing."""

_FIRST_S: Final = 1.0
_MOST_S: Final = 10.0
"""How long a shard waits for the next attempt, s: at first, and at most."""

_ANSWER_WITHIN_S: Final = 5.0
_MOST_ANSWER_WITHIN_S: Final = 40.0
"""How long the leaders of a shard's logs may take to answer before another attempt, s: at first, and at most. Brokers
that are only slow answer in the end."""

_LOOK_AFTER_S: Final = 5.0
"""How long an attempt may take before the leaders are asked whether they answer, s."""

_STEADY_S: Final = 60.0
"""After so long without trouble, s, a shard waits no longer than at first."""


class TroubledShards:
    """The shards of one entity whose take-over has failed.

    A leader may be away, or a coordinator move. That concerns only the shards whose logs are there. The worker goes on,
    and these shards are tried again.

    Args:
        table: the entity's table, for messages.
        again: begins another attempt for a shard.
        reach: waits until the leaders of a shard's logs answer. An attempt holds topics that other entities may read,
            and delays rebalances, so it begins only then.
    """

    def __init__(self, table: str, again: Callable[[int], None], reach: Callable[[int], Awaitable[None]]) -> None:
        self._table = table
        self._again = again
        self._reach = reach
        self._reaching: set[asyncio.Task[None]] = set()
        self._errors: dict[int, RepeatedError] = {}
        self._delays_s: dict[int, float] = {}
        self._answers_within_s: dict[int, float] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._healed_at: dict[int, float] = {}

    def __contains__(self, partition: int) -> bool:
        return partition in self._errors

    def note(self, partition: int, error: BaseException) -> None:
        """Note that an attempt has failed, and plan the next one."""
        what = f"{self._table}, partition {partition}: cannot be taken over for now, and is tried again"
        self._errors.setdefault(partition, RepeatedError(logger, what)).note(error)
        healed_at = self._healed_at.pop(partition, None)
        if healed_at is not None and time.monotonic() - healed_at > _STEADY_S:
            self._delays_s.pop(partition, None)
        delay_s = self._delays_s.get(partition, _FIRST_S)
        self._delays_s[partition] = min(2 * delay_s, _MOST_S)
        self._timers[partition] = asyncio.get_running_loop().call_later(delay_s, self._reach_first, partition)

    def _reach_first(self, partition: int) -> None:
        """Begin another attempt once the leaders answer."""
        start_task(self._reached(partition), f"leaders for {self._table}-{partition}", self._reaching)

    async def _reached(self, partition: int) -> None:
        try:
            await self._answer(partition)
        except TROUBLE as error:
            if self.begins(partition):
                self.note(partition, error)
        else:
            self._again(partition)

    async def _answer(self, partition: int) -> None:
        """Wait until the leaders of a shard's logs have answered, but not long."""
        within_s = self._answers_within_s.get(partition, _ANSWER_WITHIN_S)
        try:
            async with asyncio.timeout(within_s):
                await self._reach(partition)
        except TROUBLE as error:
            self._answers_within_s[partition] = min(2 * within_s, _MOST_ANSWER_WITHIN_S)
            if str(error):
                raise
            raise TimeoutError("the leaders of its logs do not all answer") from error

    async def attempt(self, partition: int, take_over: Coroutine[Any, Any, None], is_done: Callable[[], bool]) -> None:
        """Make an attempt. Break it off if it takes long and the leaders do not answer.

        The first attempt begins without asking them, because they nearly always answer.

        Args:
            partition: the shard's number.
            take_over: takes the shard over.
            is_done: returns whether this worker has the shard, so that the attempt must not be broken off any more.

        Raises:
            TimeoutError: the leaders do not answer.
            Exception: the error of the attempt.
        """
        attempt = asyncio.create_task(take_over)
        asking: set[asyncio.Task[None]] = set()
        try:
            while not (await asyncio.wait((attempt,), timeout=_LOOK_AFTER_S))[0]:
                answer = asyncio.create_task(self._answer(partition))
                asking.add(answer)
                await asyncio.wait((attempt, answer), return_when=asyncio.FIRST_COMPLETED)
                if answer.done() and not (attempt.done() or is_done()):
                    answer.result()
        finally:
            for task in (attempt, *asking):
                task.cancel()
            await asyncio.gather(attempt, *asking, return_exceptions=True)
        attempt.result()

    def begins(self, partition: int) -> bool:
        """Note that another attempt begins; return whether one was planned."""
        return self._timers.pop(partition, None) is not None

    def healed(self, partition: int) -> bool:
        """Note that a shard is taken over; return whether it was troubled."""
        was_troubled = partition in self._errors
        self._answers_within_s.pop(partition, None)
        if was_troubled:
            self._errors.pop(partition)
            self._healed_at[partition] = time.monotonic()
            logger.info("%s, partition %d: is taken over after all", self._table, partition)
        return was_troubled

    def settle(self) -> set[int]:
        """Cancel all planned attempts, because shards are reassigned or the worker is stopping; return their shards."""
        waiting = set(self._timers)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._reaching:
            task.cancel()
        return waiting

    def forget(self, partition: int) -> None:
        """Forget a shard that this worker does not have."""
        self._errors.pop(partition, None)
        self._healed_at.pop(partition, None)
        self._delays_s.pop(partition, None)
        self._answers_within_s.pop(partition, None)
