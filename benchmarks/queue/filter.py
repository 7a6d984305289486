"""Measures one evaluation of a filter on a message that is already parsed."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

from benchmarks.comparison.contestant import Figures, alone
from lapse.core.expression import compile_filter

TEXT = "/price * /qty > 100 AND /symbol LIKE '^A'"


@dataclass
class Message:
    """A message with a decoded payload."""

    payload: object
    headers: dict[str, bytes | None] = field(default_factory=dict)
    key: bytes | None = None
    topic: str = "orders"
    partition: int = 0
    offset: int = 0
    timestamp_ms: int = 0


def run(evaluations: int = 2_000_000) -> Figures:
    """Evaluate the filter on messages: half of them match, and half of the others fail at the symbol."""
    matches = compile_filter(TEXT)
    messages = [
        Message({"price": price, "qty": 3, "symbol": symbol})
        for price, symbol in ((50.5, "ABC"), (40, "AXY"), (70, "BCD"), (1.25, "ACD"))
    ] * 250
    assert sum(map(matches, messages)) == len(messages) // 2
    costs = []
    for _ in range(max(1, evaluations // len(messages) // 10)):
        began = time.process_time_ns()
        for _ in range(10):
            for message in messages:
                matches(message)
        costs.append((time.process_time_ns() - began) / 1e3 / 10 / len(messages))
    return {"messages": evaluations, "evaluation_us": statistics.median(costs), "best_us": min(costs)}


if __name__ == "__main__":
    alone(run)
