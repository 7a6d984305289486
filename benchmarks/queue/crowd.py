"""Measures how long many messages that are due at once delay others, in their queue and in another one."""

from __future__ import annotations

import time
from typing import Final

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
    with Worker(bootstrap_servers, names["same"], entities, turns=True) as worker, Ends(bootstrap_servers) as ends:
        for name in (*names.values(), plain):
            create(bootstrap_servers, name)
        worker.apply()
        worker.start()
        due_s = time.time() + lead_s
        at_due = b"%d" % int(due_s * 1000)
        header = {"come-due": [("lapse-enqueue-at-ms", at_due)], "purge": [], "come-back": []}
        headers: list[Headers] = [[*header.get(form, [("lapse-expires-at-ms", at_due)]), ("crowd", b"1")]]
        letters = topics.dead_letters(names["same"])
        connection = Connection(bootstrap_servers)
        with Queue(names["same"], connection=connection) as queue:
            holder = QueueSubscriber(names["same"], max_backlog=messages, connection=connection, payload="reference")
            if form != "come-back":
                queue.pause()
            publish(bootstrap_servers, names["same"], messages, headers=headers)
            if form == "come-back":
                holder.start()
                worker.until(lambda: queue.depth()["leased"] >= messages, every_s=0.5)
                queue.pause()
            counted = "scheduled" if form == "come-due" else "depth"
            worker.until(lambda: queue.depth()[counted] >= messages, every_s=0.5)
            if form == "restart":
                worker.kill()
                time.sleep(max(0.0, due_s - time.time()))
                worker.start()
                queue.depth()
                due_s = time.time()
            trickles = {what: Trickle(bootstrap_servers, name, rate) for what, name in names.items()}
            trickles["plain"] = PlainTrickle(bootstrap_servers, plain, rate)
            if (late_s := time.time() + _BEFORE_S - due_s) > 0 and form in ("expire", "come-due"):
                raise RuntimeError(f"taken in {late_s:.0f} s too late; give more lead_s than {lead_s:.0f}")
            time.sleep(max(0.0, due_s + 0.001 - time.time()))
            watch = Stopwatch(worker.process)
            due_s = time.time() if form in ("purge", "come-back") else due_s
            if form == "purge":
                queue.purge()
            elif form == "come-back":
                holder.close()
            if form in ("expire", "restart"):
                queue.resume()
                resumed_s = time.time()
                worker.until(lambda: ends.of(letters) >= messages, timeout_s=_PATIENCE_S, every_s=0.02)
            else:
                resumed_s, left = due_s, messages if form != "purge" else 0
                worker.until(lambda: queue.depth()["available"] >= left, timeout_s=_PATIENCE_S, every_s=0.1)
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
        for what, name in names.items():
            settled = _settled_at(bootstrap_servers, name)
            gaps[f"{what}_settled_during_ms"] = longest_ms(settled, resumed_s, due_s + seconds)
            gaps[f"{what}_settled_after_ms"] = longest_ms(settled, after_s, after_s + _BEFORE_S / 2)
        for what, since_s, until_s in (("during", due_s, due_s + seconds), ("after", after_s, time.time())):
            gaps[f"turn_{what}_cpu_ms"], gaps[f"turn_{what}_ms"] = turns.longest(worker.turns_file, since_s, until_s)
        return {**figures, "seconds": seconds, **gaps}


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
