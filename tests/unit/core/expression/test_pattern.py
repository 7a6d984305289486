"""Patterns of LIKE take a time that is linear in the text, and mean what Python's `re` says."""

import re
import subprocess
import sys
import time

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from lapse.core.expression import ExpressionError, compile_filter, matcher
from lapse.core.expression.matcher import Search, linear_search
from lapse.core.expression.pattern import read_pattern
from lapse.core.expression.repetition import PatternFault
from lapse.core.expression.translation import _CASED_BELOW, _NAMED_BELOW, parse_tree, to_re2
from support.suite.at_length import examples

pytestmark = pytest.mark.feature("X1", "X7")

LETTERS = "abkKsSiIµéß1_ .-\n\tıİſKΣςσ٣\x1c\u2028\U00010400\U00010428\U0001f600"
"""Those that have several upper or lower cases, digits and white space beyond ASCII, and line ends."""

SUBJECTS = st.text(st.sampled_from(LETTERS), max_size=12)

classes = st.sampled_from(
    [
        *(r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", "."),
        *("[a-k]", "[^a-k]", r"[\w.]", r"[^\s_]", "[Kk]", "[^K]", "[ı-ſ]", "[]a]"),
    ]
)
atoms = st.sampled_from(LETTERS).map(re.escape) | classes
counts = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{0,3}", "{,2}", "{1,}", "*?", "+?", "??"])
simple = st.builds(lambda atom, count: atom + count, atoms, counts)
runs = st.lists(simple, min_size=1, max_size=4).map("".join)
groups = st.builds(
    lambda opening, some: f"({opening}{'|'.join(some)})",
    st.sampled_from(["", "?:", "?i:", "?s:", "?-i:", "?P<name>"]),
    st.lists(runs, min_size=1, max_size=2),
)
patterns = st.builds(
    lambda flags, start, one, two, end: flags + start + one + two + end,
    st.sampled_from(["", "", "(?i)", "(?s)", "(?is)"]),
    st.sampled_from(["", "", "^", r"\A"]),
    runs | groups,
    runs | groups,
    st.sampled_from(["", "", "$", r"\Z"]),
)


def linear(pattern: str) -> Search | None:
    """RE2's search for a pattern, whatever would choose it; None if it cannot express the pattern."""
    translated = to_re2(parse_tree(pattern))
    return None if translated is None else linear_search(translated)


@pytest.mark.slow
@settings(max_examples=examples(2000), deadline=None)
@given(pattern=patterns, subject=SUBJECTS)
@example("(?i)[k-s]K", "\u212a\u017f")
@example("(?i)i", "İ")
@example("(?i)[^k]", "\u212a")
@example(r"a$", "a\n")
@example(r"a\Z", "a\n")
@example(r"(a|b$)", "b\n")
@example(r"\s", "\x1c")
@example(r"x{,2}y", "x{,2}y")
def test_the_linear_search_finds_what_pythons_re_finds(pattern: str, subject: str) -> None:
    try:
        compiled = re.compile(pattern)
    except re.error:
        assume(False)
    search = linear(pattern)
    assume(search is not None)
    assert (search(subject) is not None) is (compiled.search(subject) is not None)


@settings(max_examples=examples(500), deadline=None)
@given(pattern=patterns, subject=SUBJECTS)
def test_an_accepted_pattern_means_what_pythons_re_means(pattern: str, subject: str) -> None:
    try:
        found = read_pattern(pattern)
    except PatternFault:
        assume(False)
    assume(len(subject) <= found.longest)
    assert (found.search(subject) is not None) is (re.search(pattern, subject) is not None)


def test_most_patterns_can_be_translated() -> None:
    for pattern in ("a.*b", r"(a*)(a*)(a*)b", r"^\w+@\w+\.com$", "(?i)x(?:y|z)", r"[^\d]+$", r"(?P<n>a)b"):
        assert linear(pattern) is not None, pattern
    for pattern in (r"(a)\1", r"a(?=b)", r"\bfoo", r"a$\n", "(?>a)b", "a{2000}"):
        assert linear(pattern) is None, pattern


@pytest.mark.slow
def test_the_tables_leave_no_character_out() -> None:
    beyond = [chr(code) for code in range(_CASED_BELOW, 0x110000)]
    assert [one for one in beyond if one.lower() != one or one.upper() != one] == []
    assert re.search(r"[\d\s\w]", "".join(beyond[_NAMED_BELOW - _CASED_BELOW :])) is None


SLOW = (
    r"(a*)(a*)(a*)b",
    r"a*a*a*b",
    "a.*a.*a.*b",
    r"\w+\w+\w+!",
    r"(a|a)(a|a)(a|a)(a|a)a*a*b",
    r"(a*)(a*)\2b",
    r"a*a*(?=b)",
    "(ab?){15}a*a*b",
    "a{30000}b",
    "(aa){15000}b",
)


@pytest.mark.parametrize("pattern", SLOW)
def test_no_accepted_pattern_is_slow_on_the_longest_text(pattern: str) -> None:
    try:
        found = read_pattern(pattern)
    except PatternFault:
        return
    begin = time.thread_time()
    for _ in range(5):
        found.search("a" * found.longest)
    assert (time.thread_time() - begin) / 5 < 0.2, found.longest


@pytest.mark.parametrize(
    "pattern", ["(?:){1000000000}", "(^){100000000}", "(a{0}){4000000}", r"(\b){9999999}", "(|a){99}"]
)
def test_a_repeat_of_what_can_be_empty_is_refused(pattern: str) -> None:
    with pytest.raises(ExpressionError, match=r"can be empty|itself varies"):
        compile_filter(f"/a LIKE '{pattern}'")


def test_without_re2_what_cannot_be_shown_to_be_quick_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import sys
sys.modules["re2"] = None
from lapse.core.expression import ExpressionError, compile_filter
assert compile_filter("/a LIKE '^a.*b[0-9]'").match({"a": "axb1"})
assert compile_filter("/a LIKE 'b[0-9]'").match({"a": "axb1"})
try:
    compile_filter("/a LIKE 'a.*b.*c'")
except ExpressionError as error:
    assert "lapse[worker]" in str(error), error
else:
    raise SystemExit("accepted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert matcher.re2 is not None


def test_an_expression_reads_texts_only_so_often() -> None:
    upper = " AND ".join(["UPPER(/a) = 'A'"] * 101)
    with pytest.raises(ExpressionError, match="more than 100 patterns of LIKE and functions on strings and arrays"):
        compile_filter(upper)
