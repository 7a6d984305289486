"""Deliveries and answers that are being written to Kafka, and how long this may take.

One that Kafka takes too late would come after its lease, perhaps after its message's deadline (L10). So the process
ends rather than wait for it; what has not reached Kafka by then is delivered again (Q16). Answers may come late: where
nothing is leased, a worker that has little of the processor goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
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
        self._leased: deque[tuple[float, asyncio.Future[Any]]] = deque()
        """When deliveries were sent, on the monotonic clock, s, and what tells that Kafka has them."""
        self._patience: asyncio.TimerHandle | None = None

    async def send(
        self, step: int, outputs: Sequence[Output | Packed], decided: float | None, kept: Sequence[bytes] = ()
    ) -> None:
        """Send what a step has for clients.

        Args:
            step: its number.
            outputs: what it has.
            decided: when its deliveries were decided, on the monotonic clock, s; None = there are none.
            kept: under which keys the journal keeps answers among them, until Kafka has them.
        """
        await self.collect()
        if decided is not None and time.monotonic() - decided > self._machine.delivery_patience_s:
            self._give_up()  # it waited so long for the journal, and was not even sent
        sent = time.monotonic()
        writes = await self._producer.send(outputs)
        self._sent.add(step, writes)
        answers = self._machine.kept_answers
        if kept and answers is not None:
            asyncio.gather(*writes, return_exceptions=True).add_done_callback(lambda _: answers.written(kept))
        if decided is not None and writes:
            stage = self._machine.figures.stages[Stage.DELIVER]
            writes[-1].add_done_callback(lambda _: stage.add(time.monotonic() - sent))
            self._forget_done()
            self._leased.extend((sent, one) for one in writes)
            if self._patience is None:
                self._watch()

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

    def _watch(self) -> None:
        """End the process if the oldest delivery has been on its way for too long, and look again when it would be."""
        loop = asyncio.get_running_loop()
        patience_s = self._machine.delivery_patience_s
        late_s = 0.0 if self._patience is None else loop.time() - self._patience.when()
        self._patience = None
        self._forget_done()
        if not self._leased:
            return
        left_s = self._leased[0][0] + patience_s - time.monotonic()
        if late_s > _BELATED_S:  # this process stood still; what Kafka has answered meanwhile comes now
            left_s = max(left_s, patience_s / 2)
        elif left_s <= 0:
            self._give_up()
            return
        self._patience = loop.call_later(left_s, self._watch)

    def _forget_done(self) -> None:
        while self._leased and self._leased[0][1].done():
            self._leased.popleft()

    def _give_up(self) -> None:
        end_process(
            f"{self._shown}: Kafka has not taken a delivery for {self._machine.delivery_patience_s:g} s. It would "
            "come after its lease, perhaps after its message's deadline; it is given up"
        )
