"""Measures how long many messages that are due at once delay others, in their queue and in another one."""

from __future__ import annotations

import time
from typing import Final, Self

from confluent_kafka import Consumer, TopicPartition

from benchmarks.comparison.contestant import Figures, Stopwatch, alone
from benchmarks.instruments import turns
from benchmarks.instruments.load import Headers, create, publish
from benchmarks.instruments.log import Ends
from benchmarks.instruments.trickle import PlainTrickle, Trickle, longest_ms
from benchmarks.instruments.worker import Worker
from lapse.protocol import event as events
from lapse.protocol import topic as topics
from lapse_client import Connection, Queue, QueueSubscriber

_BEFORE_S = 5.0
_AFTER_S = 1.0
_PATIENCE_S = 180.0

_FORMS: Final = ("expire", "come-due", "purge", "come-back", "restart")


def run(
    bootstrap_servers: str, messages: int = 300_000, rate: int = 200, lead_s: float = 0.0, form: str = "expire"
) -> Figures:
    """Run two queues on one worker, each with a steady trickle and a consumer. A crowd falls due in one of them.

    The longest times without a delivery are compared with those after the crowd. A turn is what the worker's event loop
    does without a pause. Its CPU does not depend on the machine's other load.
    The queue is paused until the crowd is due, so that no consumer gets it before.

    Args:
        bootstrap_servers: the broker.
        messages: how many messages are due at once.
        rate: messages a second of each trickle.
        lead_s: how long publishing and reading the crowd may take, s; 0 = an estimate.
        form: what happens to all of them at once: `expire`, `come-due` (they were scheduled), `purge`, `come-back` (one
            subscriber held all), or `restart` (they expired while the worker was down).
    """
    if form not in _FORMS:
        raise ValueError(f"form {form} is none of {', '.join(_FORMS)}")
    stamp = time.time_ns()
    names = {"same": f"crowd-{stamp}", "other": f"other-{stamp}"}
    plain = f"plain-{stamp}"
    lead_s = lead_s or 25 + messages / 20_000
    entities = "".join(f'[queue.{name}]\nexpiration = "enabled"\n' for name in names.values())
    with Worker(bootstrap_servers, names["same"], entities, turns=True) as worker:
        for name in (*names.values(), plain):
            create(bootstrap_servers, name)
        worker.apply()
        worker.start()
        with _Crowd(bootstrap_servers, worker, names["same"], messages, form, time.time() + lead_s) as crowd:
            crowd.enter()
            trickles = {what: Trickle(bootstrap_servers, name, rate) for what, name in names.items()}
            trickles["plain"] = PlainTrickle(bootstrap_servers, plain, rate)
            if (late_s := time.time() + _BEFORE_S - crowd.due_s) > 0 and form in ("expire", "come-due"):
                raise RuntimeError(f"taken in {late_s:.0f} s too late; give more lead_s than {lead_s:.0f}")
            time.sleep(max(0.0, crowd.due_s + 0.001 - time.time()))
            watch = Stopwatch(worker.process)
            resumed_s = crowd.fall_due()
        over_s = time.time()
        figures = {**watch.figures(messages), "seconds": over_s - crowd.due_s}
        after_s = over_s + _AFTER_S
        time.sleep(max(0.0, after_s + _BEFORE_S / 2 - time.time()))
        spans = {"during": (resumed_s, over_s), "after": (after_s, after_s + _BEFORE_S / 2)}
        for what, trickle in trickles.items():
            trickle.end()
            figures |= {f"{what}_{when}_ms": trickle.longest_ms(*span) for when, span in spans.items()}
            figures[f"{what}_delivered"] = len(trickle.delivered_at)
        for what, name in names.items():
            settled = _settled_at(bootstrap_servers, name)
            figures |= {f"{what}_settled_{when}_ms": longest_ms(settled, *span) for when, span in spans.items()}
        for when, since_s, until_s in (("during", crowd.due_s, over_s), ("after", after_s, time.time())):
            figures[f"turn_{when}_cpu_ms"], figures[f"turn_{when}_ms"] = turns.longest(
                worker.turns_file, since_s, until_s
            )
        return figures


