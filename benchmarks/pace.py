"""Publishing at a steady pace, each message with the instant at which it was sent; and latencies from that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from confluent_kafka import Producer

from benchmarks.contestant import Figures
from benchmarks.load import AN_HOUR, PAYLOAD_BYTES


class Pace:
    """A thread that publishes `rate` messages a second, for some seconds; a context manager.

    Receiver and publisher share a process and so a clock. Without a linger, thousands of messages a second are as
    many requests, and what is measured is how many of them the broker can bear.
    """

    def __init__(self, bootstrap_servers: str, topic: str, rate: int, seconds: float, linger_ms: float = 0) -> None:
        self.count = int(rate * seconds)
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
        for number in range(self.count):
            wait_s = began + number / self._rate - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            stamp = b"%.7f" % time.perf_counter()
            self._producer.produce(self._topic, stamp.ljust(PAYLOAD_BYTES), headers=AN_HOUR[0])
            self._producer.poll(0)
        self._producer.flush()

    def received(self, values: Iterable[bytes | None]) -> bool:
        """Note that these arrived now; whether more are to come."""
        now = time.perf_counter()
        self._latencies.extend(now - float(value or 0) for value in values)
        return len(self._latencies) < self.count

    def figures(self) -> Figures:
        """Latencies in milliseconds.

        Raises:
            RuntimeError: messages are missing.
        """
        if len(self._latencies) < self.count:
            raise RuntimeError(f"{len(self._latencies)} of {self.count} arrived")
        return {"messages": self.count, "rate": self._rate, **spread(self._latencies, 1e3)}


def spread(values: Iterable[float], scale: float = 1.0) -> Figures:
    """Median, 99th percentile and greatest."""
    ordered = sorted(values)
    return {
        "median_ms": ordered[len(ordered) // 2] * scale,
        "p99_ms": ordered[int(len(ordered) * 0.99)] * scale,
        "max_ms": ordered[-1] * scale,
    }
