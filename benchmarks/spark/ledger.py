"""Measures the ledger of a queue that has had millions of messages, computed by Spark in this process."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient

from benchmarks.comparison.contestant import Figures, alone, cpu_s
from benchmarks.spark import ledger_log
from lapse.protocol import topic
from lapse_spark import Connection, ledger, session

_MIB = 1 << 20


def run(bootstrap_servers: str, messages: int = 2_000_000) -> Figures:
    """Write a queue's topics, compute the ledger with an untuned Spark on all cores, and check it.

    The time is that of `ledger.run` in a new process: no code is compiled yet, and Spark's caches are empty.

    Args:
        bootstrap_servers: the broker.
        messages: the number of published messages.
    """
    queue = f"ledger-{time.time_ns()}"
    began = time.perf_counter()
    written = ledger_log.write(bootstrap_servers, queue, messages)
    write_s = time.perf_counter() - began
    began = time.perf_counter()
    spark = session("lapse ledger benchmark")
    start_s = time.perf_counter() - began
    driver = psutil.Process(spark.sparkContext._gateway.proc.pid)
    cpu_before, began = cpu_s(driver), time.perf_counter()
    try:
        found = ledger.run(spark, Connection(bootstrap_servers), queue, [queue])
        seconds, cpu = time.perf_counter() - began, cpu_s(driver) - cpu_before
        _check(found, written)
        peak = _peak_bytes(driver)
    finally:
        spark.stop()
        names = [queue, topic.events(queue), topic.dead_letters(queue)]
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        for done in admin.delete_topics(names).values():
            done.result()
    return {
        "messages": messages,
        "ranges": written.ranges,
        "letters": written.letters.total(),
        "write_s": write_s,
        "start_s": start_s,
        "seconds": seconds,
        "per_million_s": seconds / messages * 1e6,
        "cpu_us": cpu / messages * 1e6,
        "peak_mib": peak / _MIB,
    }


def _check(found: ledger.Ledger, written: ledger_log.Written) -> None:
    """Check the ledger, as a fast but wrong figure is worthless."""
    fates = {fate: number for fate, number in found.fates.items() if number}
    expected = {fate: number for fate, number in written.fates.items() if fate != "queued"}
    agrees = (found.published, fates, found.dead_lettered) == (written.published, expected, dict(written.letters))
    if not (found.balanced and agrees and found.still_queued == written.fates["queued"]):
        raise RuntimeError(f"the ledger differs from what was written: {found}, {written}")


def _peak_bytes(process: psutil.Process) -> int:
    """Return the peak of a process's memory, or its current memory if the system does not record the peak."""
    status = Path(f"/proc/{process.pid}/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return process.memory_info().rss


if __name__ == "__main__":
    alone(run)
