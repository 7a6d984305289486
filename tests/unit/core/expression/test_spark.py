"""Filters pushed down to Spark SQL mean the same in Spark."""

import math

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lapse.core.expression import SparkColumn, SparkColumns, compile_value, to_spark_sql, to_spark_sql_value, to_text
from lapse.core.expression.syntax import Arithmetic, Comparison, IsNan, Like, Literal, Node, Not, Path
from support.suite.at_length import AT_LENGTH
from unit.core.expression.sql_trees import ROWS, conditions, operators, texts
from unit.core.expression.trees import PATTERNS, Sample

pytestmark = [pytest.mark.feature("X1"), pytest.mark.spark, pytest.mark.slow]

ODD = [{**row, "d": d} for row, d in zip(ROWS, [math.nan, 0.5, None, math.inf, 0.0, math.nan, -1.5], strict=True)]
COLUMNS = SparkColumns(
    paths={
        "/a": SparkColumn("a", "number"),
        "/b": SparkColumn("b", "number"),
        "/d": SparkColumn("d", "number"),
        "/s": SparkColumn("s", "string"),
        "/t": SparkColumn("t", "string"),
        "/f": SparkColumn("f", "boolean"),
    }
)
doubles = st.recursive(
    st.sampled_from([Path(("d",)), Path(("a",)), Literal(0), Literal(1.5), Literal(None)]),
    lambda inner: st.builds(Arithmetic, st.sampled_from("+-*/%"), inner, inner),
    max_leaves=3,
)
odd = st.one_of(
    conditions,
    st.builds(Comparison, operators, doubles, doubles),
    st.builds(Comparison, operators, doubles, texts),
    st.builds(IsNan, doubles),
    st.builds(Like, texts, st.sampled_from(PATTERNS)),
)


@pytest.fixture(scope="module")
def frame(spark):
    schema = "i INT, a BIGINT, b BIGINT, s STRING, t STRING, f BOOLEAN, d DOUBLE"
    codegen = "spark.sql.codegen.factoryMode"
    before = spark.conf.get(codegen)
    spark.conf.set(codegen, "FALLBACK")  # compiled, as for users: the session of the tests interprets
    yield spark.createDataFrame([(i, *row.values()) for i, row in enumerate(ODD)], schema).cache()
    spark.conf.set(codegen, before)


@settings(
    max_examples=8 if AT_LENGTH else 2,  # each has 40 conditions, and one plan
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
@given(trees=st.lists(st.one_of(odd, odd.map(Not)), min_size=40, max_size=40))
def test_conditions_agree_with_spark(frame, trees: list[Node]) -> None:
    texts_ = [to_text(tree) for tree in trees]
    rendered = [f"CAST({to_spark_sql(text, COLUMNS)} AS BOOLEAN) AS c{n}" for n, text in enumerate(texts_)]
    found = frame.selectExpr("i", *rendered).orderBy("i").collect()
    for n, text in enumerate(texts_):
        expected = [compile_value(text).evaluate(row) for row in ODD]
        expected = [None if value is None or value != value else bool(value) for value in expected]
        assert [row[f"c{n}"] for row in found] == expected, f"{text}\n{rendered[n]}"


def test_kafka_columns_and_functions_agree_with_spark(spark) -> None:
    frame = spark.sql(
        "SELECT 'k1' AS k, CAST('key' AS BINARY) AS key, 'orders' AS topic, 3 AS partition, 42L AS offset, "
        "timestamp_millis(1767225600123) AS timestamp, array(struct('h' AS key, X'41' AS value), "
        "struct('bad' AS key, X'FF' AS value)) AS headers, 'It\\'s \\\\d' AS s"
    )
    columns = SparkColumns(paths={"/s": SparkColumn("s", "string")})
    message = Sample({"s": "It's \\d"}, {"h": b"A", "bad": b"\xff"}, b"key", "orders", 3, 42, 1767225600123)
    expressions = [
        "HEADER('h')", "HEADER('bad')", "HEADER('none')", "KEY()", "TOPIC()", "PARTITION()", "OFFSET()",
        "TIMESTAMP_MS()",
        "UPPER(/s)", "LENGTH(/s)", "REPLACE(/s, '''', '\\')", "INSTR(/s, 's')", "INSTR(/s, '')", "INSTR_I(/s, 'S')",
        "STREQUAL_I(/s, 'IT''S \\d')", "/s LIKE '\\\\d$'", "/s LIKE '^It.s'", "/s = 'It''s \\d'", "/s ENDS WITH '\\d'",
    ]  # fmt: skip
    row = frame.selectExpr(*[f"{to_spark_sql_value(e, columns)} AS c{n}" for n, e in enumerate(expressions)]).first()
    assert list(row) == [compile_value(e)(message) for e in expressions]
