"""Records that are far apart are handed out in columns as well: a tick's messages are all over the fetches (C60)."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER
from lapse.core.queue.step import Messages
from lapse.core.reason import Reason
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.dead_letter import Death
from lapse.runtime.kafka import batch_rows
from lapse.runtime.kafka.packed_run import PackedRun
from lapse.runtime.letters.packed_letter import PackedLetters, with_records
from lapse.runtime.letters.row_letters import RowLetters
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.shard.row_parts import RowParts
from support.kafka.record_batches import both, encoded
from support.suite.compiled import NEEDS_COLUMNS

pytestmark = NEEDS_COLUMNS

_DEATH = Death(entity="orders", bookmark=Bookmark("t", 0, 0), reasons=(Reason.TIME_LIMIT,), expired_at_ms=5)
_FETCHES = 24
_NO_LOG: Any = None
_KEYS = st.none() | st.binary(max_size=3)
_HEADERS = st.lists(st.tuples(st.sampled_from(["trace", "lapse-ttl-ms", "x"]), st.none() | st.binary(max_size=4)))
_RECORD = st.tuples(st.integers(0, 3), st.integers(0, 9), _KEYS, _KEYS, _HEADERS, st.booleans())
_FETCH = st.lists(_RECORD, min_size=1, max_size=6)


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_rows, "_FEW", 1)


def _facts(record: Any) -> tuple[Any, ...]:
    return record.offset, record.timestamp, record.key, record.value, list(record.headers)


@pytest.mark.feature("C60", "D2", "D3")
@settings(max_examples=40)
@given(st.lists(_FETCH, min_size=_FETCHES, max_size=_FETCHES), st.data())
def test_records_of_many_fetches_are_handed_out_in_columns_as_they_are(fetches: list[Any], data: Any) -> None:
    window = PayloadWindow(_NO_LOG, 1 << 20)
    objects: dict[int, Any] = {}
    for at, records in enumerate(fetches):
        some, rows = both(encoded(records, base=1_000 * at))
        objects |= {one.offset: one for one in some}
        window.keep("t", 0, rows)
    asked = [data.draw(st.sampled_from([one for one in objects if one // 1_000 == at])) for at in range(_FETCHES)]
    asked += data.draw(st.lists(st.sampled_from(sorted(objects)), max_size=10))
    offsets = np.array(sorted(set(asked)), np.int64)
    found = asyncio.run(window.get("t", 0, offsets))
    assert isinstance(found, RowParts), "no object of each"
    assert [_facts(one) for one in found] == [_facts(objects[offset]) for offset in offsets.tolist()]
    counts = (offsets % 2).astype(np.uint32)
    messages = Messages("t", 0, offsets, np.where(offsets % 5, offsets, NEVER), counts, None)
    (rows,) = found.parts
    packed = RowLetters(_DEATH).pack(messages, rows)
    same = messages.deliveries * 0
    alike = RowLetters(_DEATH).pack(Messages("t", 0, offsets, None, same, None), rows)
    assert list(packed) == PackedLetters(_DEATH).pack(
        with_records(messages, [objects[one] for one in offsets.tolist()])
    )
    assert isinstance(alike, PackedRun) or any(one.value is None for one in found)
    source = window._windows["t", 0]
    left = sorted(set(objects) - set(offsets.tolist()))
    assert sum(chunk.left for chunk in source._chunks) == len(left), "each counts as handed out once"
    assert source._size == sum(chunk.size for chunk in source._chunks)
    handed = asyncio.run(window.get("t", 0, left)) if left else []
    assert [_facts(one) for one in handed] == [_facts(objects[one]) for one in left]


@pytest.mark.feature("C60")
def test_a_record_that_is_not_in_memory_is_read_back() -> None:
    class Log:
        async def read(self, topic: str, partition: int, first: int, last: int) -> Any:
            return list(both(encoded([(0, 1, None, b"back", [], True)], base=first))[0])

    log: Any = Log()
    window = PayloadWindow(log, 1 << 20)
    for at in range(_FETCHES):
        if at != 5:
            window.keep("t", 0, both(encoded([(0, 1, None, b"%d" % at, [], True)], base=1_000 * at))[1])
    found = asyncio.run(window.get("t", 0, np.arange(_FETCHES) * 1_000))
    assert [one.value for one in found if one] == [b"back" if at == 5 else b"%d" % at for at in range(_FETCHES)]
