"""Keeps a queue busy with lifetimes, schedules, repeats, expired leases and cancelled deliveries."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lapse_client.error import LapseError
from support.processes.deployment import Deployment, broker_now_ms


class Turmoil:
    """Publishes and consumes in threads until it is stopped. Each thread has a random seed of its own.

    Args:
        deployment: a deployment with the queue `torn` of two partitions.
        stems: the queues to consume.
        pause_s: the pause of each publisher between two batches, s.
    """

    def __init__(self, deployment: Deployment, stems: Iterable[str], pause_s: float = 0.02) -> None:
        self._deployment = deployment
        self._pause_s = pause_s
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(at,)) for at in (0, 1)]
        for stem in stems:
            self._threads += [threading.Thread(target=self._consume, args=(stem, at)) for at in (0, 1)]
        self._threads.append(threading.Thread(target=self._ask))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run the threads during the block."""
        for one in self._threads:
            one.start()
        try:
            yield
        finally:
            self._over.set()
            for one in self._threads:
                one.join(30)

    def _publish(self, partition: int) -> None:
        chance = random.Random(partition)
        number = 0
        while not self._over.wait(self._pause_s):
            headers = chance.choice(
                [
                    [],
                    [("lapse-ttl-ms", b"%d" % chance.randint(1, 900))],
                    [("lapse-enqueue-at-ms", b"%d" % (broker_now_ms() + chance.randint(-50, 400)))],
                    [("lapse-message-id", b"%d" % chance.randint(0, number + 1))],
                    [("lapse-ttl-ms", b"never")],
                ]
            )
            values = [
                b'{"rank": %d, "who": "%d"}' % (chance.randint(0, 4), chance.randint(0, 9))
                for _ in range(chance.randint(1, 12))
            ]
            self._deployment.write("torn", *values, headers=headers, partition=partition)
            number += 1

    def _consume(self, stem: str, seed: int) -> None:
        chance = random.Random(f"{stem} {seed}")
        with self._deployment.subscriber(stem, chance.randint(5, 40)) as subscriber:
            while not self._over.is_set():
                delivery = subscriber.receive(0.1)
                what = chance.choices(["acknowledge", "cancel", "expire", ""], [8, 1, 1, 1])[0]
                if delivery is not None and what:
                    subscriber.settle(what, [delivery])

    def _ask(self) -> None:
        with self._deployment.queue("torn") as queue:
            while not self._over.wait(2 * self._pause_s):
                try:
                    queue.depth()
                except LapseError:
                    continue  # no worker answered
