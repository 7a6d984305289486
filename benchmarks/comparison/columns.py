"""Columns that several rows show."""

from __future__ import annotations

from benchmarks.comparison.row import Column

LIFE = (
    Column("rate", "messages/s", 0),
    Column("worker_us", "worker CPU, µs/message"),
    Column("client_us", "client CPU, µs/message"),
    Column("broker_us", "broker CPU, µs/message"),
)
"""The columns for messages measured over their whole life."""

STAGES = tuple(Column(f"{stage}_ms", f"{stage}, ms") for stage in ("read", "wait", "decide", "journal", "deliver"))
"""The columns with the mean time of each stage within a worker."""

RECOVERY = (
    Column("seconds", "in all, s"),
    Column("start_s", "process start, s"),
    Column("rejoin_s", "back in the group, s"),
    Column("restore_s", "changelog read, s"),
    Column("rest_s", "to the first one, s"),
)
"""The columns with the parts of a recovery's time."""

RATE, WORKER, CLIENT, BROKER = LIFE
