"""A subscriber's process: serves departures one by one, each in its time, until it is stopped or killed.

It settles a delivery as follows:

- the flight is served before it leaves: acknowledged;
- the flight has left already, or leaves meanwhile: cancelled, and the queue expires it;
- the flight is cancelled: expired at once, since there is nothing to serve;
- now and then at random: cancelled, for another subscriber.

Only flights that are served take time.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

import orjson

from lapse.demo.plan import Plan
from lapse_client import Connection, Delivery, LapseError, QueueSubscriber

_PATIENCE_S: Final = 80.0
"""Long enough for a start while the worker of its shards is dead, s."""

_BATCH_S: Final = 0.05
"""About how long a batch takes, s. Its acknowledgments are sent together."""


def main(path: Path, number: int, life: int) -> None:
    """Serve until SIGTERM, or until the director ends.

    Args:
        path: path of the plan.
        number: the subscriber's number.
        life: how often it was started before.
    """
    plan = Plan.read(path)
    chance = random.Random(f"{plan.seed}/{number}/{life}")  # noqa: S311  # accidents, not secrets
    subscriber = QueueSubscriber(
        plan.queue,
        plan.max_backlog,
        connection=Connection.from_environment(plan.bootstrap_servers),
        name=f"gate-{number}-{life}",
        heartbeat_timeout_ms=plan.heartbeat_ms,
        ack_interval_ms=20,
        timeout_s=_PATIENCE_S,
    )

    def leave(_number: int = 0, _frame: FrameType | None = None) -> None:
        threading.Thread(target=subscriber.close).start()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal; the director decides
    with subscriber:
        print('{"ready":true}', flush=True)  # noqa: T201  # to the director
        gate = _Gate(plan, subscriber, chance)
        for batch in subscriber.batches(max(1, round(_BATCH_S / plan.service_s))):
            gate.serve(batch)


class _Gate:
    """Serves batches, with the plan's time for each flight."""

    def __init__(self, plan: Plan, subscriber: QueueSubscriber, chance: random.Random) -> None:
        self._plan = plan
        self._subscriber = subscriber
        self._chance = chance
        self._free_s = time.monotonic()

    def serve(self, batch: list[Delivery]) -> None:
        """Serve a batch, and settle all of it."""
        void: list[Delivery] = []
        here: list[Delivery] = []
        left: list[Delivery] = []
        now_ms = time.time() * 1000
        for delivery in batch:
            if orjson.loads(delivery.value or b"{}").get("cancelled"):
                void.append(delivery)
            else:
                (here if _leaves_after(delivery, now_ms) else left).append(delivery)
        self._free_s = max(self._free_s, time.monotonic()) + len(here) * self._plan.service_s
        time.sleep(max(0.0, self._free_s - time.monotonic()))
        served: list[Delivery] = []
        now_ms = time.time() * 1000
        for delivery in here:
            amiss = self._chance.random() < self._plan.cancel_share
            (left if amiss or not _leaves_after(delivery, now_ms) else served).append(delivery)
        self._subscriber.acknowledge(served)
        if left:
            self._subscriber.settle("cancel", left)
        if void:
            self._subscriber.settle("expire", void)


def _leaves_after(delivery: Delivery, now_ms: float) -> bool:
    return delivery.expires_at_ms is None or delivery.expires_at_ms > now_ms


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except LapseError as error:
        sys.exit(str(error))  # its log is shown to the user of the demo
