"""The jobs as separate programs, so that `spark-submit` can run them without the `lapse` program."""

from __future__ import annotations

import sys

from lapse_spark.cli import spark


def start(job: str) -> None:
    """Run the command of a job with the arguments of this process."""
    spark.commands[job].main(args=sys.argv[1:], prog_name=job)
