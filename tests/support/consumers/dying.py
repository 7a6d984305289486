"""A consumer that works in transactions, and kills itself at a step of the first one.

    python dying.py <servers> <queue> <topic of outputs> <step>

The steps: `begun`, in the handler; `written`, with outputs and claims in Kafka; `held`, after the shard confirmed the
lease; `decided`, committed and not acknowledged.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from lapse_client import Connection, QueueSubscriber
from lapse_client.transaction.atomic_work import AtomicWork


def dying_after(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> None:
        method(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    return call


def main(servers: str, queue: str, topic: str, step: str) -> None:
    if step != "begun":
        method = {"written": "_written", "held": "_hold", "decided": "_decide"}[step]
        setattr(AtomicWork, method, dying_after(getattr(AtomicWork, method)))
    with QueueSubscriber(queue, 1, connection=Connection(servers), heartbeat_timeout_ms=1_000) as subscriber:
        delivery = subscriber.receive(60)
        assert delivery is not None
        with delivery.transaction() as tx:
            tx.produce(topic, b"%b by %b" % (delivery.value or b"", step.encode()), key=delivery.value)
            if step == "begun":
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
