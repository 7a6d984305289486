"""Measures the bytes that a message takes on the broker, by topic, and the CPU of broker, worker and client.

Bytes are those of the log segments on disk, compressed as on the network. Each replica writes them again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from benchmarks.comparison.contestant import BROKER_PID, Figures, alone
from benchmarks.queue import whole_life

_KINDS: Final = (
    (re.compile(r"^lapse\..*\.deliveries$"), "deliveries"),
    (re.compile(r"^lapse\..*\.commands$"), "commands"),
    (re.compile(r"^lapse\.events\."), "events"),
    (re.compile(r"changelog$"), "journal"),
    (re.compile(r"^bench-"), "messages"),
)


def run(messages: int = 300_000, payload: str = "packed") -> Figures:
    """Send messages through a queue on a new broker, and measure the broker's logs.

    Args:
        messages: the number of messages.
        payload: `packed`, `inline`, or `reference`.
    """
    from lapse.embedded import EmbeddedKafka

    with EmbeddedKafka(heap_mb=1024, quick_start=False) as broker:
        os.environ[BROKER_PID] = str(broker.jvm.pid)
        figures = whole_life.run(broker.bootstrap_servers, messages, payload)
        sizes = sizes_by_kind(broker.data)
    return figures | {f"{kind}_bytes": size / messages for kind, size in sizes.items()}


def sizes_by_kind(data: Path) -> dict[str, int]:
    """Return the bytes of the logs below a broker's directory, by the kind of their topic."""
    sizes = {kind: 0 for _, kind in _KINDS}
    for segment in data.rglob("*.log"):
        topic = segment.parent.name.rpartition("-")[0]
        kind = next((kind for pattern, kind in _KINDS if pattern.search(topic)), None)
        if kind is not None:
            sizes[kind] += segment.stat().st_size
    return sizes


if __name__ == "__main__":
    alone(run)
