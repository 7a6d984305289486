"""The live messages or records of a shard, by underlying topic (C65)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from lapse.core.queue.inquiry.live_topics import count_live
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.shard.machine import Machine

_OF_A_SOW_TOPIC: Final = ("records", "scheduled", "dying")


def live_parts(machine: Machine) -> Iterator[Counter[str]]:
    """Yield numbers of live messages or records by topic, a part at a time; those of a SOW topic without its topic."""
    if isinstance(machine, QueueMachine):
        yield from count_live(machine.shard.state)
    else:
        figures = machine.gauges()
        yield Counter({"": sum(figures[name] for name in _OF_A_SOW_TOPIC)})
