"""Rows of a program as a frame."""

from datetime import UTC, datetime

import pytest

from lapse_spark import local_rows

SCHEMA = "name string, number long, value binary, headers array<struct<key: string, value: binary>>, at timestamp"
ROWS = [
    ("a", 1 << 62, b"\x00\xff", [("k", b"v"), (None, None)], datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)),
    ("é", -1, b"", [], datetime(1969, 1, 1, tzinfo=UTC)),
    (None, None, None, None, None),
]


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], []], ids=["several", "one", "none"])
def test_it_has_the_rows_of_a_usual_frame_and_no_process_of_python_hands_them_over(spark, rows):
    usual, local = spark.createDataFrame(rows, SCHEMA), local_rows.frame(spark, rows, SCHEMA)
    assert local.schema == usual.schema
    assert local.collect() == usual.collect()
    plan = local._jdf.queryExecution().optimizedPlan().toString()
    assert plan.startswith("LocalRelation"), plan
