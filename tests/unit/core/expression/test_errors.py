"""Errors say where, what, and what to do; whatever the text, nothing but an ExpressionError is raised."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.expression import ExpressionError, compile_filter, compile_value
from lapse.core.expression.parser import parse
from support.suite.at_length import examples
from unit.core.expression.trees import is_true

pytestmark = pytest.mark.feature("X1")


def error_of(text: str) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        compile_filter(text)
    return caught.value


def test_an_error_shows_the_spot() -> None:
    error = error_of("/price > 5 AND\n  /symbol LIKE 5")
    assert (error.line, error.column) == (2, 16)
    assert str(error) == (
        "expression, line 2, column 16: unexpected 5; expected a pattern in quotes\n"
        "    /symbol LIKE 5\n"
        "                 ^\n"
        "hint: the pattern of LIKE is a literal, such as LIKE '^A'"
    )


@pytest.mark.parametrize(
    ("text", "column", "message", "hint"),
    [
        ("", 1, "ends too early; expected a value", ""),
        ("/a +", 5, "ends too early; expected a value", ""),
        ("/a > > 3", 6, "unexpected >; expected a value", ""),
        ("price > 3", 1, "price is neither a field nor a text nor a function", "/price"),
        ("/a = abc", 6, "abc is neither", "'abc'"),
        ("/a /b", 5, "b is neither", "/ /b"),
        ("1 2", 3, "unexpected 2; expected an operator or the end", ""),
        ("(/a = 3", 8, "expected a closing parenthesis", ""),
        ("/a = 'x", 6, "unexpected '", "no closing '"),
        ("/a IN 3", 7, "expected a list in parentheses", "IN (1, 2, 3)"),
        ("/a IS 3", 7, "expected NULL or NAN", "IS NOT NULL"),
        ("/a BEGINS 'x'", 11, "expected WITH", "BEGINS WITH"),
        ("/a BEGINS WITH (3)", 17, "expected a text in quotes", "BEGINS WITH"),
        ("/a BEGINS WITH ('x', NULL)", 22, "expected a text in quotes", "BEGINS WITH"),
        ("/a[1234567890] = 3", 3, "unexpected [", "at most 9 digits"),
        ("/a [0] = 3", 4, "unexpected [", "right behind its path"),
        ("/a['x'] = 3", 3, "unexpected [", "from 0"),
        ("CASE 3", 6, "expected WHEN", "CASE WHEN"),
        ("/a[*] = 3", 3, "unexpected [", "ARRAY_CONTAINS"),
        ("/a[-1] = 3", 3, "unexpected [", "from 0"),
        ("/a & /b", 4, "unexpected &", "AND"),
        ("/a NOT 5", 8, "expected IN, BETWEEN, LIKE", ""),
        ("/a = 1 = 2", 8, "unexpected =", ""),
        ("/order-id = 3", 8, "id is neither", "/'order-id'"),
        ("/order@x = 3", 7, "unexpected @", "quote strange names"),
        ("UPPR(/a) = 'A'", 1, "there is no function UPPR", "did you mean UPPER?"),
        ("NOW() > 3", 1, "there is no function NOW", "no clock"),
        ("UPPER(/a, 1) = 'A'", 1, "UPPER takes 1 argument, not 2", "UPPER(s)"),
        ("SUBSTR(/a) = 'A'", 1, "SUBSTR takes 2 to 3 arguments, not 1", "start[, n]"),
        ("IF(1, 2)", 1, "IF takes 3 arguments", "IF(condition"),
        ("HEADER(/a) = ''", 1, "HEADER takes the header's name", "HEADER('name')"),
        ("KEY('a') = ''", 1, "KEY takes no arguments", "KEY()"),
        ("/a > 1e999", 6, "too large", "1.8e308"),
        ("/a > " + "9" * 100, 6, "more than 64 digits", "shorter"),
        ("/a LIKE 'it''s('", 15, "not a regular expression", "backslash"),
        ("/a LIKE '(a+)+'", 14, "repeats a group that itself varies", "[ab]*"),
        ("/a LIKE '(?x)a'", 10, "only the flags i and s", "(?i)"),
        ("/a LIKE 'a*b*c*d*'", 17, "more than 3 unbounded repeats", "several LIKE"),
    ],
)
def test_messages_and_hints(text: str, column: int, message: str, hint: str) -> None:
    error = error_of(text)
    assert message in error.message
    assert hint in error.hint
    assert (error.line, error.column) == (1, column)


def test_a_long_line_is_shown_in_part() -> None:
    error = error_of("/a = 1 AND " * 100 + "/b = = 1 AND" + " /a = 1" * 100)
    shown, caret = error.snippet.splitlines()
    assert len(shown) < 120
    assert shown[caret.index("^")] == "="


@pytest.mark.parametrize(
    "text",
    [
        "/a = 1 OR " * 2000 + "/a = 1",
        "NOT " * 4000 + "/a",
        "-" * 10000 + "/a",
        "/a" + " + /a" * 100,
        "(" * 8000,
        "(/a = " * 150 + "1" + ")" * 150,
        "/a" + " * /a" * 33,
        "/a = /b OR " * 999 + "/a = 1",
        "/a IN (" + ",".join(map(str, range(1001))) + ")",
        "CASE" + " WHEN /a THEN 1" * 65 + " END",
        "CONCAT(" + ",".join(["/a"] * 65) + ") = ''",
        "/a LIKE '" + "a" * 257 + "'",
        "/a LIKE '" + "a?" * 30 + "'",
        "/a LIKE '(a|aa)+$'",
        "/a LIKE '((a{0,9}){0,9}){0,9}'",
        "/a LIKE '(?:(?:x))*+(?:a|b)*'",
        "/a LIKE '(.*)(.*)\\1\\2'",
        "/a LIKE 'a{99999999999}'",
        "/a LIKE '(a)(?(1)b|c)'",
        "/a LIKE '" + "(" * 120 + "'",
        "__import__('os').system('x')",
        "/a.__class__",
        "\x00",
        "\ud800",
    ],
)
def test_hostile_texts_are_refused_quickly(text: str) -> None:
    start = time.process_time()
    error_of(text)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("text", "payload"),
    [
        ("/a = 1 OR " * 600 + "/a = 1", {}),
        ("NOT " * 98 + "/a", {"a": True}),
        ("(" * 5000 + "/a" + ")" * 5000, {"a": True}),
        ("COALESCE(/b, " * 97 + "/a" + ")" * 97, {"a": True}),
        ("(/a = 1 AND (/b = 2 OR " * 48 + "/c" + "))" * 48, {"a": 1, "b": 3, "c": 1}),
        ("(/b IN (/a, " * 48 + "1" + "))" * 48, {"a": 1}),
        ("/a" * 8000 + " = 1", {"a": {"a": {}}}),
        ("/a" + " * /a" * 31 + " > 1", {"a": 10**4000}),
        ("REPLACE(" * 20 + "/a" + ", 'a', 'aaaaaaaa')" * 20 + " IS NULL", {"a": "a" * 20}),
        ("(/a LIKE '.*a.*b') IS NULL", {"a": "a" * 100_000}),
        ("NOT /a LIKE '.*a.*b'", {"a": "a" * 1_000}),
        ("NOT /a LIKE '.*.*.*='", {"a": "a" * 256}),
    ],
)
def test_extreme_but_legal_expressions_work(text: str, payload: dict) -> None:
    start = time.process_time()
    tree = parse(text)
    assert compile_filter(text).match(payload) is is_true(tree, payload)
    assert time.process_time() - start < 5


def test_generated_functions_have_no_builtins() -> None:
    function = compile_filter("/a = 'x' AND /'__import__(\"os\")' IS NULL").match
    assert function.__globals__["__builtins__"] == {}
    assert not [name for name in function.__code__.co_names if "os" in name]


tokens = st.sampled_from(
    "/a /b[0] /'x y' 1 2.5 'A' \"B\" '( ( ) , + - * / % = == != <> < <= > >= AND OR NOT ! && || IN BETWEEN LIKE BEGINS "
    "ENDS WITH IS NULL NAN TRUE FALSE CASE WHEN THEN ELSE END UPPER( IF( HEADER( KEY() name [ ] @ # \\ \n".split(" ")
)


@settings(max_examples=examples(800), deadline=None)
@given(text=st.one_of(st.text(max_size=40), st.lists(tokens, max_size=12).map(" ".join), st.lists(tokens).map("".join)))
def test_any_text_compiles_or_raises_an_expression_error(text: str) -> None:
    try:
        compile_value(text).evaluate({"a": 1})
        return
    except ExpressionError as caught:
        error = caught
    assert 1 <= error.line <= text.count("\n") + 1
    assert error.column >= 1
    assert error.message
    assert "^" in error.snippet


@pytest.mark.filterwarnings("ignore::FutureWarning")
@settings(max_examples=examples(500), deadline=None)
@given(
    pattern=st.one_of(st.text("ab(|)*+?{1,}[]^$\\.:=!<>#Pid-", max_size=14), st.text(max_size=8)),
    subject=st.text("ab\n.", max_size=20),
)
def test_any_pattern_compiles_or_raises_an_expression_error(pattern: str, subject: str) -> None:
    text = "/a LIKE '" + pattern.replace("'", "''") + "'"
    try:
        compiled = compile_filter(text)
    except ExpressionError:
        return
    assert compiled.match({"a": subject}) is is_true(compiled.tree, {"a": subject})
