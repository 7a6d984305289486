"""The function library by example."""

import datetime as dt
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.expression import compile_value, priority_of
from lapse.core.expression.civil import civil_of, format_instant, parse_instant
from lapse.core.expression.functions import FUNCTIONS
from lapse.core.expression.size import SCANNING
from unit.core.expression.trees import same, values

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


EXAMPLES = [
    ("UPPER('aé')", "AÉ"),
    ("LOWER('AÉ')", "aé"),
    ("UPPER(5)", None),
    ("LENGTH('aé𝄞')", 3),
    ("SUBSTR('hello', 2, 3)", "ell"),
    ("SUBSTR('hello', 2)", "ello"),
    ("SUBSTR('hello', -3, 2)", "ll"),
    ("SUBSTR('hello', 0, 2)", "he"),
    ("SUBSTR('hello', 2, -1)", ""),
    ("SUBSTR('hello', 'x')", None),
    ("SUBSTR('hello', -9, 6)", "he"),
    ("LEFT('hello', 2)", "he"),
    ("RIGHT('hello', 2)", "lo"),
    ("RIGHT('hello', 9)", "hello"),
    ("CONCAT('a', 1, 2.5, TRUE)", "a12.5true"),
    ("CONCAT('a', NULL)", None),
    ("REPLACE('aXbX', 'X', '--')", "a--b--"),
    ("REPLACE('abc', '', 'x')", "abc"),
    ("TRIM('  a ')", "a"),
    ("LTRIM('  a ')", "a "),
    ("RTRIM('  a ')", "  a"),
    ("INSTR('critical', 'it')", 3),
    ("INSTR_I('CRITICAL', 'it')", 3),
    ("STREQUAL_I('Ab', 'aB')", True),
    ("STREQUAL_I('Ab', 5)", False),
    ("STREQUAL_I('Ab', NULL)", None),
    ("TEXT(1.0)", "1.0"),
    ("TEXT(-1 / 0)", "NaN"),
    ("TEXT(1e308 * 10)", "Infinity"),
    ("NUMBER(' 12 ')", 12),
    ("NUMBER('1e2')", 100.0),
    ("NUMBER('0x10')", math.nan),
    ("NUMBER('')", math.nan),
    ("NUMBER(TRUE)", 1),
    ("NUMBER(NULL)", None),
    ("ABS(-2.5)", 2.5),
    ("ABS('x')", math.nan),
    ("SIGN(-2.5)", -1),
    ("ROUND(2.5)", 3),
    ("ROUND(-2.5)", -3),
    ("ROUND(2.675, 2)", 2.68),
    ("ROUND(1250, -2)", 1300),
    ("ROUND(1249.9, -2)", 1200),
    ("ROUND(1e300)", int(1e300)),
    ("ROUND(2.5, 99)", math.nan),
    ("FLOOR(-1.5)", -2),
    ("CEILING(-1.5)", -1),
    ("CEIL(1.2)", 2),
    ("TRUNC(-1.5)", -1),
    ("FLOOR(1e308 * 10)", math.inf),
    ("SQRT(9)", 3.0),
    ("SQRT(-9)", math.nan),
    ("MIN(3, 1.5, 2)", 1.5),
    ("MAX(3, 1.5, 2)", 3),
    ("GREATEST(3, 'a')", math.nan),
    ("MAX(3, NULL)", None),
    ("UNIX_TIMESTAMP_MS('2026-01-01T00:00:00Z')", 1_767_225_600_000),
    ("UNIX_TIMESTAMP_MS('2026-01-01T02:00:00.1239+02:00')", 1_767_225_600_123),
    ("UNIX_TIMESTAMP_MS('2026-01-01')", 1_767_225_600_000),
    ("UNIX_TIMESTAMP_MS('2026-02-29')", None),
    ("UNIX_TIMESTAMP_MS('yesterday')", None),
    ("RFC3339(1767225600123)", "2026-01-01T00:00:00.123Z"),
    ("YEAR('2024-02-29T23:30:00-01:00')", 2024),
    ("MONTH('2024-02-29T23:30:00-01:00')", 3),
    ("DAY('2024-02-29T23:30:00-01:00')", 1),
    ("HOUR('2024-02-29T23:30:00-01:00')", 0),
    ("MINUTE(1767225661123) + SECOND(1767225661123) + MILLISECOND(1767225661123)", 125),
    ("WEEKDAY('1970-01-01')", 4),
    ("YEAR(1e300)", None),
    ("UNIX_TIMESTAMP_MS(253402300799999.5)", 253_402_300_799_999),
    ("UNIX_TIMESTAMP_MS(253402300800000)", None),
    ("UNIX_TIMESTAMP_MS(-62135596800001)", None),
    ("YEAR(TRUE)", None),
    ("COALESCE(NULL, /a, 5)", 5),
    ("NULLIF(1, 1.0)", None),
    ("NULLIF('a', 1)", "a"),
    ("ARRAY_LENGTH(5)", None),
    ("ARRAY_CONTAINS(5, 5)", None),
]
"""Expressions, and what they yield."""

