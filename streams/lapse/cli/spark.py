"""`lapse spark`: the jobs of the pipeline. Each is loaded when it is used, since Spark's Python takes long to load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from lapse.cli.lazy_group import Lazy, LazyGroup

JOBS: Final[Mapping[str, Lazy]] = {
    "alerts": Lazy(
        "lapse_spark.monitoring.upkeep:alerts",
        "Report unusual findings in the monitor's directory PATH, each of them once.",
        extra="spark",
    ),
    "archive": Lazy(
        "lapse_spark.cli:archive",
        "Keep dead letters with all their bytes, as Parquet or Delta, in the directory PATH.",
        extra="spark",
    ),
    "compact": Lazy(
        "lapse_spark.monitoring.upkeep:compact",
        "Merge the files in a directory of the monitor or the archive; not while the job runs.",
        extra="spark",
    ),
    "ledger": Lazy(
        "lapse_spark.account.ledger_command:ledger",
        "Compute what became of every message; exit with 1 if the ledger does not balance.",
        extra="spark",
    ),
    "lives": Lazy(
        "lapse_spark.instant.inquiry:lives",
        "Show the life of one message, write those of all, or compute which lifetime would have been enough.",
        extra="spark",
    ),
    "monitor": Lazy(
        "lapse_spark.cli:monitor",
        "Count dead letters by entity, reasons and window into the directory PATH, each letter once.",
        extra="spark",
    ),
    "redrive": Lazy(
        "lapse_spark.cli:redrive",
        "Send dead letters back, each once; the directory AUDIT remembers which were sent.",
        extra="spark",
    ),
    "report": Lazy(
        "lapse_spark.instant.inquiry:report",
        "Show what the monitor has counted in the directory PATH.",
        extra="spark",
    ),
    "state": Lazy(
        "lapse_spark.instant.state:state",
        "Show the messages of a queue, or the records of a SOW topic, as they were at an instant.",
        extra="spark",
    ),
}
"""The jobs by name. Keep the summaries equal to the first lines of the jobs' help."""


@click.group(cls=LazyGroup, lazy=JOBS)
def spark() -> None:
    """Count, archive, redrive and audit dead letters with Apache Spark."""
