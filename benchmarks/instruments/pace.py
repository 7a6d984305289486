"""Publishes at a steady rate, each message with its send time, and computes latencies from that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from confluent_kafka import Producer

from benchmarks.comparison.contestant import Figures
from benchmarks.instruments.load import AN_HOUR, PAYLOAD_BYTES


class Pace:
    """A thread that publishes `rate` messages a second for some time; a context manager.

    Receiver and publisher share a process and thus a clock. Without a linger, thousands of messages a second are as
    many requests, and the measurement would show how many of them the broker can handle.

    Args:
        bootstrap_servers: the broker.
        topic: the topic to publish to.
        rate: messages a second.
        seconds: how long latencies count, s.
        linger_ms: the producer's `linger.ms`.
        warm_s: how long to publish before that, s. First calls, new connections, and code that the broker's JVM has
            not compiled yet would be the slowest percent.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        rate: int,
        seconds: float,
        linger_ms: float = 0,
        warm_s: float = 2.0,
    ) -> None:
        self.count = int(rate * (warm_s + seconds))
        self._warm = int(rate * warm_s)
        self._counts_from_s = 0.0
        self._arrived = 0
        self._rate = rate
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": linger_ms, "acks": "all"})
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._latencies: list[float] = []

    def __enter__(self) -> Pace:
        self._producer.list_topics(self._topic, timeout=10)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _publish(self) -> None:
        began = time.perf_counter()
        self._counts_from_s = began + self._warm / self._rate
        for number in range(self.count):
            wait_s = began + number / self._rate - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            stamp = b"%.7f" % time.perf_counter()
            self._producer.produce(self._topic, stamp.ljust(PAYLOAD_BYTES), headers=AN_HOUR[0])
            self._producer.poll(0)
        self._producer.flush()

    def received(self, values: Iterable[bytes | None]) -> bool:
        """Note that these messages arrived now. Return whether more are expected."""
        now = time.perf_counter()
        for sent_s in (float(value or 0) for value in values):
            self._arrived += 1
            if sent_s >= self._counts_from_s:
                self._latencies.append(now - sent_s)
        return self._arrived < self.count

    def figures(self) -> Figures:
        """Return the latencies, ms.

        Raises:
            RuntimeError: Messages are missing.
        """
        if self._arrived < self.count:
            raise RuntimeError(f"{self._arrived} of {self.count} arrived")
        return {"messages": len(self._latencies), "rate": self._rate, **spread(self._latencies, 1e3)}


def spread(values: Iterable[float], scale: float = 1.0) -> Figures:
    """Return the median, the 99th percentile and the maximum."""
    ordered = sorted(values)
    return {
        "median_ms": ordered[len(ordered) // 2] * scale,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * scale,
        "max_ms": ordered[-1] * scale,
    }
