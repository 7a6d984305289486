"""aiokafka's sending, adapted to small steps: fewer turns of the loop between a batch and its request.

It also looks at leases, and takes the sequence numbers of refused batches back.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiokafka import errors
from aiokafka.producer.message_accumulator import MessageBatch
from aiokafka.producer.sender import Sender, SendProduceReqHandler
from aiokafka.structs import TopicPartition

from lapse.runtime.kafka.refusals import REFUSALS
from lapse.runtime.kafka.timely_accumulator import TimelyAccumulator, leave_out_late, note_sent

_FATAL: Final = (errors.ProducerFenced, errors.OutOfOrderSequenceNumber)
"""The errors that aiokafka passes on as they are."""


class _Request(SendProduceReqHandler):
    """Looks at leases again once there is a connection, because a broker may take long to accept one (L10)."""

    async def do(self, node_id: int) -> None:
        """Send the batches."""
        if await self._client.ready(node_id):
            for batch in self._batches.values():
                leave_out_late(batch, is_numbered=True)
                note_sent(batch)
            await super().do(node_id)  # this finds the connection at once
        else:  # aiokafka does the same
            await asyncio.sleep(self._default_backoff)
            for batch in self._batches.values():
                self._sender._message_accumulator.reenqueue(batch)
            await self._client._maybe_wait_metadata()


class SwiftSender(Sender):
    """Sends no delivery late, and takes the sequence numbers of a refused batch back, as Kafka's own client does.

    The broker has never used them. aiokafka would continue behind them, and every later batch for that partition would
    be out of sequence.

    Batches that are added in one turn of the loop leave in the next one, together. When an answer comes, the next
    request leaves at once. aiokafka waits for a set of tasks between all of these, which takes several turns.
    """

    _message_accumulator: TimelyAccumulator

    def _begin(self) -> None:
        self._requests: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._will_send = self._is_closing = False
        self._look = asyncio.Event()
        """Set when `_sender_routine` has something to do."""
        self._message_accumulator.on_batch = self._send_soon

    async def _sender_routine(self) -> None:
        """Wait for what takes time: the producer's id, and leaders that are unknown. There are no transactions."""
        self._begin()
        try:
            while self._failure is None:
                await self._maybe_wait_for_pid()
                self._look.clear()
                if self._send():
                    await asyncio.wait([self._client_learns(), *self._requests], return_when=asyncio.FIRST_COMPLETED)
                else:
                    await self._look.wait()
            if isinstance(self._failure, _FATAL):
                raise self._failure
            raise errors.KafkaError("Unexpected error during batch delivery") from self._failure
        except asyncio.CancelledError:
            self._message_accumulator.on_batch = None
            self._is_closing = True
            for request in list(self._requests):
                await request

    def _client_learns(self) -> asyncio.Future[Any]:
        learns: asyncio.Future[Any] = self.client.force_metadata_update()
        return learns

    def _send_soon(self) -> None:
        """Send in the next turn of the loop, with all batches that are added in this one."""
        if not self._will_send:
            self._will_send = True
            asyncio.get_running_loop().call_soon(self._send_added)

    def _send_added(self) -> None:
        self._will_send = False
        if self._is_closing or self._failure is not None:
            return  # also no batch again whose sender has been told that it failed
        try:
            has_more = self._send()
        except Exception as error:  # noqa: BLE001  # the routine raises it: the loop would only log it
            self._failure, has_more = error, True
        if has_more:
            self._look.set()

    def _send(self) -> bool:
        """Send to every broker that is free what waits for it; return whether batches wait for the routine."""
        if not self._message_accumulator._batches:
            return False  # as after most answers
        if self._txn_manager is not None and not self._txn_manager.has_pid():
            return True
        by_node, without_leader = self._message_accumulator.drain_by_nodes(
            ignore_nodes=self._in_flight, muted_partitions=self._muted_partitions
        )
        for node_id, batches in by_node.items():
            self._in_flight.add(node_id)
            self._muted_partitions.update(batches)
            request = asyncio.create_task(self._send_produce_req(node_id, batches))
            self._requests.add(request)
            request.add_done_callback(self._sent)
        return bool(without_leader)

    def _sent(self, request: asyncio.Task[None]) -> None:
        self._requests.discard(request)
        if request.cancelled():
            return
        failure = request.exception()  # aiokafka's requests raise only what ends the producer
        if failure is not None:
            self._failure = failure
            self._look.set()
        else:
            self._send_added()

    async def _send_produce_req(self, node_id: int, batches: dict[TopicPartition, MessageBatch]) -> None:
        await _Request(self, batches).do(node_id)
        self._in_flight.remove(node_id)
        self._muted_partitions.difference_update(batches)
        # No other batch of these partitions was sent meanwhile, and none can be before this returns.
        for tp, batch in batches.items():
            future = batch.future
            known = future.done() and not future.cancelled()
            if known and isinstance(future.exception(), REFUSALS) and self._txn_manager is not None:
                self._txn_manager.increment_sequence_number(tp, -batch.record_count)