WITHIN_LIMITS = {
    *("ABS", "CEILING", "FLOOR", "MAX", "MIN", "NUMBER", "ROUND", "SIGN", "SQRT", "TRUNC"),
    *("DAY", "HOUR", "MILLISECOND", "MINUTE", "MONTH", "RFC3339", "SECOND", "UNIX_TIMESTAMP_MS", "WEEKDAY", "YEAR"),
    *("ARRAY_LENGTH", "COALESCE", "LENGTH", "NULLIF"),
}
"""Functions whose work does not grow with a text or an array."""


@pytest.mark.feature("X1")
@pytest.mark.parametrize(("text", "value"), EXAMPLES)
def test_functions(text: str, value: Any) -> None:
    assert same(compile_value(text).evaluate({}), value)


@pytest.mark.feature("X1")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_an_example_and_its_work_a_limit(name: str) -> None:
    assert any(re.search(rf"\b{name}\(", text) for text, _ in EXAMPLES), "add an example"
    assert (name in WITHIN_LIMITS) is not (name in SCANNING), "does its work grow with a text or an array? (size.py)"


@pytest.mark.feature("X1")
def test_arrays_with_nulls() -> None:
    payload = {"a": ["x", None, 1]}
    assert compile_value("ARRAY_CONTAINS(/a, 'x')").evaluate(payload) is True
    assert compile_value("ARRAY_CONTAINS(/a, 'y')").evaluate(payload) is None
    assert compile_value("ARRAY_CONTAINS(/a, NULL)").evaluate(payload) is None
    assert compile_value("ARRAY_LENGTH(/a)").evaluate(payload) == 3


@pytest.mark.feature("X1")
@given(name=st.sampled_from(sorted(FUNCTIONS)), arguments=st.lists(values, min_size=3, max_size=3))
def test_functions_never_raise(name: str, arguments: list[Any]) -> None:
    function = FUNCTIONS[name]
    result = function.implementation(*arguments[: max(function.least, min(3, function.most or 3))])
    kind = {"boolean": bool, "number": (int, float), "string": str, "any": object}[function.result]
    assert result is None or isinstance(result, kind)


@pytest.mark.feature("X1")
@given(st.datetimes(timezones=st.just(dt.UTC)))
def test_dates_agree_with_the_standard_library(when: dt.datetime) -> None:
    instant = (when - EPOCH) // dt.timedelta(milliseconds=1)
    text = when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert format_instant(instant) == text
    assert parse_instant(text) == instant
    fields = (when.year, when.month, when.day, when.hour, when.minute, when.second, when.microsecond // 1000)
    assert civil_of(instant) == (*fields, when.isoweekday())


@pytest.mark.feature("X1")
@given(st.text("0123456789-+:.TtZz ", max_size=32))
def test_any_text_is_an_instant_or_not(text: str) -> None:
    instant = parse_instant(text)
    assert instant is None or format_instant(instant) is not None


@pytest.mark.feature("Q11")
@pytest.mark.parametrize(
    ("value", "priority"),
    [
        (0, 0),
        (7, 7),
        (7.9, 7),
        (-0.5, 0),
        (2**64 - 1, 2**64 - 1),
        (2**64, None),
        (-1, None),
        (1e30, None),
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        (True, None),
        ("7", None),
        (None, None),
        ([7], None),
    ],
)
def test_priorities(value: Any, priority: int | None) -> None:
    assert priority_of(value) == priority


@pytest.mark.feature("Q11")
def test_a_priority_expression() -> None:
    priority = compile_value("/price * /qty")
    orders = [{"price": 2.5, "qty": 3}, {"price": "2.5", "qty": 3}, {"qty": 3}, {"price": True, "qty": 3}, None]
    assert [priority_of(priority.evaluate(order)) for order in orders] == [7, None, None, None, None]
