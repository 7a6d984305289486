"""Deliveries and answers that are being written to Kafka, and how long this may take.

One that Kafka takes too late would come after its lease, perhaps after its message's deadline (L10). So the process
ends rather than wait for it; what has not reached Kafka by then is delivered again (Q16).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.kafka.producer import TOO_LARGE, BatchProducer
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.sent_log import SentLog
from lapse.runtime.shard.timeline import Stage
from lapse.runtime.watch import end_process

logger = logging.getLogger(__name__)

_BELATED_S: Final = 0.5
"""A timer that is later than that says that the process stood still."""

_MOST_UNDER_WAY: Final = 64
"""Batches; with more of them, the oldest is waited for."""


class DeliveriesUnderWay:
    """What one shard has sent to clients, and Kafka has not taken yet.

    Args:
        shown: the shard, for people.
        machine: knows how long a delivery may be on its way.
        producer: writes them.
        floors: see `SentLog`.
    """

    def __init__(self, shown: str, machine: Machine, producer: BatchProducer, floors: Mapping[str, int]) -> None:
        self._shown = shown
        self._machine = machine
        self._producer = producer
        self._sent = SentLog(floors)
        self._patience: asyncio.TimerHandle | None = None

    async def send(self, step: int, outputs: Sequence[Output | Packed], decided: float | None) -> None:
        """Send what a step has for clients.

        Args:
            step: its number.
            outputs: what it has.
            decided: when its deliveries were decided, on the monotonic clock, s; None = there are none.
        """
        await self.collect()
        if decided is not None and time.monotonic() - decided > self._machine.delivery_patience_s:
            self._give_up()  # it waited so long for the journal, and was not even sent
        sent = time.monotonic()
        writes = await self._producer.send(outputs)
        if decided is not None and writes:
            stage = self._machine.figures.stages[Stage.DELIVER]
            writes[-1].add_done_callback(lambda _: stage.add(time.monotonic() - sent))
        self._sent.add(step, writes)
        if self._patience is None:
            self._watch(None)

    async def write(self, outputs: Sequence[Output | Packed]) -> None:
        """Send what the owner before has journaled and not written, and wait until it is safe (C55)."""
        self._sent.add(0, await self._producer.send(outputs) if outputs else [])
        await self.arrive()

    async def collect(self) -> None:
        """Learn what became of those that are done; a failed one ends the process as any write does."""
        while self._sent and (next(iter(self._sent)).done() or len(self._sent) > _MOST_UNDER_WAY):
            await self._first()

    async def arrive(self) -> None:
        """Wait until all are safe."""
        while self._sent:
            await self._first()

    async def end(self) -> None:
        """Wait for all, the last of a deleted entity; what is too large is not let pass any more."""
        while self._sent:
            await self._sent.first()

    def stop(self) -> None:
        """Watch no longer."""
        if self._patience is not None:
            self._patience.cancel()

    def progress(self, step: int) -> dict[str, dict[str, Any]]:
        """What the journal of a step says of them; see `SentLog.progress`."""
        return self._sent.progress(step)

    async def _first(self) -> None:
        try:
            await self._sent.first()
        except TOO_LARGE as error:
            # It was alone in its batch. If it is a delivery, its lease ends, and it is tried again.
            logger.error("%s: a record for clients is larger than its topic takes: %s", self._shown, error)

    def _watch(self, before: asyncio.Future[Any] | None) -> None:
        """End the process if what was the oldest delivery on its way still is: Kafka would take it too late.

        Args:
            before: the oldest at the last look; None = this is the first.
        """
        loop = asyncio.get_running_loop()
        if self._patience is not None and loop.time() - self._patience.when() > _BELATED_S:
            before = None  # this process stood still; what Kafka has answered meanwhile comes now
        self._patience = None
        oldest = next((one for one in self._sent if not one.done()), None)
        if oldest is None:
            return
        if oldest is before:
            self._give_up()
        # Twice within the time: one that is found half-way is at most so old at the second look.
        self._patience = loop.call_later(self._machine.delivery_patience_s / 2, self._watch, oldest)

    def _give_up(self) -> None:
        end_process(
            f"{self._shown}: Kafka has not taken a delivery for {self._machine.delivery_patience_s:g} s. It would "
            "come after its lease, perhaps after its message's deadline; it is given up"
        )
