"""Queues that cannot get shards: cases of test_enlargement.py and of docs/bad-input.md (C81, X7)."""

from __future__ import annotations

from typing import Final, NamedTuple

from lapse.cli.partitions import check
from lapse.config.document import loads
from lapse.runtime.topics.enlargement import Enlargement, enlargement
from lapse.runtime.topics.topology import Topology, TopologyError

_QUEUES: Final = """
[queue.orders]
[queue.both]
topics = ["web", "fax"]
[queue.total]
ordering = "total"
[queue.many]
topic_pattern = "many-.*"
default_publish_target = "many-1"
[queue.ranked]
priority = "/price"
[queue.rated]
rate = "10/s"
[sow.prices]
"""


def enlarged(name: str, shards: int = 2, **partitions: int) -> Enlargement:
    """What a queue needs that was created over topics with so many partitions, and now has these."""
    config = loads(_QUEUES)
    check(name, config)
    before = Topology(config, dict.fromkeys(["orders", "web", "fax", "total", "prices"], shards))
    existing = {one.name: one.partitions for one in before.wanted()}
    return enlargement(Topology(config, {**existing, **partitions}), name)


class Case(NamedTuple):
    """A queue that is refused.

    Attributes:
        name: the queue.
        partitions: of its topics; it has two shards.
    """

    name: str
    partitions: dict[str, int]

    @property
    def shown(self) -> str:
        """The input as a page has it."""
        topics = ", ".join(f"{topic} {count}" for topic, count in self.partitions.items())
        return f"`lapse queue partitions {self.name}`" + (f", partitions: {topics}" if topics else "")

    @property
    def message(self) -> str:
        """What is told."""
        try:
            enlarged(self.name, **self.partitions)
        except TopologyError as error:
            return str(error)
        return ""


CASES: Final = (
    Case("order", {}),
    Case("prices", {"prices": 4}),
    Case("total", {"total": 4}),
    Case("many", {}),
    Case("orders", {"orders": 1}),
    Case("orders", {"orders": 3}),
    Case("both", {"web": 4, "fax": 2}),
    Case("ranked", {"ranked": 4}),
    Case("rated", {"rated": 2}),
)
