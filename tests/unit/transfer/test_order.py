"""Orders of transfers: whatever somebody else has written to their topic is passed over (C57, X7)."""

from typing import Any

import orjson
import pytest

from lapse.transfer.order import Order, _read

pytestmark = pytest.mark.feature("C57", "X7")

WRITTEN = Order({0: ("orders:0:1-3",)}, "/a = 1", listed=True, unfinished=(1, 2), topics={"orders": "id"})


def test_an_order_is_read_as_it_was_written() -> None:
    assert _read(orjson.dumps(WRITTEN, option=orjson.OPT_NON_STR_KEYS)) == WRITTEN


@pytest.mark.parametrize(
    "odd",
    [
        {"named": 1}, {"named": {"x": []}}, {"named": {"0": 1}}, {"named": {"0": ["?"]}}, {"named": {"0": [1]}},
        {"unfinished": [1]}, {"unfinished": None}, {"topics": []}, {"named": None},
    ],
)  # fmt: skip
def test_a_foreign_record_is_none(odd: dict[str, Any]) -> None:
    record = orjson.loads(orjson.dumps(WRITTEN, option=orjson.OPT_NON_STR_KEYS))
    assert _read(orjson.dumps({**record, **odd})) is None


@pytest.mark.parametrize("value", [None, b"", b"no", b"[]", b"1", b"{}", b"\xff"])
def test_what_is_no_order_at_all_is_none(value: bytes | None) -> None:
    assert _read(value) is None
