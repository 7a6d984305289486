"""Measures a queue or a share group with several partitions, workers and consumers; each consumer is a process."""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from typing import Any, Final, cast

from confluent_kafka import ShareConsumer

from benchmarks.comparison.contestant import Figures, alone, broker_cpu_s, cpu_s
from benchmarks.instruments.load import create, publish
from benchmarks.instruments.worker import Worker
from benchmarks.peers.share_group import acknowledge_all, from_the_beginning
from benchmarks.queue.whole_life import BACKLOG
from lapse_client import Connection, QueueSubscriber
from lapse_client.subscriber.terms import Payload

_FEW: Final = 2_000
"""Messages of a warm-up batch. Batches are published until each consumer has got some."""

_PATIENCE_S: Final = 120.0

_LOOK_EVERY_S: Final = 0.02
"""How often a consumer checks whether the others got the last messages, s. It is part of the measured time."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The counters that all consumers share.

    Attributes:
        got: the messages received so far.
        wanted: the number of messages at which the consumers stop.
        measured: set when further messages count.
        started: the numbers of the consumers that have got their first batch.
        reports: from each consumer at its end: first batch that counts, end (both s, monotonic), and CPU between, s.
    """

    got: Any
    wanted: Any
    measured: Event
    started: queue.Queue[int]
    reports: queue.Queue[tuple[float, float, float]]

    @classmethod
    def new(cls) -> Tally:
        """Create the counters, for processes that are spawned."""
        context = multiprocessing.get_context("spawn")
        return cls(
            context.Value("q", 0),
            context.Value("q", 1 << 62),
            context.Event(),
            cast("queue.Queue[int]", context.Queue()),
            cast("queue.Queue[tuple[float, float, float]]", context.Queue()),
        )

    @property
    def complete(self) -> bool:
        """Whether all messages were received."""
        return bool(self.got.value >= self.wanted.value)


class _Count:
    """Counts the messages of one consumer."""

    def __init__(self, tally: Tally, number: int) -> None:
        self._tally, self._number = tally, number
        self._started = False
        self._began: tuple[float, float] | None = None

    def add(self, count: int) -> None:
        """Count a batch."""
        if not self._started:
            self._started = True
            self._tally.started.put(self._number)
        if self._began is None and self._tally.measured.is_set():
            self._began = time.monotonic(), time.process_time()
        with self._tally.got.get_lock():
            self._tally.got.value += count

    def end(self) -> None:
        """Report this consumer's times. Call it when all its messages are acknowledged."""
        now = time.monotonic(), time.process_time()
        began = self._began or now
        self._tally.reports.put((began[0], now[0], now[1] - began[1]))


def run(
    bootstrap_servers: str,
    messages: int = 600_000,
    partitions: int = 4,
    workers: int = 2,
    consumers: int = 2,
    share_group: bool = False,
    payload: str = "packed",
) -> Figures:
    """Publish in one transaction to consumers that wait, and measure until all messages are acknowledged.

    The time runs from the first batch of any consumer to the answer to the last acknowledgment of any.

    Args:
        bootstrap_servers: the broker.
        messages: the number of messages.
        partitions: the topic's partitions.
        workers: the number of workers of lapse.
        consumers: the number of consumer processes.
        share_group: whether to measure Kafka's share group instead of lapse.
        payload: how lapse delivers payloads, as in `whole_life`.
    """
    name = f"several-{time.time_ns()}"
    create(bootstrap_servers, name, partitions)
    if share_group:
        from_the_beginning(bootstrap_servers, name)
        return _measure(bootstrap_servers, name, messages, [partial(_share, name, bootstrap_servers)] * consumers, [])
    subscriber = partial(_subscribe, name, bootstrap_servers, payload)
    with _workers(bootstrap_servers, name, partitions, workers) as team:
        return _measure(bootstrap_servers, name, messages, [subscriber] * consumers, team)


