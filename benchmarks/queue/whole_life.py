"""lapse: from the log to a leased delivery with payload to a batched acknowledgment, with durable state."""

from __future__ import annotations

import gc
import threading
import time
from typing import cast

from benchmarks.comparison.contestant import Figures, Stopwatch, alone, cpu_s
from benchmarks.instruments.load import create, order, publish
from benchmarks.instruments.worker import Worker
from lapse_client import Connection, Queue, QueueSubscriber
from lapse_client.subscriber.terms import Payload

BACKLOG = 20_000


def run(
    bootstrap_servers: str,
    messages: int = 300_000,
    payload: str = "packed",
    options: str = "",
    filter: str = "",  # noqa: A002  # the name in the command
    store: str = "memory",
    json: bool = False,
    groups: int = 50_000,
    frozen: bool = False,
) -> Figures:
    """Publish, start a worker, and drain through one subscriber.

    The time runs from the subscriber's first batch to the answer after its last acknowledgment.

    Args:
        bootstrap_servers: the broker.
        messages: the number of messages.
        payload: `packed`, `inline`, or `reference`: deliveries name bookmarks, and the client reads the topic.
        options: further lines for the queue in `lapse.toml`.
        filter: the subscriber's filter; empty = none.
        store: `memory` or `rocksdb`.
        json: whether payloads are JSON, for expressions.
        groups: the number of accounts in these payloads.
        frozen: whether the garbage collector of this process leaves out what is there, and runs rarely.
    """
    if frozen:
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
    name = f"bench-{time.time_ns()}"
    entity = f'[queue.{name}]\nexpiration = "enabled"\nlease_period = "60s"\n{options}\n'
    with Worker(bootstrap_servers, name, entity, store) as worker:
        create(bootstrap_servers, name)
        worker.apply()
        publish(bootstrap_servers, name, messages, payload=(lambda number: order(number, groups)) if json else None)
        worker.start()
        return _drain(Connection(bootstrap_servers), name, messages, worker, payload, filter)


def _drain(connection: Connection, name: str, messages: int, worker: Worker, payload: str, text: str) -> Figures:
    got = 0
    watch: Stopwatch | None = None
    ready: list[float] = []
    threading.Thread(target=_note_cpu_when_ready, args=(worker, ready), daemon=True).start()
    with QueueSubscriber(
        name,
        max_backlog=BACKLOG,
        connection=connection,
        filter=text or None,
        payload=cast("Payload", payload),
        ack_batch_size=2_000,
        ack_interval_ms=20,
        timeout_s=60,
    ) as subscriber:
        for batch in subscriber.batches(max_size=2_000, timeout=60):
            watch = watch or Stopwatch(worker.process)
            got += len(batch)
            for one in batch:
                one.key, one.value  # noqa: B018  # read, as the peers do
            subscriber.acknowledge(batch)
            if got >= messages:
                break
    # Closing has waited for the answer to `unsubscribe`, and so for every acknowledgment before it.
    figures = watch.figures(got) if watch is not None else {}
    if ready:
        # Reading before the first delivery is part of the worker's work.
        figures["worker_us"] = (cpu_s(worker.process) - ready[0]) / messages * 1e6
    with Queue(name, connection=connection) as queue:
        left = queue.depth()["depth"]
    if got < messages or left:
        raise RuntimeError(f"{got} of {messages} delivered, {left} left: not a whole life")
    return figures


def _note_cpu_when_ready(worker: Worker, into: list[float]) -> None:
    """Note the CPU of the worker's start, up to the restoration of its shard."""
    worker.until(lambda: "restored" in worker.log.read_text(errors="replace"), every_s=0.01)
    into.append(cpu_s(worker.process))


if __name__ == "__main__":
    alone(run)
