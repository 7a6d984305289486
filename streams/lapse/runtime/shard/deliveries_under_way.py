"""Deliveries and answers that are being written to Kafka, with a limit for the time that this may take.

A delivery that Kafka takes too late would come after its lease, perhaps after its message's deadline (L10). So it is
not sent any more when nine tenths of its lease are over (`TimelyAccumulator`), and is then taken back. What was sent
cannot be called back. If Kafka does not answer, the process ends, and what has not reached Kafka is delivered again
(Q16). Answers may come late, so a slow worker goes on if nothing is leased.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.kafka.producer import BatchProducer
from lapse.runtime.kafka.record_batch import Leased
from lapse.runtime.kafka.refusals import TOO_LARGE
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.sent_log import SentLog
from lapse.runtime.shard.timeline import Stage
from lapse.runtime.watch import end_process

logger = logging.getLogger(__name__)

_BELATED_S: Final = 0.5
"""If a timer is later than this, s, the process stood still."""

_MOST_UNDER_WAY: Final = 64
"""The most batches under way. With more of them, the oldest is waited for."""


class DeliveriesUnderWay:
    """Sends one shard's records to clients, and watches those that Kafka has not taken yet.

    Args:
        shown: the shard, for messages.
        machine: knows how long a delivery may be under way.
        producer: writes the records.
        floors: see `SentLog`.
    """

    def __init__(self, shown: str, machine: Machine, producer: BatchProducer, floors: Mapping[str, int]) -> None:
        self._shown = shown
        self._machine = machine
        self._producer = producer
        self._sent = SentLog(floors)
        self._leased: deque[tuple[float, asyncio.Future[Any]]] = deque()
        """When deliveries were sent, on the monotonic clock, s, and the futures that are done once Kafka has them."""
        self._patience: asyncio.Handle | None = None
        self._looks_at_s = 0.0
        """When the watch looks next, on the loop's clock, s. A handle of uvloop may have no `when`."""
        self._expected: dict[int, float] = {}
        """Until when deliveries may be sent whose journal is being written, by step, on the monotonic clock, s."""

    def expect(self, step: int, decided: float | None) -> None:
        """Note that a step's deliveries will be sent once its journal is written; `decided` is as in `send`."""
        if decided is not None:
            self._expected[step] = decided + self._machine.delivery_sendable_s

    async def take_back(self, written: Callable[[], Awaitable[None]], where: str) -> None:
        """Take back deliveries that were not sent before it was too late. They reached nobody (C55).

        Args:
            written: waits until all steps are written. It is called if a journal takes longer than its leases.
            where: see `TakesBack.take_back`.
        """
        unsent = self._machine.unsent
        if unsent is None or self._machine.unfinished is not None:
            return  # while a command takes several steps, nothing else happens
        if min(self._expected.values(), default=math.inf) < time.monotonic():
            await written()
        late = self._sent.under_lease.take_late(time.monotonic(), unsent.step)
        if late:
            unsent.take_back(late, where)

    async def send(
        self,
        step: int,
        outputs: Sequence[Output | Packed],
        decided: float | None,
        kept: Sequence[bytes] = (),
        leased: Collection[int] = (),
    ) -> None:
        """Send a step's records to clients.

        Args:
            step: the step's number.
            outputs: its deliveries and answers.
            decided: when its deliveries were decided, on the monotonic clock, s; None if there are none.
            kept: keys under which the journal keeps answers among them, until Kafka has them.
            leased: the indexes of outputs that are deliveries under a lease.
        """
        await self.collect()
        if decided is not None and time.monotonic() - decided > self._machine.delivery_patience_s:
            self._give_up()  # the journal took so long that it was not even sent
        sent = time.monotonic()
        until_s = math.inf if decided is None else decided + self._machine.delivery_sendable_s
        writes = await self._send(step, outputs, leased, until_s)
        self._expected.pop(step, None)
        if kept:
            answers = self._machine.answers
            asyncio.gather(*writes, return_exceptions=True).add_done_callback(lambda _: answers.written(kept))
        if decided is not None and writes:
            stage = self._machine.figures.stages[Stage.DELIVER]
            writes[-1].add_done_callback(lambda _: stage.add(time.monotonic() - sent))
            self._forget_done()
            self._leased.extend((sent, one) for one in writes)
            if self._patience is None:
                self._watch()

    async def write(
        self, deliveries: Sequence[tuple[Output | Packed, int]], answers: Sequence[Output], now_ms: int
    ) -> None:
        """Write what the previous owner journaled and did not write, and wait until Kafka has it (C55).

        Args:
            deliveries: each with the end of its lease, ms since the epoch; 0 without one.
            answers: the answers.
            now_ms: the instant, ms since the epoch. Reading took time, so leases may be over by now (L10).
        """
        sent, last_tenth_s = time.monotonic(), self._machine.delivery_sendable_s / 9
        for until_ms, some in groupby(deliveries, itemgetter(1)):
            outputs = [output for output, _ in some]
            until_s = sent + (until_ms - now_ms) / 1000 - last_tenth_s
            await self._send(0, outputs, range(len(outputs)) if until_ms else (), until_s)
        if answers:
            await self._send(0, answers)
        await self.arrive()

    async def _send(
        self, step: int, outputs: Sequence[Output | Packed], leased: Collection[int] = (), until_s: float = math.inf
    ) -> list[asyncio.Future[Any]]:
        """Send records of a step, and note them; the arguments are those of `BatchProducer.send`."""
        under_lease: list[Leased] = []
        writes = await self._producer.send(outputs, leased, until_s, under_lease)
        self._sent.add(step, writes)
        self._sent.under_lease.add(step, under_lease)
        return writes

    async def collect(self, step: int = 0) -> None:
        """Process the results of finished writes. A failed write ends the process.

        Before `step` is journaled, wait for what is too many steps behind it (C55).
        """
        while self._sent and (
            next(iter(self._sent)).done() or len(self._sent) > _MOST_UNDER_WAY or self._sent.holds_up(step)
        ):
            await self._first()

    async def arrive(self) -> None:
        """Wait until Kafka has all records."""
        while self._sent:
            await self._first()

    async def end(self) -> None:
        """Wait for the last records of a deleted entity. Here a record that is too large raises an error."""
        while self._sent:
            await self._sent.first()

    def stop(self) -> None:
        """Stop the watch."""
        if self._patience is not None:
            self._patience.cancel()

    def progress(self, step: int) -> dict[str, dict[str, Any]]:
        """Return what the journal of a step says of deliveries; see `SentLog.progress`."""
        return self._sent.progress(step)

    async def _first(self) -> None:
        try:
            await self._sent.first()
        except TOO_LARGE as error:
            # The record was alone in its batch. If it is a delivery, its lease ends, and it is tried again.
            logger.error("%s: a record for clients is larger than its topic takes: %s", self._shown, error)

    def _watch(self) -> None:
        """End the process if the oldest delivery has been under way for too long; else look again in time."""
        loop = asyncio.get_running_loop()
        patience_s = self._machine.delivery_patience_s
        late_s = 0.0 if self._patience is None else loop.time() - self._looks_at_s
        self._patience = None
        self._forget_done()
        if not self._leased:
            return
        left_s = self._leased[0][0] + patience_s - time.monotonic()
        if late_s > _BELATED_S:  # the process stood still; Kafka's answers from meanwhile come now
            left_s = max(left_s, patience_s / 2)
        elif left_s <= 0:
            self._give_up()
            return
        self._looks_at_s = loop.time() + left_s
        self._patience = loop.call_later(left_s, self._watch)

    def _forget_done(self) -> None:
        while self._leased and self._leased[0][1].done():
            self._leased.popleft()

    def _give_up(self) -> None:
        end_process(
            f"{self._shown}: Kafka has not taken a delivery for {self._machine.delivery_patience_s:g} s. It would "
            "come after its lease, perhaps after its message's deadline; it is given up"
        )
