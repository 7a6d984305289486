"""A partition of a topic, in the words of every Kafka library: a tuple, so theirs and this one are equal."""

from __future__ import annotations

from typing import NamedTuple


class TP(NamedTuple):
    """A topic and one of its partitions."""

    topic: str
    partition: int
