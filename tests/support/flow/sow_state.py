"""Reads the state of a SOW topic, and what its worker restored."""

import re
from typing import NamedTuple

from lapse_client import SowClient
from support.kafka.log import Tail
from support.processes.worker import Worker


class Restored(NamedTuple):
    """The figures that a worker logs after taking a shard over."""

    keys: int
    begun_offset: int
    end_offset: int


def restored(worker: Worker) -> list[Restored]:
    """Return the figures of all shards that a worker took over, in order."""
    found = re.findall(r"restored (\d+) keys \(changelog read from (\d+) to (\d+)\)", worker.text())
    return [Restored(*map(int, numbers)) for numbers in found]


def count(client: SowClient, *keys: str) -> int:
    """Return how many records there are, of these keys or of all."""
    return sum(1 for _ in client.query(keys=keys or None))


def size(servers: str, topic: str) -> int:
    """Return how many records a topic still has."""
    tail = Tail(servers, topic)
    try:
        return len(tail.drain())
    finally:
        tail.close()
