"""Batches leave together, and in few turns of the loop; what cannot be sent waits for aiokafka's ways."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition, errors

from lapse.runtime.kafka.swift_sender import SwiftSender

PLACES = [TopicPartition("orders", number) for number in range(3)]


class Accumulator:
    """Unsent batches, all for the broker 1.

    Attributes:
        waiting: the partitions of the batches.
        without_leader: whether a leader is unknown.
        fault: what looking for batches raises; None if nothing.
        looks: how often somebody looked for batches.
    """

    def __init__(self) -> None:
        self.waiting: list[TopicPartition] = []
        self.without_leader = False
        self.fault: Exception | None = None
        self.on_batch: Callable[[], None] | None = None
        self.looks = 0

    @property
    def _batches(self) -> list[TopicPartition]:
        return self.waiting

    def add(self, place: TopicPartition) -> None:
        self.waiting.append(place)
        if self.on_batch is not None:
            self.on_batch()

    def drain_by_nodes(self, ignore_nodes: set[int], muted_partitions: set[TopicPartition]) -> Any:
        self.looks += 1
        if self.fault is not None:
            raise self.fault
        if self.without_leader or 1 in ignore_nodes or not self.waiting:
            return {}, self.without_leader
        drained, self.waiting = dict.fromkeys(self.waiting, SimpleNamespace()), []
        return {1: drained}, False


class Sender(SwiftSender):
    """A sender without Kafka.

    Attributes:
        sent: the partitions of each request.
        answers: the futures for which the requests wait.
    """

    def __init__(self) -> None:
        self._message_accumulator: Any = Accumulator()
        self._in_flight, self._muted_partitions = set(), set()
        self.has_id = True
        self._txn_manager = SimpleNamespace(has_pid=lambda: self.has_id)
        self.looks = 0
        self.client = SimpleNamespace(force_metadata_update=self._learn)
        self.sent: list[list[TopicPartition]] = []
        self.answers: list[asyncio.Future[None]] = []

    def _learn(self) -> asyncio.Future[None]:
        self._message_accumulator.without_leader = False
        learnt = asyncio.get_running_loop().create_future()
        learnt.set_result(None)
        return learnt

    async def _maybe_wait_for_pid(self) -> None:
        self.looks += 1
        self.has_id = True

    async def _send_produce_req(self, node_id: int, batches: Any) -> None:
        self.sent.append(list(batches))
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]
        self._in_flight.remove(node_id)
        self._muted_partitions.difference_update(batches)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run(work: Callable[[Sender, Accumulator], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        sender = Sender()
        sender._sender_task = asyncio.create_task(sender._sender_routine())
        await turns()
        await work(sender, sender._message_accumulator)
        sender._sender_task.cancel()
        for answer in sender.answers:
            if not answer.done():
                answer.set_result(None)
        await asyncio.gather(sender._sender_task, return_exceptions=True)

    asyncio.run(all_of_it())


def test_batches_of_one_turn_leave_together_and_the_next_ones_with_the_answer() -> None:
    async def work(sender: Sender, batches: Accumulator) -> None:
        batches.add(PLACES[0])
        batches.add(PLACES[1])
        await turns()
        assert sender.sent == [PLACES[:2]]
        batches.add(PLACES[2])
        await turns()
        assert len(sender.sent) == 1, "one request at a time to a broker"
        sender.answers[0].set_result(None)
        await turns()
        assert sender.sent == [PLACES[:2], PLACES[2:]]
        assert sender.looks == 1, "the routine has nothing to do"

    run(work)


def test_an_answer_behind_which_nothing_waits_costs_no_look_at_the_batches() -> None:
    async def work(sender: Sender, batches: Accumulator) -> None:
        batches.add(PLACES[0])
        await turns()
        looks = batches.looks
        sender.answers[0].set_result(None)
        await turns()
        assert batches.looks == looks
        batches.add(PLACES[1])
        await turns()
        assert sender.sent == [PLACES[:1], PLACES[1:2]]

    run(work)


@pytest.mark.parametrize("missing", ["leader", "id"])
def test_what_cannot_be_sent_yet_waits_for_its_leader_and_for_the_producers_id(missing: str) -> None:
    async def work(sender: Sender, batches: Accumulator) -> None:
        batches.without_leader = missing == "leader"
        sender.has_id = missing != "id"
        batches.add(PLACES[0])
        await turns(8)
        assert sender.sent == [PLACES[:1]]

    run(work)


@pytest.mark.parametrize("error", [errors.ProducerFenced(), ValueError("unexpected")])
def test_what_ends_a_request_ends_the_producer(error: Exception) -> None:
    async def work(sender: Sender, batches: Accumulator) -> None:
        batches.add(PLACES[0])
        await turns()
        sender.answers[0].set_exception(error)
        await turns(5)
        assert sender._sender_task.done()
        found = sender._sender_task.exception()
        assert isinstance(found, type(error) if isinstance(error, errors.KafkaError) else errors.KafkaError)
        sender._in_flight.clear()
        batches.add(PLACES[1])
        await turns()
        assert sender.sent == [PLACES[:1]], "a batch that failed is not sent later"

    run(work)


def test_what_ends_before_there_is_a_request_ends_the_producer() -> None:
    """The loop only logs what a callback raises: the batch waited for ever."""

    async def work(sender: Sender, batches: Accumulator) -> None:
        batches.fault = ValueError("unexpected")
        batches.add(PLACES[0])
        await turns(5)
        assert sender._sender_task.done()
        assert isinstance(sender._sender_task.exception(), errors.KafkaError)

    run(work)


def test_a_producer_that_closes_waits_for_its_request_and_begins_no_other() -> None:
    async def work(sender: Sender, batches: Accumulator) -> None:
        batches.add(PLACES[0])
        await turns()
        batches.waiting.append(PLACES[1])
        sender._sender_task.cancel()
        await turns()
        assert not sender._sender_task.done()
        sender.answers[0].set_result(None)
        await turns()
        assert sender._sender_task.done()
        assert sender.sent == [PLACES[:1]]

    run(work)
