"""The texts of a member that `columns.c` finds are those that a parser of JSON finds (Q20, X1)."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.runtime.kafka import columns
from support.suite.compiled import NEEDS_COLUMNS

pytestmark = NEEDS_COLUMNS

_NAME = "g"
_JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(10**17), 10**17), st.floats(allow_nan=False), st.text(max_size=5)
    ),
    lambda some: st.one_of(
        st.lists(some, max_size=3), st.dictionaries(st.sampled_from(["g", "h", "gg", "", "é"]), some, max_size=4)
    ),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.sampled_from(["g", "h", "gg", ""]), _JSON, max_size=4)
_PIECES = st.lists(
    st.sampled_from(
        [*b'{}[],:"\\g1-0.e \n\0\xff', b'"g"', b'"h"', b"null", b"nul", b"true", b'"g":"a"', b'{"g":', b'"a"}']
    ).map(lambda one: bytes([one]) if isinstance(one, int) else one),
    max_size=9,
).map(b"".join)


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    text = orjson.dumps(draw(_OBJECTS))
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.sampled_from([b"", b",", b'"', b" ", b"0", b"}", b"\\", b"x"])) + text[at + 1 :]


_VALUES = st.one_of(st.none(), _OBJECTS.map(orjson.dumps), _JSON.map(orjson.dumps), _mutated(), _PIECES)


@pytest.mark.feature("Q20", "Q25", "X1")
@given(st.lists(_VALUES, min_size=1, max_size=8))
@example([b'{"g":"a","g":null}', b'{"g":1,"g":"b"}', b' {"h":{"g":"x"},"g" : "b" } ', b'{"g":"a"'])
@example([b'{"g":"a"}x', b'{"h":01,"g":"a"}', b'{"h":[1,],"g":"a"}', b'{"g":"a",}', b"{}", b"{]"])
@example([b'{"h":' + b"[" * 40 + b"]" * 40 + b',"g":"a"}', b'{"h":-,"g":"a"}', b'{"h":1.,"g":"a"}'])
def test_found_texts_are_those_of_the_parsed_payload(values: list[bytes | None]) -> None:
    for value, text in zip(values, _texts(values), strict=True):
        if text is not _UNSURE:
            assert text == _parsed(value)


@pytest.mark.feature("Q25")
def test_usual_payloads_need_no_parser() -> None:
    usual = [
        b'{"id":7,"price":-1.5,"g":"a b","sold":true}',
        b'{"g":null,"lines":[{"g":"x","n":0}],"note":""}',
        b"{}",
        None,
    ]
    assert _texts(usual) == ["a b", None, None, None]


_UNSURE: Any = object()


def _texts(values: list[bytes | None]) -> list[Any]:
    lengths = np.array([-1 if value is None else len(value) for value in values], np.int32)
    data = b"".join(value or b"" for value in values)
    at = np.cumsum(np.maximum(lengths, 0), dtype=np.int32) - np.maximum(lengths, 0)
    found = columns.members(data, at, lengths, _NAME.encode())
    assert found is not None
    begins, sizes, unsure = found
    assert unsure == np.count_nonzero(sizes == columns.UNSURE)
    return [
        _UNSURE if size == columns.UNSURE else None if size < 0 else data[begin : begin + size].decode()
        for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)
    ]


def _parsed(value: bytes | None) -> object:
    payload = None if value is None else orjson.loads(value)
    return payload.get(_NAME) if isinstance(payload, dict) else None
