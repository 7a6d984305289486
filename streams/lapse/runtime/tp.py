"""A partition of a topic: a tuple as in every Kafka library, so all of them are equal."""

from __future__ import annotations

from typing import NamedTuple


class TP(NamedTuple):
    """A topic and one of its partitions."""

    topic: str
    partition: int
