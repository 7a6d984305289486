"""The language by example, as docs/expressions.md describes it."""

import math
from typing import Any

import pytest

from lapse.core.expression import compile_filter, compile_value, parse, to_text
from unit.core.expression.trees import Sample, same

pytestmark = pytest.mark.feature("X1")

ORDER = {
    "price": 12.5,
    "qty": 10,
    "symbol": "AAPL",
    "note": None,
    "open": True,
    "tags": ["a", None, 3],
    "legs": [{"id": "x"}, {"id": "y"}],
    "order-id": {"it's": 1},
    "text": "10",
    "35": "D",
    "size": {"größe": 3},
}


@pytest.mark.parametrize(
    "text",
    [
        "/price * /qty > 100 AND /symbol LIKE '^A'",
        '/price*/qty>100&&/symbol LIKE "^A"',
        "/legs[1]/id = 'y'",
        "/'order-id'/\"it's\" = 1",
        "/35 == 'D'",
        "/size/größe = 3",
        "/qty / 2 = 5",
        "/qty /2 = 5",
        "10/2 = 5",
        "/qty//qty = 1",
        "/qty % 3 = 1 and -7 % 3 = -1",
        "/qty - 1 = 9 and /qty -1 = 9 and /qty-1 = 9",
        "2 + 3 * 4 = 14 AND (2 + 3) * 4 = 20 AND 2 - 3 - 4 = -5 AND -2 * -3 = 6",
        "/symbol IN ('IBM', 'AAPL') and /symbol NOT IN ('IBM')",
        "/qty BETWEEN 10 AND 11 AND /qty NOT BETWEEN 11 AND 12",
        "/symbol BEGINS WITH ('X', 'AA') AND /symbol NOT ENDS WITH ('X') and /symbol ends with 'PL'",
        "/symbol NOT LIKE '^B' AND NOT /symbol LIKE '^B' and /symbol like '(.)\\1'",
        "/note IS NULL AND /missing IS NULL AND /qty IS NOT NULL AND /qty/deeper IS NULL AND /tags[9] IS NULL",
        "/qty / 0 IS NAN AND NAN IS NAN AND /qty IS NOT NAN AND NOT NULL IS NAN",
        "/open AND /open = TRUE AND NOT !/open AND /open = 1",
        "/qty <> 11 or FALSE",
        "TRUE OR FALSE AND FALSE",
        "NOT FALSE AND TRUE",
        "STREQUAL_I(/symbol, 'aapl') = 1 AND INSTR(/symbol, 'PL') = 3 AND INSTR(/symbol, 'X') == 0",
        "IF(/qty > 5, 'many', 'few') = 'many'",
        "CASE WHEN /qty < 5 THEN 'few' WHEN /qty < 20 THEN 'some' ELSE 'many' END = 'some'",
        "CASE WHEN /qty < 5 THEN 'few' END IS NULL",
        "ARRAY_CONTAINS(/tags, 3) AND ARRAY_LENGTH(/tags) = 3",
        "'it''s' = \"it's\" AND \"a\"\"b\" = 'a\"b'",
        "1e3 = 1000 AND .5 = 0.5 AND 1. = 1 AND +5 = 5 AND 2.5E-1 = 0.25",
        "18446744073709551616 > 18446744073709551615",
        "\n/qty = 10\r\n\tAND\n  /open",
    ],
)
def test_true(text: str) -> None:
    assert compile_filter(text).match(ORDER) is True


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NULL AND FALSE", False),
        ("NULL AND TRUE", None),
        ("NULL OR TRUE", True),
        ("NULL OR FALSE", None),
        ("NOT NULL", None),
        ("/missing = 1", None),
        ("/missing != 1", None),
        ("/missing + 1", None),
        ("/missing LIKE 'a'", None),
        ("/missing IN (1)", None),
        ("/qty IN (1, NULL)", None),
        ("/qty IN (10, NULL)", True),
        ("/qty NOT IN (1, NULL)", None),
        ("/qty BETWEEN 11 AND NULL", False),
        ("/qty BETWEEN 9 AND NULL", None),
        ("/symbol + 1", math.nan),
        ("/open * 2", math.nan),
        ("/text + 1", math.nan),
        ("/tags + 1", math.nan),
        ("1 / 0", math.nan),
        ("1 % 0", math.nan),
        ("NAN = NAN", False),
        ("NAN != NAN", True),
        ("NAN < 1 OR NAN >= 1", False),
        ("/text = 10", False),
        ("/text != 10", True),
        ("/text < 11 OR /text >= 11", False),
        ("NUMBER(/text) = 10", True),
        ("/tags = /tags", False),
        ("/tags != /tags", True),
        ("/qty LIKE '1'", False),
        ("/qty NOT LIKE '1'", True),
        ("5 AND TRUE", True),
        ("0 OR FALSE", False),
        ("NAN AND TRUE", None),
        ("'text' AND TRUE", None),
        ("-/qty", -10),
        ("-/symbol", math.nan),
        ("7 / 2", 3.5),
        ("6 / 2", 3.0),
        ("7.5 % 2", 1.5),
        ("/tags", None),
        ("/tags[2]", 3),
        ("/open", True),
        ("1e308 * 10", math.inf),
        ("'b' > 'a'", True),
        ("'a' = 'A'", False),
        ("TRUE > FALSE", True),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert same(compile_value(text).evaluate(ORDER), value)


