"""The ticker: timers in the log. Records before a tick in the commands topic came before it in time (C1)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from lapse.core.broker_offset import STEP_MS
from lapse.core.lifetime import NEVER
from lapse.protocol.tick import TICK_KEY
from lapse.runtime.kafka.producer import BatchProducer
from lapse.runtime.kafka.refusals import REFUSALS
from lapse.runtime.shard.machine import Machine
from lapse.runtime.timers.clock import WorkerClock
from lapse.runtime.tp import TP
from lapse.runtime.watch import end_process

logger = logging.getLogger(__name__)

_SPACING_S: Final = 0.005
_BEHIND_S: Final = 0.025
"""The spacing while something is still due by the last tick. What becomes due meanwhile leaves along with it (C60)."""

_QUIET_S: Final = 60.0
"""The least time between two warnings about a clock that was set back, s."""

_REPORTED_MS: Final = 10_000
"""A smaller step back is not reported, ms: perhaps the first measurement took long, and was wrong."""


class Ticker:
    """Writes a tick when the machine has something to do, and measures the broker's clock by it (C3).

    Args:
        name: the shard, for messages.
        commands: the partition of the shard's commands and ticks.
        machine: knows when something is due.
        producer: writes the ticks.
        clock: the broker's clock.
        on_sent: called when Kafka has taken a tick for which `measures` waits, or refused one; `check` tells why.

    Attributes:
        reached_ms: the instant of the last tick that was read, ms since the epoch. Timers act up to it. It decreases
            only after a step of the broker's clock.
    """

    def __init__(
        self,
        name: str,
        commands: TP,
        machine: Machine,
        producer: BatchProducer,
        clock: WorkerClock,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        self.reached_ms = 0
        self._on_sent = on_sent
        self._refusal: Exception | None = None
        self._name = name
        self._commands = commands
        self._machine = machine
        self._producer = producer
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._under_way = False
        self._last_at = 0.0
        self._is_awaited = False
        self._quiet_until = 0.0

    @property
    def has_due_work(self) -> bool:
        """Whether the machine has something to do by the last tick."""
        return self._machine.is_due(self.reached_ms)

    def read(self, record: Any) -> None:
        """Process a tick that was read back."""
        self._under_way = False
        self._clock.note_instant(record.timestamp)
        self.reached_ms = max(self.reached_ms, record.timestamp)
        self._machine.figures.tick_lag.add(max(0, self._clock.now_ms() - record.timestamp) / 1000)

    def follow_back(self) -> None:
        """Let the shard go back with the broker's clock if that was set back; called at the beginning of a step (C3).

        Otherwise everything would be due until the clock is there again.
        """
        now_ms = self._clock.now_ms()
        back_ms = max(self.reached_ms, self._machine.instant_ms) - now_ms
        if back_ms <= STEP_MS:
            return
        self._machine.set_back(now_ms)
        self.reached_ms = min(self.reached_ms, now_ms)
        if back_ms > _REPORTED_MS and time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + _QUIET_S
            logger.warning(
                "%s: the broker's clock was set back by %d ms, or brokers' clocks differ. Timers follow it. Leases, "
                "delays and deadlines from before keep their instants, so they end that much later. A purge or a "
                "deletion leaves alone what is stamped later than itself. Set the brokers' clocks by NTP (C3)",
                self._name,
                back_ms,
            )

    @property
    def may_measure(self) -> bool:
        """Whether `measures` may return True, which is rare: a shard with timers, or one at work, measures anyhow."""
        return self._is_awaited or self._clock.seconds_until_measurement() <= 0

    def measures(self) -> bool:
        """Return whether a tick is being written. Write one if the clock was not measured for a while (C3)."""
        if not self._under_way and self._clock.seconds_until_measurement() <= 0:
            self._begin()
        self._is_awaited = self._task is not None and not self._task.done()
        return self._is_awaited

    def arm(self) -> None:
        """Schedule a tick for the next timer, or for the next measurement of the clock."""
        if self._under_way:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._machine.next_due_ms()
        is_behind = due_ms <= self.reached_ms
        if due_ms >= NEVER:
            return
        delay_s = self._clock.seconds_until_measurement()
        if not is_behind or self.has_due_work:  # else it waits for something else than time, and other timers go on
            delay_s = min(delay_s, self._clock.seconds_until(due_ms))
        spacing_s = self._last_at + (_BEHIND_S if is_behind else _SPACING_S) - time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(max(delay_s, spacing_s, 0), self._tick)

    def check(self) -> None:
        """Check that Kafka takes the ticks.

        Raises:
            KafkaError: it has refused one.
        """
        if self._refusal is not None:
            raise self._refusal

    def stop(self) -> None:
        """Stop writing ticks."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _tick(self) -> None:
        due = self._machine.next_due_ms() <= self._clock.now_ms()
        if not due and self._clock.seconds_until_measurement() > 0:
            self.arm()
            return
        self._begin()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._under_way = True
        self._last_at = time.monotonic()
        self._clock.begin_measurement()
        self._task = asyncio.create_task(self._send(), name=f"tick {self._name}")

    async def _send(self) -> None:
        try:
            sent = time.monotonic()
            metadata = await self._producer.send_one(self._commands.topic, self._commands.partition, TICK_KEY, b"")
            if metadata.timestamp_type == 1:
                self._clock.measured(sent, time.monotonic(), metadata.timestamp)
        except asyncio.CancelledError:
            raise
        except REFUSALS as error:
            self._refusal = error
        except Exception as error:  # noqa: BLE001  # crash-only
            end_process(f"{self._name}: a tick could not be written: {error}", error)
        if self._is_awaited or self._refusal is not None:
            self._on_sent()
