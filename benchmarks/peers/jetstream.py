"""A work queue of NATS JetStream: in files, each message with a lifetime, explicitly acknowledged one by one."""

from __future__ import annotations

import asyncio
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.comparison.contestant import Figures, Skipped, Stopwatch, alone
from benchmarks.instruments.load import KEYS, PAYLOAD_BYTES
from benchmarks.peers.elsewhere import go_program
from benchmarks.peers.peer_server import peer_server

if TYPE_CHECKING:
    from nats.js import JetStreamContext

MODULE = "github.com/nats-io/nats-server/v2@v2.11.10"
"""The Go module of the server."""

_STREAM = _SUBJECT = "bench"
_TTL_S = 3_600
_BATCH = 1_000


def run(messages: int = 50_000) -> Figures:
    """Publish, and drain through one pulling consumer. Skip if server or client cannot be installed.

    The time runs from the first batch to the server's answer to the last acknowledgment.
    """
    if find_spec("nats") is None:
        raise Skipped("the package nats-py is not installed")
    program = go_program("nats-server", MODULE)

    def command(port: int, directory: Path) -> list[str | Path]:
        return [program, "--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", directory]

    with peer_server(command) as port:
        return asyncio.run(_life(port, messages))


async def _life(port: int, messages: int) -> Figures:
    import nats
    from nats.js.api import RetentionPolicy, StorageType, StreamConfig

    async with await nats.connect(f"nats://127.0.0.1:{port}") as connection:
        stream = connection.jetstream()
        await stream.add_stream(
            StreamConfig(
                name=_STREAM,
                subjects=[_SUBJECT],
                storage=StorageType.FILE,
                retention=RetentionPolicy.WORK_QUEUE,
                allow_msg_ttl=True,
            )
        )
        await _publish(stream, messages)
        return await _drain(stream, messages)


async def _publish(stream: JetStreamContext, messages: int) -> None:
    body = os.urandom(PAYLOAD_BYTES // 2).hex().encode()
    for first in range(0, messages, _BATCH):
        answers = [
            await stream.publish_async(_SUBJECT, body, headers={"key": f"k{number % KEYS}"}, msg_ttl=_TTL_S)
            for number in range(first, min(messages, first + _BATCH))
        ]
        await asyncio.gather(*answers)


async def _drain(stream: JetStreamContext, messages: int) -> Figures:
    from nats.js.api import AckPolicy, ConsumerConfig

    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=20 * _BATCH)
    consumer = await stream.pull_subscribe(_SUBJECT, "bench", config=config)
    got = 0
    watch: Stopwatch | None = None
    while got < messages:
        batch = await consumer.fetch(min(_BATCH, messages - got), timeout=20)
        watch = watch or Stopwatch()
        for message in batch:
            assert message.headers is not None
            message.headers["key"], message.data  # read key and value, as the other contestants do
            got += 1
            # The last acknowledgment waits for the server's answer, which follows all earlier acknowledgments.
            await (message.ack() if got < messages else message.ack_sync())
    left = (await stream.stream_info(_STREAM)).state.messages
    if left or watch is None:
        raise RuntimeError(f"{got} of {messages} delivered, {left} left")
    return watch.figures(got)


if __name__ == "__main__":
    alone(run)