class _Crowd:
    """Many messages of a queue that are due at once.

    Args:
        bootstrap_servers: the broker.
        worker: the worker that serves the queue.
        name: name of the queue.
        messages: how many messages there are.
        form: what happens to all of them at once.
        due_s: when that is to happen, s since the epoch.

    Attributes:
        due_s: when it happened, s since the epoch, once `fall_due` has returned.
    """

    def __init__(
        self, bootstrap_servers: str, worker: Worker, name: str, messages: int, form: str, due_s: float
    ) -> None:
        self.due_s = due_s
        self._bootstrap_servers = bootstrap_servers
        self._worker = worker
        self._name = name
        self._messages = messages
        self._form = form
        connection = Connection(bootstrap_servers)
        self._queue = Queue(name, connection=connection)
        self._holder = QueueSubscriber(name, max_backlog=messages, connection=connection, payload="reference")

    def __enter__(self) -> Self:
        self._queue.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._queue.close()

    def enter(self) -> None:
        """Publish the messages, and wait until the queue has all of them. It is paused then."""
        if self._form != "come-back":
            self._queue.pause()
        publish(self._bootstrap_servers, self._name, self._messages, headers=self._headers())
        if self._form == "come-back":
            self._holder.start()
            self._worker.until(lambda: self._queue.depth()["leased"] >= self._messages, every_s=0.5)
            self._queue.pause()
        counted = "scheduled" if self._form == "come-due" else "depth"
        self._worker.until(lambda: self._queue.depth()[counted] >= self._messages, every_s=0.5)
        if self._form == "restart":
            self._worker.kill()
            time.sleep(max(0.0, self.due_s - time.time()))
            self._worker.start()
            self._queue.depth()
            self.due_s = time.time()

    def fall_due(self) -> float:
        """Let it happen now, and wait until it is over. Return when the queue went on, s since the epoch."""
        if self._form in ("purge", "come-back"):
            self.due_s = time.time()
        if self._form == "purge":
            self._queue.purge()
        elif self._form == "come-back":
            self._holder.close()
        if self._form in ("expire", "restart"):
            self._queue.resume()
            resumed_s = time.time()
            letters = topics.dead_letters(self._name)
            with Ends(self._bootstrap_servers) as ends:
                self._worker.until(lambda: ends.of(letters) >= self._messages, timeout_s=_PATIENCE_S, every_s=0.02)
            return resumed_s
        left = 0 if self._form == "purge" else self._messages
        self._worker.until(lambda: self._queue.depth()["available"] >= left, timeout_s=_PATIENCE_S, every_s=0.1)
        return self.due_s

    def _headers(self) -> list[Headers]:
        at_due = b"%d" % int(self.due_s * 1000)
        lifetimes: dict[str, Headers] = {
            "come-due": [("lapse-enqueue-at-ms", at_due)],
            "purge": [],
            "come-back": [],
        }
        return [[*lifetimes.get(self._form, [("lapse-expires-at-ms", at_due)]), ("crowd", b"1")]]


def _settled_at(bootstrap_servers: str, queue: str) -> list[float]:
    """Return when acknowledgments took effect: the timestamps of their events' records, s since the epoch."""
    topic = topics.events(queue)
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "benchmark-events"})
    instants: list[float] = []
    try:
        end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1]
        consumer.assign([TopicPartition(topic, 0, 0)])
        at = 0
        while at < end:
            for record in consumer.consume(10_000, 1):
                at = record.offset() + 1
                if events.decode(record.value() or b"").event == "acknowledged":
                    instants.append(record.timestamp()[1] / 1000)
    finally:
        consumer.close()
    return instants


if __name__ == "__main__":
    alone(run)
