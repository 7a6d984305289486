"""`python -m lapse_spark.<job>`: the job's command, so that `spark-submit` can run it without the `lapse` program."""

from __future__ import annotations

import importlib
import sys


def start(job: str) -> None:
    """Run the command of a job with the arguments of this process."""
    # By name: the commands import the jobs, so a job cannot import the commands.
    commands = importlib.import_module("lapse_spark.cli")
    commands.spark.commands[job].main(args=sys.argv[1:], prog_name=f"python -m lapse_spark.{job}")
