"""Hands on the messages that a shard leases to its forwarder, so that each has one fate (C38).

A step leases messages. The next one begins by writing them to the target, and acknowledges them before it does anything
else. A new owner finds in its journal what was leased, and in the target what was written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lapse.core.letter import FORWARDER
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Delivery, Step
from lapse.runtime.letters.refusal import Write
from lapse.runtime.queue.forwarding import Forwarding, Handed, id_stem, target_of
from lapse.runtime.queue.records import records_of
from lapse.runtime.shard.payload import PayloadWindow

Find = Callable[[str, int, Collection[bytes]], Awaitable[set[bytes] | None]]
"""Looks into a target since an instant, ms since the epoch, for messages by the beginnings of their ids.

Returns those that are there; None if the target cannot be read.
"""

Judge = Callable[[Sequence[int]], Awaitable[None]]
"""Evaluates the filters in use on messages, by their places."""


class _Held(NamedTuple):
    """Messages that the forwarder holds.

    Attributes:
        delivery: the messages.
        is_there: whether the target has them already.
    """

    delivery: Delivery
    is_there: bool = False


class Forwarder:
    """Hands on the messages of one shard.

    Args:
        shard: the shard.
        payloads: the records behind its messages.
        forwarding: writes to the target; None if the queue does not forward.
    """

    def __init__(self, shard: QueueShard, payloads: PayloadWindow, forwarding: Forwarding | None) -> None:
        self._shard = shard
        self._payloads = payloads
        self._forwarding = forwarding
        self._held: list[_Held] = []

    @property
    def target_partitions(self) -> int:
        """The number of partitions of the target topic; 0 without forwarding, or while the topic is missing (C81)."""
        return 0 if self._forwarding is None else self._forwarding.partitions

    async def look(self, find: Find) -> None:
        """Find out which messages the former owner has written to the target, and take the others back.

        Those that were taken back wait again, as if they had not been leased. Call this before the epoch begins.
        """
        leases = self._shard.handed_out.leases_of(FORWARDER)
        if not leases.deliveries:
            return
        stems = [[*map(self._stem_of(one), one.messages.offsets.tolist())] for one in leases.deliveries]
        found = await find(target_of(self._shard), leases.since_ms, {stem for some in stems for stem in some})
        if found is None:
            self._held = [_Held(one) for one in leases.deliveries]  # written again, with the same ids
            return
        not_there: list[int] = []
        for delivery, places, some in zip(leases.deliveries, leases.places, stems, strict=True):
            at = [number for number, stem in enumerate(some) if stem in found]
            if at:
                there = delivery.messages.select(np.array(at, np.intp))
                self._held.append(_Held(replace(delivery, messages=there), is_there=True))
            not_there += [place for place, stem in zip(places, some, strict=True) if stem not in found]
        self._shard.handed_out.take_back(not_there)

    def _stem_of(self, delivery: Delivery) -> Callable[[int], bytes]:
        name, messages = self._shard.settings.name, delivery.messages
        return lambda position: id_stem(name, messages.topic, messages.partition, position)

    def take_over(self, now_ms: int, step: Step) -> None:
        """Begin to forward, or end the forwarding of an earlier epoch."""
        if self._forwarding is not None:
            self._forwarding.begin(self._shard, now_ms, step)
        elif not self._held:
            self._end("the queue forwards no longer", now_ms, step)

    def hold(self, delivery: Delivery) -> None:
        """Note messages that this step leases to the forwarder, for the beginning of the next step."""
        self._held.append(_Held(delivery))

    async def hand_on(self, now_ms: int, step: Step, write: Write, judge: Judge) -> None:
        """Write the messages that the forwarder holds to the target, and let them leave.

        A message that the target refuses, such as one that is too large, becomes a dead letter with the reason. If the
        target takes nothing at all, the messages wait again, and forwarding stops until it can take messages.

        Args:
            now_ms: the instant, ms since the epoch.
            step: gets the results.
            write: writes to the target once the leases are in the journal, and returns what it refuses.
            judge: evaluates filters on barriers.
        """
        if not self._held:  # as in each step of a queue that does not forward
            return
        held, self._held = self._held, []
        for one in sorted(held, key=lambda one: not one.is_there):
            if one.is_there:
                handed = Handed({}, [])
            elif self._forwarding is None:
                break
            else:
                records = list(await records_of(one.delivery.messages, self._payloads))
                handed = await self._forwarding.write(self._shard, one.delivery, records, write)
            if handed.stopped:
                self._forwarding = None
                self._end(handed.stopped, now_ms, step)
                return
            await self._leave(one.delivery, handed, now_ms, step, judge)
        if self._forwarding is None:
            self._end("the queue forwards no longer", now_ms, step)

    async def _leave(self, delivery: Delivery, handed: Handed, now_ms: int, step: Step, judge: Judge) -> None:
        """Let messages leave, each for what became of it."""
        shard, messages = self._shard, delivery.messages
        if not handed.lost:
            await self._release_barrier(now_ms, step, judge)
        for offset, why in handed.refused.items():
            shard.remove_undecodable(messages.topic, messages.partition, offset, why, now_ms, step, handed_out=True)
        if handed.lost:
            shard.remove_truncated(messages.topic, messages.partition, handed.lost, now_ms, step, handed_out=True)
        claims = [Claim(messages.topic, messages.partition, *ends) for ends in messages.ranges()]
        shard.settle(SettleAction.ACKNOWLEDGE, FORWARDER, claims, now_ms, step)

    async def _release_barrier(self, now_ms: int, step: Step, judge: Judge) -> None:
        """Send a barrier to the other subscriptions: also if the target refuses it, they get it (Q12)."""
        unjudged = self._shard.release_forwarded(now_ms, step)
        if unjudged is not None:
            await judge([unjudged])
            self._shard.release_forwarded(now_ms, step)

    def _end(self, why: str, now_ms: int, step: Step) -> None:
        """End the forwarder's subscription; its messages wait again, and the deliveries do not count."""
        if FORWARDER in self._shard.state.subscriptions:
            self._shard.handed_out.undo_deliveries(FORWARDER, step)
            self._shard.unsubscribe(FORWARDER, now_ms, step, why)
