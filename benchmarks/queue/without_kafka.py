"""Measures messages that are published and acknowledged with `lapse.testing`, without Kafka; no row (X8)."""

from __future__ import annotations

import psutil

from benchmarks.comparison.contestant import Figures, alone, cpu_s
from lapse.testing import Lapse


def run(messages: int = 1_000, rounds: int = 5) -> Figures:
    """Publish and acknowledge messages one by one. Return the CPU by `max_backlog` in the fastest round, s.

    Args:
        messages: the number of messages.
        rounds: the number of rounds.
    """
    figures: Figures = {}
    for backlog in (1, 10, 100, 1_000):
        _consume(50, backlog)  # late imports are done
        figures[f"backlog_{backlog}_cpu_s"] = min(_consume(messages, backlog) for _ in range(rounds))
    return figures


def _consume(messages: int, backlog: int) -> float:
    process = psutil.Process()
    with Lapse() as lapse:
        lapse.queue("orders")
        with lapse.publisher() as publisher, lapse.subscriber("orders", backlog) as subscriber:
            before = cpu_s(process)
            for number in range(messages):
                publisher.publish("orders", b"%d" % number)
            for delivery in subscriber.messages(timeout=1):
                delivery.acknowledge()
            used = cpu_s(process) - before
        assert lapse.depth("orders") == 0
    return used


if __name__ == "__main__":
    alone(run)
