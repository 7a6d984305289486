"""A crowd of messages with one deadline: how long it keeps others waiting, in its own queue and in another one."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

from confluent_kafka import Producer

from benchmarks import turns
from benchmarks.contestant import Figures, Stopwatch, alone
from benchmarks.load import Headers, create, publish
from benchmarks.log import Ends
from benchmarks.worker import Worker
from lapse.protocol import topic as topics
from lapse_client import Connection, Queue, QueueSubscriber

_BEFORE_S = 5.0
_AFTER_S = 1.0
_PATIENCE_S = 180.0
_OF_TRICKLE = b"t"


def run(bootstrap_servers: str, messages: int = 300_000, rate: int = 200, lead_s: float = 0.0) -> Figures:
    """Two queues on one worker, each with a steady trickle and a consumer; a crowd falls due in one of them.

    The longest times without a delivery are compared with those after the crowd. A turn is what the worker's loop does
    without a pause: its CPU does not depend on what else the machine has to do.

    The queue is paused until the crowd is due, so that nobody takes it before.

    Args:
        bootstrap_servers: the broker.
        messages: how many are due at once.
        rate: messages a second of each trickle.
        lead_s: how long publishing them and taking them in may take; 0 = an estimate.
    """
    stamp = time.time_ns()
    names = {"same": f"crowd-{stamp}", "other": f"other-{stamp}"}
    lead_s = lead_s or 25 + messages / 20_000
    entities = "".join(f'[queue.{name}]\nexpiration = "enabled"\n' for name in names.values())
    with Worker(bootstrap_servers, names["same"], entities, turns=True) as worker, Ends(bootstrap_servers) as ends:
        for name in names.values():
            create(bootstrap_servers, name)
        worker.apply()
        worker.start()
        due_s = time.time() + lead_s
        headers: list[Headers] = [[("lapse-expires-at-ms", b"%d" % int(due_s * 1000)), ("crowd", b"1")]]
        with Queue(names["same"], connection=Connection(bootstrap_servers)) as queue:
            queue.pause()
            publish(bootstrap_servers, names["same"], messages, headers=headers)
            worker.until(lambda: queue.depth()["depth"] >= messages, every_s=0.5)
            trickles = {what: Trickle(bootstrap_servers, name, rate) for what, name in names.items()}
            if (late_s := time.time() + _BEFORE_S - due_s) > 0:
                raise RuntimeError(f"taken in {late_s:.0f} s too late; give more lead_s than {lead_s:.0f}")
            time.sleep(max(0.0, due_s + 0.001 - time.time()))
            queue.resume()
            resumed_s = time.time()
        letters = topics.dead_letters(names["same"])
        watch = Stopwatch(worker.process)
        worker.until(lambda: ends.of(letters) >= messages, timeout_s=_PATIENCE_S, every_s=0.02)
        seconds = time.time() - due_s
        figures = watch.figures(messages)
        gaps: Figures = {}
        after_s = due_s + seconds + _AFTER_S
        time.sleep(max(0.0, after_s + _BEFORE_S / 2 - time.time()))
        for what, trickle in trickles.items():
            trickle.end()
            gaps[f"{what}_during_ms"] = trickle.longest_ms(resumed_s, due_s + seconds)
            gaps[f"{what}_after_ms"] = trickle.longest_ms(after_s, after_s + _BEFORE_S / 2)
            gaps[f"{what}_delivered"] = len(trickle.delivered_at)
        for what, since_s, until_s in (("during", due_s, due_s + seconds), ("after", after_s, time.time())):
            gaps[f"turn_{what}_cpu_ms"], gaps[f"turn_{what}_ms"] = turns.longest(worker.turns_file, since_s, until_s)
        return {**figures, "seconds": seconds, **gaps}


class Trickle:
    """Publishes steadily to a queue, and consumes from it what it published.

    Args:
        bootstrap_servers: the broker.
        name: the queue's.
        rate: messages a second.
    """

    def __init__(self, bootstrap_servers: str, name: str, rate: int) -> None:
        self.delivered_at: list[float] = []
        self._servers = bootstrap_servers
        self._name = name
        self._rate = rate
        self._over = threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._publish, self._consume)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Publish and consume no more."""
        self._over.set()
        for thread in self._threads:
            thread.join(20)

    def longest_ms(self, since_s: float, until_s: float) -> float:
        """The longest time without a delivery, ms, between two instants (s since the epoch)."""
        instants = [since_s, *(at for at in self.delivered_at if since_s <= at <= until_s), until_s]
        return 1000 * max(later - earlier for earlier, later in pairwise(instants))

    def _publish(self) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 0, "acks": "all"})
        next_at = time.perf_counter()
        while not self._over.is_set():
            producer.produce(self._name, _OF_TRICKLE)
            producer.poll(0)
            next_at += 1 / self._rate
            time.sleep(max(0.0, next_at - time.perf_counter()))
        producer.flush(10)

    def _consume(self) -> None:
        with QueueSubscriber(
            self._name, max_backlog=200, connection=Connection(self._servers), timeout_s=90
        ) as subscriber:
            while not self._over.is_set():
                for batch in subscriber.batches(max_size=100, timeout=0.5):
                    self.delivered_at.append(time.time())
                    subscriber.acknowledge(batch)
                    if self._over.is_set():
                        break


if __name__ == "__main__":
    alone(run)