@contextmanager
def _workers(bootstrap_servers: str, name: str, partitions: int, count: int) -> Iterator[Sequence[Worker]]:
    """Start workers, and wait until they share the shards evenly."""
    entity = f'[queue.{name}]\nexpiration = "enabled"\nlease_period = "60s"\n'
    team: list[Worker] = []
    try:
        for number in range(count):
            worker = Worker(bootstrap_servers, name, entity).__enter__()
            team.append(worker)
            if number == 0:
                worker.apply()
            worker.start()
            share = partitions // (number + 1)
            worker.until(lambda one=worker, least=share: one.log.read_text(errors="replace").count("restored") >= least)
        yield team
    finally:
        for worker in team:
            worker.__exit__(None, None, None)


def _measure(
    bootstrap_servers: str, name: str, messages: int, consumers: Sequence[partial[None]], team: Sequence[Worker]
) -> Figures:
    """Start the consumers, wait until each has got messages, and measure the rest."""
    tally = Tally.new()
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = [
        context.Process(target=consumer, args=(_PATIENCE_S, tally, number), daemon=True)
        for number, consumer in enumerate(consumers)
    ]
    for process in processes:
        process.start()
    try:
        published = _warm_up(bootstrap_servers, name, tally, len(processes))
        tally.wanted.value = published + messages
        tally.measured.set()
        before = sum(cpu_s(worker.process) for worker in team), broker_cpu_s()
        publish(bootstrap_servers, name, messages, at_once=True)
        reports = [tally.reports.get(timeout=_PATIENCE_S) for _ in processes]
        after = sum(cpu_s(worker.process) for worker in team), broker_cpu_s()
    finally:
        for process in processes:
            process.terminate()
            process.join(10)
    if tally.got.value != published + messages:
        raise RuntimeError(f"{tally.got.value - published} of {messages} delivered")
    seconds = max(end for _, end, _ in reports) - min(begin for begin, _, _ in reports)
    figures = {
        "messages": float(messages),
        "rate": messages / seconds,
        "client_us": sum(cpu for *_, cpu in reports) / messages * 1e6,
        "broker_us": (after[1] - before[1]) / messages * 1e6,
    }
    return figures | ({"worker_us": (after[0] - before[0]) / messages * 1e6} if team else {})


def _warm_up(bootstrap_servers: str, name: str, tally: Tally, consumers: int) -> int:
    """Publish until each consumer has got messages and none is left. Return how many were published."""
    published = 0
    started: set[int] = set()
    deadline = time.monotonic() + _PATIENCE_S
    while len(started) < consumers or tally.got.value < published:
        if time.monotonic() > deadline:
            seen = f"{tally.got.value} of {published} messages seen"
            raise RuntimeError(f"{len(started)} of {consumers} consumers at work, {seen}")
        if tally.got.value >= published:
            publish(bootstrap_servers, name, _FEW)
            published += _FEW
        try:
            while True:
                started.add(tally.started.get(timeout=0.5))
        except queue.Empty:
            continue
    return published


def _subscribe(name: str, bootstrap_servers: str, payload: str, patience_s: float, tally: Tally, number: int) -> None:
    count = _Count(tally, number)
    with QueueSubscriber(
        name,
        max_backlog=BACKLOG,
        connection=Connection(bootstrap_servers),
        payload=cast("Payload", payload),
        ack_batch_size=2_000,
        ack_interval_ms=20,
        timeout_s=patience_s,
    ) as subscriber:
        while not tally.complete:
            for batch in subscriber.batches(max_size=2_000, timeout=_LOOK_EVERY_S):
                for one in batch:
                    one.key, one.value  # noqa: B018  # read, as the peers do
                subscriber.acknowledge(batch)
                count.add(len(batch))
                if tally.complete:
                    break
    count.end()  # closing has waited for every acknowledgment


def _share(name: str, bootstrap_servers: str, patience_s: float, tally: Tally, number: int) -> None:
    count = _Count(tally, number)
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": name, "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe([name])
    deadline = time.monotonic() + patience_s
    while not tally.complete and time.monotonic() < deadline:
        batch = consumer.poll(_LOOK_EVERY_S)
        if not batch:
            continue
        if got := acknowledge_all(consumer, batch):
            count.add(got)
    consumer.commit_sync()
    count.end()
    consumer.close()


if __name__ == "__main__":
    alone(run)