def test_huge_integers_are_exact_and_become_infinite_with_floats() -> None:
    payload = {"n": 10**400, "f": 0.5}
    assert compile_value("/n * 2").evaluate(payload) == 2 * 10**400
    assert compile_value("/n * /f").evaluate(payload) == math.inf
    assert compile_value("-/n / 3").evaluate(payload) == -math.inf
    assert compile_value("/n % 0.3").evaluate(payload) != compile_value("/n % 0.3").evaluate(payload)
    assert compile_filter("/n - /f > 5 AND COALESCE(/x, /n) = /n").match(payload)


def test_attributes() -> None:
    message = Sample(
        {"a": 1}, {"source": "é".encode(), "binary": b"\xff", "null": None}, b"k-1", "orders.eu", 3, 42, 1000
    )
    for text in (
        "HEADER('source') = 'é' AND HEADER('binary') IS NULL AND HEADER('null') IS NULL AND HEADER('x') IS NULL",
        "KEY() LIKE '^k-' AND TOPIC() BEGINS WITH ('orders') AND PARTITION() = 3 AND OFFSET() >= 42",
        "timestamp_ms() = UNIX_TIMESTAMP_MS('1970-01-01T00:00:01Z') AND /a = 1",
    ):
        assert compile_filter(text)(message) is True
        assert compile_filter(text).match(message.payload) is False
    assert compile_value("KEY()")(message) == "k-1"


def test_a_payload_is_not_parsed_unless_it_is_used() -> None:
    class Unparsed(Sample):
        @property
        def payload(self) -> Any:
            raise AssertionError("parsed")

        @payload.setter
        def payload(self, value: Any) -> None:
            pass

    outside = compile_filter("KEY() = 'a' AND (FALSE AND /a = 1 OR TRUE)")
    assert outside.uses_payload is False
    assert outside(Unparsed(key=b"a")) is True
    assert compile_filter("/a = 1").uses_payload is True


def test_what_an_expression_tells_about_itself() -> None:
    compiled = compile_filter("/b[0]/'x y' = 'A' AND 3 = /a AND /c > 1 AND (/d = 1 OR /e = 2) AND /f = NAN")
    assert compiled.paths == {"/b[0]/'x y'", "/a", "/c", "/d", "/e", "/f"}
    assert set(compiled.equalities) == {("/b[0]/'x y'", "A"), ("/a", 3)}
    assert compile_filter("/a = 1 OR /b = 2").equalities == ()
    assert compile_filter("/a IN ('x')").equalities == (("/a", "x"),)
    assert compile_filter("/a = 1") is compile_filter("/a = 1")
    assert compiled.text in repr(compiled)


def test_synonyms_and_negations_have_one_form() -> None:
    assert to_text(parse("/a == 1 && !(/b <> 2) || /c is not null")) == (
        "((/a = 1) AND (NOT (/b != 2))) OR (NOT (/c IS NULL))"
    )


def test_a_payload_need_not_be_an_object() -> None:
    for payload in (None, 5, "text", [1], True, math.nan, b"raw"):
        assert compile_filter("/a = 1").match(payload) is False
        assert compile_filter("/a IS NULL").match(payload) is True
