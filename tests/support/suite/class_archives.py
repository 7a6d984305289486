"""Class archives and quick options for the many JVMs of Kafka and Spark that the tests start.

They halve the CPU of a start: 5 of 10 s for Spark, 1.5 of 3 s for a broker. Spark's archive has the classes of a whole
job (`archived_job`), not only of a start: a first ledger takes 12 s of CPU instead of 16. `make test` writes the
archives once, into the virtual environment: who may write there can run code anyway. A JVM of another version ignores
them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from lapse.embedded import EmbeddedError, EmbeddedKafka
from lapse.embedded.class_archive import QUICK, VARIABLE, beside, options, recording
from lapse.embedded.settings import CHECKPOINT

_KAFKA: Final = Path(sys.prefix) / "kafka.jsa"
_SPARK: Final = Path(sys.prefix) / "spark.jsa"
QUICK_SPARK: Final = (*QUICK, "-XX:ReservedCodeCacheSize=240m", "-XX:MetaspaceSize=256m", "-XX:-UsePerfData")
"""Java's options for a Spark that lives for seconds. The optimizing compiler would take a third of its CPU in vain.

Nor does that compiler pay in the tests' session, which lives for minutes: the first nine batches of a running ledger
took 81 s of CPU with it and 46 without, and those of the next test 18 and 13. A larger heap saves no time, either.

With one compiler Java reserves 48 MiB for compiled code. Many queries of Spark fill that, and Java then spends its time
on evicting code. With the default metaspace, Java collects its whole heap four times while Spark loads its classes.
"""
_INTERPRETED: Final = (
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    "-Dspark.sql.adaptive.enabled=false",
)
_WRITING_S: Final = 120.0
"""How long a broker may take to end with its archive, on a busy machine. One that is killed writes none."""
_DRIVER_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""The environment variable with options for the JVM of each Spark driver."""


def use(environment: MutableMapping[str, str]) -> None:
    """Add the existing archives to an environment, and the quick options for Spark's drivers."""
    if _KAFKA.exists():
        environment.setdefault(VARIABLE, str(_KAFKA))
    if _SPARK.exists() and str(_SPARK) not in environment.get(_DRIVER_OPTIONS, ""):
        given = environment.get(_DRIVER_OPTIONS, "")
        environment[_DRIVER_OPTIONS] = " ".join([*([given] if given else []), *QUICK_SPARK, *options(_SPARK)])


def interpreted(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Spark compiles no plans: that does not pay for jobs of a few records.

    It is for tests that commands work as documented, and that killed jobs go on. The job on a cluster compiles, as
    users' jobs do, and in `make chaos` so do the jobs that follow topics.
    """
    given = environment.get(_DRIVER_OPTIONS, "")
    return {**environment, _DRIVER_OPTIONS: " ".join([*([given] if given else []), *_INTERPRETED])}


def executors_options() -> list[str]:
    """Return the options for a master, worker or executor of Spark. Drivers find theirs in the environment."""
    return options(_SPARK)


def _write_kafka() -> None:
    """Write the broker's archive, and Spark's meanwhile. Java writes an archive at its end."""
    unfinished = _KAFKA.with_suffix(".unfinished")
    with EmbeddedKafka(java_options=[*QUICK, *recording(unfinished)]) as kafka:
        shutil.copyfile(kafka.data / "log" / CHECKPOINT, beside(_KAFKA))
        _write_spark(kafka.bootstrap_servers)
        kafka.stop(_WRITING_S)
    unfinished.replace(_KAFKA)


def _write_spark(servers: str) -> None:
    """Write Spark's archive: run a job that does what the tests do. Its output is still open when Java ends."""
    unfinished = _SPARK.with_suffix(".unfinished")
    job = subprocess.run(
        [sys.executable, "-m", "support.suite.archived_job", servers],
        env={**os.environ, _DRIVER_OPTIONS: " ".join([*QUICK_SPARK, *_INTERPRETED, *recording(unfinished)])},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if job.returncode or not unfinished.exists():
        print(f"no archive of Spark's classes: {job.stderr[-1000:]}", file=sys.stderr)
        return
    unfinished.replace(_SPARK)


def main() -> None:
    """Write both archives. Without Java there are none."""
    os.environ.pop(VARIABLE, None)
    try:
        _write_kafka()
    except EmbeddedError as error:
        print(f"no archive of the broker's classes: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
