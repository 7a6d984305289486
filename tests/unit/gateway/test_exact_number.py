"""Numbers in a request are published with the values that were written, whatever their number of digits."""

import json
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse_gateway import body
from lapse_gateway.exact_number import _LONG, ExactNumber, _may_have_long, dumped, loaded
from lapse_gateway.fault import Fault
from lapse_gateway.publishing import Batch

pytestmark = pytest.mark.feature("X7")

NUMBER = st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


def exact(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


@given(st.lists(NUMBER, max_size=5), st.text())
def test_every_number_keeps_its_value(numbers: list[str], text: str) -> None:
    written = f'{{"n": [{", ".join(numbers)}], "text": {json.dumps(text)}}}'
    try:
        orjson.loads(written)
    except orjson.JSONDecodeError:  # a number beyond the range of floats, or half a surrogate
        return
    assert exact(dumped(loaded(written.encode())).decode()) == exact(written)


@given(st.lists(NUMBER | st.text(), max_size=5), st.sampled_from(",: [\n"))
def test_no_long_number_is_passed_over(parts: list[str], between: str) -> None:
    written = between.join(["", *parts]).encode()
    assert _may_have_long(written) or not _LONG.search(written)


def test_an_ordinary_body_is_not_searched() -> None:
    assert not _may_have_long(b'{"key": "12", "value": {"price": 12.50, "at": 1795793968717, "text": "east 9"}}')


def test_an_amount_in_a_batch_is_published_with_all_its_digits() -> None:
    sent = b'{"messages": [{"value": {"id": 123456789012345678901234, "amount": 12345678901234567.89}, "ttl_ms": 5}]}'
    (message,) = body.decode(sent, Batch).messages
    assert message.content() == b'{"id":123456789012345678901234,"amount":12345678901234567.89}'
    assert message.ttl_ms == 5


def test_a_number_that_is_no_lifetime_is_refused_by_its_field() -> None:
    for number, why in ((b"9223372036854775808", "or less"), (b"1" * 30, "expected")):
        with pytest.raises(Fault, match=rf"messages\.0\.ttl_ms: .*{why}"):
            body.decode(b'{"messages": [{"value": 1, "ttl_ms": %b}]}' % number, Batch)
    (message,) = body.decode(b'{"messages": [{"value": 1, "ttl_ms": 9223372036854775807}]}', Batch).messages
    assert message.ttl_ms == (1 << 63) - 1


def test_a_value_that_is_nested_too_deeply_is_refused_by_its_field() -> None:
    for levels in (1, 250, 300, 1_000):
        sent = b'{"messages": [{"value": %b%b}]}' % (b"[" * levels, b"]" * levels)
        (message,) = body.decode(sent, Batch).messages
        if levels < 254:
            assert message.content() == b"[" * levels + b"]" * levels
        else:
            with pytest.raises(Fault, match="value: it is nested more than 254 levels deep"):
                message.content()


def test_deep_nesting_is_read() -> None:
    """Before Python 3.12 its decoder of JSON does not go as deep as orjson, which rounds."""
    deep = b"[" * 1_000 + b"1234567890123456789012" + b"]" * 1_000
    found = loaded(deep)
    for _ in range(1_000):
        (found,) = found
    assert found in (float("1234567890123456789012"), ExactNumber("1234567890123456789012"))
