"""A consumer group of a Redis stream: written to its append-only file, synced every second, acknowledged by batches."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.comparison.contestant import Figures, Skipped, Stopwatch, alone
from benchmarks.instruments.load import KEYS, PAYLOAD_BYTES
from benchmarks.peers.peer_server import peer_server

if TYPE_CHECKING:
    import redis

_STREAM = _GROUP = "bench"
_BATCH = 1_000


def run(messages: int = 300_000) -> Figures:
    """Publish, and drain through one consumer of a group. Skip if Redis or its client is missing.

    The time runs from the first batch to the answer to the last acknowledgment.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise Skipped("no redis-server on the path")
    try:
        from redis import Redis
    except ImportError:
        raise Skipped("the package redis is not installed") from None

    def command(port: int, directory: Path) -> list[str]:
        durable = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", ""]
        return [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), *durable]

    with peer_server(command) as port, Redis(port=port) as client:
        _publish(client, messages)
        client.xgroup_create(_STREAM, _GROUP, "0")
        return _drain(client, messages)


def _publish(client: redis.Redis, messages: int) -> None:
    body = os.urandom(PAYLOAD_BYTES // 2).hex().encode()
    for first in range(0, messages, _BATCH):
        with client.pipeline(transaction=False) as several:
            for number in range(first, min(messages, first + _BATCH)):
                several.xadd(_STREAM, {"key": b"k%d" % (number % KEYS), "value": body})
            several.execute()


def _drain(client: redis.Redis, messages: int) -> Figures:
    got = 0
    watch: Stopwatch | None = None
    while got < messages:
        answer = client.xreadgroup(_GROUP, "one", {_STREAM: ">"}, count=_BATCH, block=10_000)
        if not answer:
            break
        watch = watch or Stopwatch()
        ((_, batch),) = answer
        for _, message in batch:
            message[b"key"], message[b"value"]  # read key and value, as the other contestants do
        got += client.xack(_STREAM, _GROUP, *(name for name, _ in batch))
    if got < messages or watch is None:
        raise RuntimeError(f"{got} of {messages} delivered")
    return watch.figures(got)


if __name__ == "__main__":
    alone(run)
