"""Expressions of the greatest allowed height in a Spark job, whose plans are as deep (X1, X7)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

from lapse.core.expression.limits import MAX_HEIGHT
from lapse_spark import jvm, local_rows, schema
from lapse_spark.letters import redrive
from lapse_spark.records import dead_letter
from lapse_spark.session import with_stack

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
FACTS = [
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.partition", b"0"),
    ("__dlq.errors.offset", b"0"),
    ("__dlq.errors.group", b"q"),
    ("lapse-id", b"q/orders:0:0/0"),
    ("lapse-reasons", b"max_cancels"),
]


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("options", "expected"),
    [("", "-Xss4m"), ("-Da=b", "-Da=b -Xss4m"), ("-Xss2m -Da=b", "-Xss2m -Da=b")],
)
def test_a_driver_has_room_for_deep_plans_unless_its_options_say_how_much(options: str, expected: str) -> None:
    assert with_stack(options) == expected


@pytest.mark.spark
@pytest.mark.feature("X1", "X7")
def test_the_tallest_expression_selects_letters(spark: SparkSession) -> None:
    """Spark's parser took more than half a MiB of a thread's stack for it, which was one MiB."""
    management = getattr(jvm.view(spark), "java.lang.management.ManagementFactory")
    arguments = management.getRuntimeMXBean().getInputArguments()
    assert "-Xss4m" in [arguments.get(place) for place in range(arguments.size())]
    letter = ("dlq.q", 0, 0, NOON, b"k", b'{"n": 1}', FACTS)
    letters = dead_letter.parse(local_rows.frame(spark, [letter], schema.RAW))
    tallest = "/n" + " + /n" * (MAX_HEIGHT - 3)
    for bound, count in ((MAX_HEIGHT - 2, 1), (MAX_HEIGHT - 1, 0)):
        choice = redrive.Choice(filter=f"{tallest} >= {bound}", fields={"/n": "number"})
        assert redrive.choose(letters, choice).count() == count
