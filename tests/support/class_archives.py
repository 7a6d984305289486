"""Archives of the classes of Kafka's broker and of Spark, and quick options, for the many JVMs that the tests start.

`make test` has them written once, into the virtual environment: whoever may write there can run code of theirs anyway.
A JVM of another version does without them. They halve the CPU of a start: 5 of 10 s for Spark, 1.5 of 3 s for a broker.
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
"""Java's options for a Spark that lives for seconds: the better compiler takes a third of its CPU, and never pays.

With one compiler Java reserves 48 MiB for compiled code, and many queries of Spark fill that: then it looks for what to
throw away all the time. Java looks through its whole heap four times while Spark loads its classes, unless it expects
so many.
"""
_INTERPRETED: Final = ("-Dspark.sql.codegen.wholeStage=false", "-Dspark.sql.codegen.factoryMode=NO_CODEGEN")
_DRIVER_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""What Spark gives to the JVM of each driver."""

_JOB: Final = """
from tempfile import TemporaryDirectory
from lapse_spark import session

spark = session(master="local[2]", config={"spark.sql.shuffle.partitions": "1"}, delta=True)
with TemporaryDirectory() as place:
    spark.range(9).selectExpr("id % 3 AS k", "id").groupBy("k").count().write.parquet(f"{place}/read")
    rows = spark.readStream.schema("k long, count long").parquet(f"{place}/read").groupBy("k").count()
    writer = rows.writeStream.outputMode("update").option("checkpointLocation", f"{place}/checkpoint")
    write = lambda batch, number: batch.orderBy("k").write.parquet(f"{place}/{number}")
    writer.foreachBatch(write).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def use(environment: MutableMapping[str, str]) -> None:
    """Name the archives that are there in an environment; drivers of Spark that have one start quickly, too."""
    if _KAFKA.exists():
        environment.setdefault(VARIABLE, str(_KAFKA))
    if _SPARK.exists() and str(_SPARK) not in environment.get(_DRIVER_OPTIONS, ""):
        given = environment.get(_DRIVER_OPTIONS, "")
        environment[_DRIVER_OPTIONS] = " ".join([*([given] if given else []), *QUICK_SPARK, *options(_SPARK)])


def interpreted(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which drivers of Spark compile no plans: a job of a few records is over before that pays.

    For what shows that commands work as they are documented. Tests of the jobs themselves compile, as users' jobs do.
    """
    given = environment.get(_DRIVER_OPTIONS, "")
    return {**environment, _DRIVER_OPTIONS: " ".join([*([given] if given else []), *_INTERPRETED])}


def executors_options() -> list[str]:
    """What the JVM of a master, a worker or an executor of Spark gets; drivers find theirs in the environment."""
    return options(_SPARK)


def _write_kafka() -> None:
    """Start a broker, and stop it."""
    unfinished = _KAFKA.with_suffix(".unfinished")
    with EmbeddedKafka(java_options=[*QUICK, *recording(unfinished)]) as kafka:
        shutil.copyfile(kafka.data / "log" / CHECKPOINT, beside(_KAFKA))
    unfinished.replace(_KAFKA)


def _write_spark() -> None:
    """Run a small job; the archive is there when Java has ended, which keeps the output open."""
    unfinished = _SPARK.with_suffix(".unfinished")
    job = subprocess.run(
        [sys.executable, "-c", _JOB],
        env={**os.environ, _DRIVER_OPTIONS: " ".join([*QUICK_SPARK, *recording(unfinished)])},
        capture_output=True,
        text=True,
        check=False,
    )
    if job.returncode or not unfinished.exists():
        print(f"no archive of Spark's classes: {job.stderr[-1000:]}", file=sys.stderr)
        return
    unfinished.replace(_SPARK)


def main() -> None:
    """Write both, the smaller one in a process of its own; without Java there are none."""
    if sys.argv[1:] == ["kafka"]:
        os.environ.pop(VARIABLE, None)
        try:
            _write_kafka()
        except EmbeddedError as error:
            print(f"no archive of the broker's classes: {error}", file=sys.stderr)
        return
    with subprocess.Popen([sys.executable, __file__, "kafka"]):
        _write_spark()


if __name__ == "__main__":
    main()
