"""The part of the language that is SQL means what DuckDB says it means, NULLs included."""

import duckdb
import pytest
from hypothesis import given, settings

from lapse.core.expression.compiler import compile_condition, compile_result
from lapse.core.expression.printer import to_text
from lapse.core.expression.rewriting import simplified
from lapse.core.expression.syntax import Node, Not
from support.suite.at_length import examples
from unit.core.expression.sql_trees import ROWS, conditions, numbers

pytestmark = pytest.mark.feature("X1")


@pytest.fixture(scope="module")
def table():
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.execute("CREATE TABLE m (i INT, a BIGINT, b BIGINT, s VARCHAR, t VARCHAR, f BOOLEAN)")
        connection.executemany(
            "INSERT INTO m VALUES (?, ?, ?, ?, ?, ?)", [(i, *row.values()) for i, row in enumerate(ROWS)]
        )
        yield connection


def in_sql(node: Node) -> str:
    """Without slashes the text of these expressions is SQL."""
    return to_text(node).replace("/", "")


@settings(max_examples=examples(400), deadline=None)
@given(condition=conditions)
def test_conditions_agree_with_duckdb(table, condition: Node) -> None:
    expected = [row[0] for row in table.execute(f"SELECT ({in_sql(condition)})::BOOLEAN FROM m ORDER BY i").fetchall()]
    for tree in (condition, simplified(condition)):
        value, test, negated = compile_result(tree), compile_condition(tree), compile_condition(Not(tree))
        assert [value(row) for row in ROWS] == expected
        assert [test(row) for row in ROWS] == [result is True for result in expected]
        assert [negated(row) for row in ROWS] == [result is False for result in expected]


@settings(max_examples=examples(150), deadline=None)
@given(number=numbers)
def test_numbers_agree_with_duckdb(table, number: Node) -> None:
    expected = [row[0] for row in table.execute(f"SELECT {in_sql(number)} FROM m ORDER BY i").fetchall()]
    assert [compile_result(simplified(number))(row) for row in ROWS] == expected
