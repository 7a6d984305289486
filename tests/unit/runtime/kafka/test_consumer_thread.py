"""The consumer runs in the worker's loop, where Faust has a thread."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("faust")

from faust.transport.drivers.aiokafka import ConsumerRebalanceListener
from faust.types import TP

from lapse.runtime.kafka.consumer_thread import ConsumerThread

REASON = "no broker"


class Owner:
    """Faust's side of the consumer; it notes in which thread it is called."""

    RebalanceListener = ConsumerRebalanceListener

    def __init__(self) -> None:
        conf = SimpleNamespace(
            producer_partitioner=None, stream_processing_timeout=1.0, broker_commit_livelock_soft_timeout=1.0
        )
        self.app = SimpleNamespace(conf=conf)
        self.transport = SimpleNamespace(app=self.app)
        self.called: list[tuple[str, int]] = []

    async def on_partitions_revoked(self, _: set[TP]) -> None:
        self.called.append(("revoked", threading.get_ident()))

    async def on_partitions_assigned(self, _: set[TP], generation_id: int = 0) -> None:
        self.called.append((f"assigned {generation_id}", threading.get_ident()))


class Served(ConsumerThread):
    """A consumer without Kafka."""

    async def on_start(self) -> None:
        """Connect to nothing."""


class Unreachable(ConsumerThread):
    """A consumer whose broker cannot be reached."""

    async def on_start(self) -> None:
        raise ConnectionError(REASON)


class NotClosed(Served):
    """A consumer that fails while it is closed."""

    async def on_thread_stop(self) -> None:
        raise ConnectionError(REASON)


def made(kind: type[ConsumerThread]) -> Any:
    loop = asyncio.get_running_loop()
    return kind(Owner(), loop=loop, thread_loop=loop)  # type: ignore[arg-type]  # as little of Faust as it needs


@pytest.mark.feature("Q1")
def test_the_consumer_starts_no_thread_and_is_called_in_the_workers() -> None:
    async def scene() -> None:
        threads, here = threading.active_count(), threading.get_ident()
        served = made(Served)
        beside = asyncio.create_task(asyncio.Event().wait())
        await served.start()
        assert threading.active_count() == threads
        assert await served.call_thread(threading.get_ident) == here
        await served.on_partitions_revoked({TP("orders", 0)})
        await served.on_partitions_assigned({TP("orders", 0)}, 7)
        assert served.consumer.called == [("revoked", here), ("assigned 7", here)]
        await served.stop()
        assert not beside.cancelling(), "other tasks of the loop go on"
        beside.cancel()

    asyncio.run(scene())


def test_a_consumer_that_cannot_start_says_why() -> None:
    async def scene() -> None:
        with pytest.raises(ConnectionError, match=REASON):
            await made(Unreachable).start()

    asyncio.run(scene())


def test_a_worker_does_not_wait_for_a_consumer_that_cannot_be_closed() -> None:
    async def scene() -> None:
        served = made(NotClosed)
        await served.start()
        async with asyncio.timeout(30):
            await served.stop()

    asyncio.run(scene())
