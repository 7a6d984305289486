"""What the console's pages show values as."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse_gateway.console import text
from lapse_gateway.console.overview import group_needs
from lapse_gateway.console.page import refused
from lapse_gateway.fault import Fault

pytestmark = pytest.mark.feature("Q15")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "no payload"),
        (b"", "an empty payload"),
        (b"\xff\x00", "ff00"),
        (b"\xff\x00\x10", "ff00 10"),
        (
            b'{"n":12345678901234567890123,"f":1.10,"n":2}',
            '{\n  "n": 12345678901234567890123,\n  "f": 1.10,\n  "n": 2\n}',
        ),
        (b'{"a":[],"b":{},"c":[1,[2]]}', '{\n  "a": [],\n  "b": {},\n  "c": [\n    1,\n    [\n      2\n    ]\n  ]\n}'),
        (b'"a, [b]: {\\"c\\"}"', '"a, [b]: {\\"c\\"}"'),
        ("paid \u202e001\u2069".encode(), "paid \\u202e001\\u2069"),
        (b"a\x1b[2Kb\tc\n", "a\\u001b[2Kb\tc\n"),
    ],
)
def test_a_payload_is_shown_as_it_is(value: bytes | None, shown: str) -> None:
    assert text.payload(value) == shown


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    )
)
def test_json_that_is_set_out_says_the_same(value: object) -> None:
    assert orjson.loads(text._set_out(orjson.dumps(value).decode())) == value


def test_a_long_payload_is_cut_and_says_so() -> None:
    for value in (orjson.dumps(["x" * 300_000]), orjson.dumps(list(range(200_000))), b"y" * 200_000):
        assert text.payload(value).endswith(f"… ({len(value):,} bytes)")
        assert len(text.payload(value)) < 100_100


def test_a_header_with_an_instant_is_shown_as_one_too() -> None:
    assert text.header("lapse-enqueue-at-ms", b"1767225600000") == "1767225600000 (2026-01-01 00:00:00.000)"
    assert text.header("lapse-enqueue-at-ms", b"9" * 40) == "9" * 40
    assert text.header("trace", b"1767225600000") == "1767225600000"
    assert text.header("trace", None) == "none"
    assert text.of_bytes(b"\xffkey") == "\\xffkey"


def test_what_stands_between_backquotes_is_code_and_nothing_becomes_markup() -> None:
    assert text.coded("run `lapse <worker>` & look") == "run <code>lapse &lt;worker&gt;</code> &amp; look"
    assert text.coded("one ` alone") == "one ` alone"


def test_what_many_queues_need_is_reported_once() -> None:
    needs = [("queues", "a", "silent"), ("queues", "b", "paused"), ("queues", "c", "silent"), ("sow", "d", "silent")]
    silent, paused = group_needs(needs)
    assert (silent.text, silent.of) == ("silent", [("queues", "a"), ("queues", "c"), ("sow", "d")])
    assert (paused.text, paused.of) == ("paused", [("queues", "b")])


def test_needs_that_differ_in_a_count_are_one_with_its_span() -> None:
    """A hundred queues without consumers gave a line for each count, and twenty lines are shown."""
    waiting = " available, and nobody subscribes"
    texts = [f"1 message is{waiting}", f"1,200 messages are{waiting}", f"20 messages are{waiting}"]
    one, groups = group_needs(
        [*(("queues", f"q{at}", text) for at, text in enumerate(texts)), ("queues", "r", "1 group waits: no match")]
    )
    assert (one.text, len(one.of)) == (f"1 to 1,200 messages are{waiting}", 3)
    assert groups.text == "1 group waits: no match"
    (same,) = group_needs([("queues", "a", texts[0]), ("queues", "b", texts[0])])
    assert (same.text, same.key) == (texts[0], one.key)


def test_an_instant_that_no_date_has_is_shown_as_what_it_is() -> None:
    """Any publisher may state one. A page with it could not be shown."""
    assert text.instant((1 << 63) - 2) == "epoch + 9223372036854775806 ms"
    assert text.second((1 << 63) - 2) == "epoch + 9223372036854775806 ms"
    assert text.second(1_767_225_600_123) == "2026-01-01 00:00:00"
    assert text.instant(None) == text.second(None) == "–"


@pytest.mark.feature("X7")
def test_the_title_of_a_page_that_cannot_be_shown_is_in_words() -> None:
    page = bytes(refused(Fault("unknown_path", "there is no page /nope"), False, "").body).decode()
    assert "<title>Unknown path · lapse</title>" in page
