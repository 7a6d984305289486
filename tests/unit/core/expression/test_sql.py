"""Rendering as Spark SQL, and what is refused (test_spark.py checks the meaning in Spark itself)."""

import pytest

from lapse.core.expression import ExpressionError, SparkColumn, SparkColumns, to_spark_sql

pytestmark = pytest.mark.feature("X1")

COLUMNS = SparkColumns(paths={"/n": SparkColumn("p.n", "number"), "/s": SparkColumn("p.s", "string")})


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("/s = 'A'", "(p.s = 'A')"),
        ("/n > 5", "CASE WHEN (isnan(p.n)) AND p.n IS NOT NULL THEN FALSE ELSE p.n > 5L END"),
        ("/s LIKE '^A' AND TOPIC() = 'o'", "((startswith(p.s, 'A')) AND (topic = 'o'))"),
        ("/s = 5", "IF(p.s IS NULL OR 5L IS NULL, NULL, FALSE)"),
        ("/s IS NOT NULL", "(NOT (p.s IS NULL))"),
        ("/s = 'it''s \\ it'", r"(p.s = 'it\'s \\ it')"),
    ],
)
def test_rendering(text: str, sql: str) -> None:
    assert to_spark_sql(text, COLUMNS) == sql


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/other = 1", "no column is given for /other"),
        ("ROUND(/n) = 1", "no exact equivalent of ROUND"),
        (r"/s LIKE '(?P<x>a)\d+(?P=x)'", "Java reads this regular expression differently"),
        (r"/s LIKE 'a\v+'", "Java reads this regular expression differently"),
        (r"/s LIKE 'a\112+'", "Java reads this regular expression differently"),
        ("/s LIKE '{.+'", "Java reads this regular expression differently"),
        ("IF(/n = 1, 'a', 2) = 2", "several kinds"),
        ("UPPER(/n) = 'A'", "only rendered for arguments of kind string"),
        ("/n = 9223372036854775808", "does not fit 64 bits"),
        ("/n / " * 40 + "2 > 1", "too long"),
    ],
)
def test_what_spark_has_no_equal_of_is_refused(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message) as caught:
        to_spark_sql(text, COLUMNS)
    assert "not expressible in Spark SQL" in str(caught.value)
