"""A Faust application whose shards go on through a rebalance."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, Final, cast

import faust
from faust.types import TP

from lapse.runtime.kafka.group.assignor import SteadyAssignor
from lapse.runtime.kafka.group.membership import Membership
from lapse.runtime.kafka.transport import BatchConsumer

_GIVEN_UP_S: Final = 2.0
"""How long a worker may take to give up a shard before another one gets it, s. After that, epochs protect the shard."""


class SteadyApp(faust.App):
    """A Faust app that gives up only the shards that another worker gets.

    Attributes:
        membership: removes this worker's dead predecessor from the group.
    """

    membership: Membership

    @abstractmethod
    def run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the shards."""

    @abstractmethod
    async def finish_take_overs(self) -> None:
        """Wait for the take-overs that have begun."""

    @property
    def is_alone(self) -> bool:
        """Whether no other worker was in the group at the last rebalance."""
        return cast("SteadyAssignor", self.assignor).members == 1

    async def _on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Do the same as Faust's.

        Note the member id first, since it must be known before this worker acts as that member.
        """
        consumer = self._batch_consumer
        self.membership.note(consumer.member)
        before = self._assignment or set()
        await super()._on_partitions_assigned(assigned, generation_id)
        topics = consumer.subscribed()
        if before:
            self.run_beside(self._look_again())
        if any(tp.topic in topics for tp in before - assigned):
            await consumer.rejoin()  # another worker gets a lost partition in the next rebalance
        elif (assignor := cast("SteadyAssignor", self.assignor)).withheld:
            assignor.withheld = False
            self.run_beside(self._balance_again(generation_id))

    async def _look_again(self) -> None:
        """Ask for the topics' numbers of partitions, which the leader of the group may not know yet (C81)."""
        await asyncio.sleep(_GIVEN_UP_S)
        if not self.should_stop:
            await self._batch_consumer.look_again()

    async def _balance_again(self, generation_id: int) -> None:
        """Make sure that withheld partitions are assigned, since a worker of an older version does not rejoin."""
        await asyncio.sleep(_GIVEN_UP_S)
        if self.consumer_generation_id == generation_id and not self.should_stop:
            await self._batch_consumer.rejoin()

    async def _on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Do the same as Faust's if this worker fell out of the group.

        Otherwise shards go on until the new assignment is known.
        """
        if self.should_stop or not self._batch_consumer.goes_on:
            await super()._on_partitions_revoked(revoked)
        else:
            await self.finish_take_overs()

    @property
    def _batch_consumer(self) -> BatchConsumer:
        consumer = self.consumer
        assert isinstance(consumer, BatchConsumer)
        return consumer
