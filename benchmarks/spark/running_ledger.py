"""Measures the running ledger of a queue at a steady rate of messages, by Spark in a process with two cores."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from multiprocessing.connection import Connection as Pipe

import psutil
from confluent_kafka.admin import AdminClient

from benchmarks.comparison.contestant import Figures, alone, cpu_s
from benchmarks.spark import ledger_log
from lapse.protocol import topic
from lapse_spark import Connection, session
from lapse_spark.running import running_ledger
from lapse_spark.running.balance import Balance
from lapse_spark.running.intake import Followed
from lapse_spark.running.running_ledger import Rule
from lapse_spark.stream.stream import Standing

_CORES = 2
_WARM_S = 60.0
"""Time that does not count, s, at most half of the run: Spark compiles its code, then catches up."""


class _Enough(Exception):
    """Raised to stop the ledger when the time is over."""


def run(bootstrap_servers: str, rate: int = 10_000, seconds: float = 180.0, every: str = "10 seconds") -> Figures:
    """Follow a queue while its topics are written, and check the account at the end.

    `most_lag_s` shows whether it keeps up: the most unread messages when a batch was planned, in seconds of publishing.

    Args:
        bootstrap_servers: the broker.
        rate: messages published a second; their fates are written as fast.
        seconds: how long to publish, s.
        every: the interval of batches.
    """
    queue = f"ledger-{time.time_ns()}"
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    writer = context.Process(target=_write, args=(theirs, bootstrap_servers, queue, round(rate * seconds), rate))
    writer.start()
    ours.recv()  # the topics exist
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_CORES])
    spark = session("lapse ledger benchmark", master=f"local[{_CORES}]")
    driver = psutil.Process(spark.sparkContext._gateway.proc.pid)
    followed, connection = Followed(name=queue, underlying=[queue]), Connection(bootstrap_servers)
    rule = Rule(topic=f"balance-{queue}", grace=timedelta(seconds=10), ask_every=None)
    lags: list[tuple[float, Standing]] = []
    began, before = time.perf_counter(), cpu_s(driver)

    def watch(standing: Standing) -> None:
        passed = time.perf_counter() - began
        if standing.batch >= 0 and (not lags or lags[-1][1].batch != standing.batch):
            lags.append((passed, standing))
        if passed > seconds:
            raise _Enough

    with tempfile.TemporaryDirectory() as path:
        with suppress(_Enough):
            running_ledger.run(spark, connection, [followed], path, rule, every=every, watch=watch)
        cpu = cpu_s(driver) - before
        written: ledger_log.Written = ours.recv()
        writer.join()
        (balance,) = running_ledger.run(
            spark, connection, [followed], path, replace(rule, grace=timedelta(0)), every=None
        )
        spark.stop()
    names = [queue, topic.events(queue), topic.dead_letters(queue), rule.topic]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for done in admin.delete_topics(names).values():
        done.result()
    _check(balance, written)
    return {
        "rate": rate,
        "messages": written.published,
        "batches": lags[-1][1].batch + 1,
        **_pace(lags, min(_WARM_S, seconds / 2), rate),
        "cpu_us": cpu / written.published * 1e6,
    }


def _pace(lags: list[tuple[float, Standing]], warm_s: float, rate: int) -> Figures:
    """Return how fast batches ended, and how far they were behind.

    Args:
        lags: each batch with the time of its end, s since the start.
        warm_s: time that does not count, s.
        rate: messages published a second.
    """
    warm = [(passed, one) for passed, one in lags if passed > warm_s]
    if len(warm) < 2:
        ended = ", ".join(f"{passed:.0f} s" for passed, _ in lags) or "never"
        raise RuntimeError(f"too few batches ended behind the first {warm_s:g} s ({ended}); take more --seconds")
    between = [later[0] - sooner[0] for sooner, later in pairwise(warm)]
    return {
        "most_between_s": max(between),
        "most_lag_s": max(one.lag for _, one in warm) / rate,
        "records_s": (warm[-1][1].records - warm[0][1].records) / (warm[-1][0] - warm[0][0]),
    }


def _write(pipe: Pipe, bootstrap_servers: str, queue: str, messages: int, rate: int) -> None:
    pipe.send(ledger_log.write(bootstrap_servers, queue, messages, rate=rate, begun=lambda: pipe.send(None)))


def _check(balance: Balance, written: ledger_log.Written) -> None:
    """Check the account, as a fast but wrong figure is worthless."""
    found = balance.ledger
    fates = {fate: number for fate, number in found.fates.items() if number}
    expected = {fate: number for fate, number in written.fates.items() if fate != "queued"}
    agrees = (found.published, fates, found.dead_lettered) == (written.published, expected, dict(written.letters))
    if not (found.balanced and agrees and found.still_queued == written.fates["queued"]):
        raise RuntimeError(f"the ledger differs from what was written: {found}, {written}")


if __name__ == "__main__":
    alone(run)
