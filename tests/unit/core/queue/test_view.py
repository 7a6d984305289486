"""A record as filters and traits see it."""

import json

import pytest

from lapse.core.queue.inquiry.view import RecordView
from unit.core.queue.expected.message import Published


@pytest.mark.feature("X1", "Q14")
@pytest.mark.parametrize(("value", "payload"), [(b'{"f": 1}', {"f": 1}), (b"{", None), (None, None)])
def test_a_payload_that_is_missing_or_cannot_be_parsed_is_null(value: bytes | None, payload: object) -> None:
    assert RecordView("orders", 0, Published(0, 1_000, value=value), json.loads).payload == payload
