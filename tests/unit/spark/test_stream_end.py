"""The end of a stream is no fault, and Spark's log does not tell it as one (D8)."""

import subprocess
import sys
import time
from threading import Thread

import click
import pytest
from py4j.protocol import Py4JNetworkError

from lapse_spark.option import plain_faults
from lapse_spark.stream import stream
from lapse_spark.stream.output import Output
from lapse_spark.stream.stream import Job
from support.programs.standalone import quick_java
from support.suite.class_archives import interpreted

PROGRAM = """
import sys, time
from lapse_spark import session
from lapse_spark.stream import stream
from lapse_spark.stream.output import Output

class LateStop:
    \"\"\"A query whose end is asked for late, so that a batch begins before.\"\"\"

    def __init__(self, query):
        self.query = query

    def stop(self):
        deadline = time.monotonic() + 20
        while self.query.isActive and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not self.query.isActive
        self.query.stop()

    def __getattr__(self, name):
        return getattr(self.query, name)

class Run(stream._Run):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.query = LateStop(self.query)

stream._Run = Run
spark = session()
source = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
began = []
job = stream.Job(source, lambda batch, number: began.append(number), Output(spark, sys.argv[1]))
stream.follow_all([job], lambda: len(began) > 1, every="100 milliseconds")
print("ended after", len(began) > 1)
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.feature("D8")
def test_a_batch_that_begins_while_a_stream_ends_is_not_reported_as_an_error(tmp_path):
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "output")]
    done = subprocess.run(
        program, capture_output=True, text=True, env=interpreted(quick_java()), timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ended after True" in done.stdout
    assert "ERROR" not in done.stderr.replace('log level to "ERROR"', ""), done.stderr
    assert "InterruptedError" not in done.stderr


@pytest.mark.feature("X7")
@pytest.mark.parametrize("fault", [Py4JNetworkError("while sending"), ConnectionRefusedError(111, "refused")], ids=str)
def test_a_jvm_that_is_gone_is_reported_in_words(fault: Exception) -> None:
    with pytest.raises(click.ClickException, match="JVM has ended"), plain_faults():
        raise fault


@pytest.mark.spark
@pytest.mark.feature("D8", "X7")
def test_the_error_of_a_stream_that_ends_between_two_looks_is_raised(spark, tmp_path):
    """A job ended with 0, and said that it had read everything."""

    def fails(batch, number):
        raise RuntimeError("the disk is full")

    def stop():
        deadline = time.monotonic() + 60
        while spark.streams.active and time.monotonic() < deadline:
            time.sleep(0.05)
        return False

    source = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    with pytest.raises(RuntimeError, match="the disk is full"):
        stream.follow_all([Job(source, fails, Output(spark, str(tmp_path / "output")))], stop, every="1 second")


@pytest.mark.spark
@pytest.mark.feature("D8", "X7")
def test_a_stream_that_ends_without_an_error_before_its_work_is_done_is_reported(spark, tmp_path):
    """As after a stack overflow in Java, which Spark did not report: a job ended with 0, and had read nothing."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "part.txt").write_text("x\n")
    source = spark.readStream.format("text").load(str(tmp_path / "source"))

    def ends(batch, number):
        query = next(one for one in spark.streams.active if one.isActive)
        Thread(target=query.stop).start()
        deadline = time.monotonic() + 60
        while query.isActive and time.monotonic() < deadline:
            time.sleep(0.05)

    job = Job(source, ends, Output(spark, str(tmp_path / "output")))
    with pytest.raises(stream.StreamLost, match="ended early"):
        stream.follow_all([job], lambda: False, every="100 milliseconds")

    # Of what is available now, all is done once the last planned batch has ended. Spark may have been stopped before it
    # noted the end of this one.
    checkpoint = tmp_path / "output" / "_checkpoint"
    (checkpoint / "commits").mkdir(exist_ok=True)
    (checkpoint / "commits" / "0").write_text("v1\n{}")
    stream._check_ends([job], lambda: False, None)
    (checkpoint / "offsets" / "7").write_text("v1\n")
    with pytest.raises(stream.StreamLost, match="ended early"):
        stream._check_ends([job], lambda: False, None)
    stream._check_ends([job], lambda: True, None)
