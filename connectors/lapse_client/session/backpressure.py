"""Backpressure: a channel stops reading while its application lags behind, unless a call waits for what it reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer


class Backpressure:
    """Pauses and resumes a channel's consumer.

    Answers and deliveries come on the same partitions. The application takes nothing while one of its calls waits for
    an answer. So the channel reads on during such a call, and the buffers may grow beyond their limits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._paused = False

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """Have the channel read until the block ends. May be called from any thread."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1

    def keep(self, consumer: Consumer, *, full: bool) -> None:
        """Pause the consumer if the buffers are full, and no call waits; else resume it. For the channel's thread."""
        paused = full and not self._calls
        if paused is not self._paused:
            self._paused = paused
            (consumer.pause if paused else consumer.resume)(consumer.assignment())
