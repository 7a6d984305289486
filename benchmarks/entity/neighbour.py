"""Measures how long a busy queue waits while a large entity on the same worker is restored (C90)."""

from __future__ import annotations

import contextlib
import time

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.instruments import turns
from benchmarks.instruments.load import Headers, create, order, publish
from benchmarks.instruments.trickle import Trickle
from benchmarks.instruments.worker import Worker
from lapse_client import Admin, Connection, Queue, SowClient

_RATE = 200
_AFTER_S = 1.0
_PATIENCE_S = 300.0

_FORMS: dict[str, tuple[str, Headers]] = {
    "queue": ("", [("lapse-ttl-ms", b"36000000")]),
    "schedule": ("", [("lapse-enqueue-at-ms", b"4000000000000")]),
    "sow": ("", [("lapse-ttl-ms", b"36000000")]),
    "hash_index": ('hash_index = ["/price"]', [("lapse-ttl-ms", b"36000000")]),
}


def run(bootstrap_servers: str, form: str = "schedule", messages: int = 300_000) -> Figures:
    """Fill an entity, and alter one of its settings while a queue on the same worker delivers.

    Args:
        bootstrap_servers: the broker.
        form: `queue`, `schedule` (all messages are scheduled), `sow`, or `hash_index` (a SOW topic with a hash index).
        messages: how many messages or records the entity holds.
    """
    stamp = time.time_ns()
    large, busy, deployment = f"large-{stamp}", f"busy-{stamp}", f"neighbour-{stamp}"
    more, headers = _FORMS[form]
    kind = "queue" if form in ("queue", "schedule") else "sow"
    tables = f'[{kind}.{large}]\nexpiration = "enabled"\n{more}\n[queue.{busy}]'
    connection = Connection(bootstrap_servers)
    for topic in (large, busy):
        create(bootstrap_servers, topic)
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(
            Worker(bootstrap_servers, deployment, tables, "memory", 'definitions = "topic"', turns=True)
        )
        worker.apply()
        publish(bootstrap_servers, large, messages, headers=[headers], payload=order, keys=messages)
        worker.start()
        worker.until(lambda: _holds(connection, large, kind, messages), timeout_s=_PATIENCE_S, every_s=0.5)
        trickle = Trickle(bootstrap_servers, busy, _RATE)
        worker.until(lambda: len(trickle.delivered_at) > 2 * _RATE)
        admin = stack.enter_context(Admin(deployment, connection=connection, timeout_s=_PATIENCE_S))
        figures: Figures = {"messages": messages}
        for what in ("nothing", "alter"):
            since_s = time.time()
            if what == "nothing":
                time.sleep(3)
            elif kind == "queue":
                admin.alter_queue(large, lease_period="50s")
            else:
                admin.alter_sow_topic(large, heartbeat_timeout="50s")
            _holds(connection, large, kind, messages)
            until_s = time.time()
            time.sleep(_AFTER_S)
            cpu_ms, _ = turns.longest(worker.turns_file, since_s, until_s + _AFTER_S)
            figures |= {
                f"{what}_s": until_s - since_s,
                f"{what}_gap_ms": trickle.longest_ms(since_s, until_s + _AFTER_S),
                f"{what}_turn_cpu_ms": cpu_ms,
            }
        trickle.end()
    return figures


def _holds(connection: Connection, name: str, kind: str, messages: int) -> bool:
    """Return whether an entity has read all messages. Its answer also shows that it serves."""
    if kind == "queue":
        with Queue(name, connection=connection, timeout_s=_PATIENCE_S) as queue:
            counts = queue.depth()
            return counts["depth"] + counts["scheduled"] >= messages
    with SowClient(name, connection=connection, timeout_s=_PATIENCE_S) as client:
        return bool(list(client.query(keys=[b"k%d" % (messages - 1)])))


if __name__ == "__main__":
    alone(run)
