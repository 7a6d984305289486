"""All rows of the comparison."""

from __future__ import annotations

from benchmarks.comparison.load import Load
from benchmarks.comparison.row import Row
from benchmarks.entity import rows as entity_rows
from benchmarks.http import rows as http_rows
from benchmarks.queue import depth_rows
from benchmarks.queue import rows as queue_rows
from benchmarks.sow import rows as sow_rows
from benchmarks.spark import rows as spark_rows


def rows(load: Load) -> list[Row]:
    """Return the rows for a load, in the order in which they run."""
    return [
        queue_rows.queue(load.messages),
        queue_rows.queue_fresh(load.messages),
        queue_rows.several(load.messages),
        queue_rows.latency(load.seconds),
        queue_rows.latency_fast(load.seconds),
        entity_rows.many_entities(load.entities),
        entity_rows.changes(load),
        http_rows.gateway(load),
        http_rows.first_paint(load),
        depth_rows.memory(load),
        depth_rows.depth(load),
        depth_rows.disk(load),
        depth_rows.disk_queue(load),
        sow_rows.upserts(load),
        sow_rows.query(load),
        sow_rows.core_turns(load),
        sow_rows.expiry(load),
        sow_rows.recovery(load),
        queue_rows.burst(load),
        queue_rows.lateness(load),
        queue_rows.recovery(load),
        queue_rows.one_filter(),
        queue_rows.options(load),
        queue_rows.shares(load),
        queue_rows.shares_drained(load),
        queue_rows.follow(load),
        queue_rows.atomic(load),
        queue_rows.year(load),
        spark_rows.ledger(load),
        spark_rows.running_ledger(load),
        spark_rows.letters(load),
    ]
