"""A SOW shard does the same with updates in columns as with one after the other (C1, C46)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.lifetime import Expiration, ExpirationModel
from lapse.core.sow.arrival.plain_updates import LEAST
from lapse.core.sow.records.record import facts_of, payload_of
from lapse.core.sow.settings import SowSettings
from lapse.core.sow.shard import SowShard
from lapse.core.sow.step import Step
from lapse.runtime.kafka import batch_rows
from support.kafka.record_batches import both, encoded
from support.suite.at_length import examples
from support.suite.compiled import NEEDS_COLUMNS
from unit.core.sow.make import T

pytestmark = NEEDS_COLUMNS

_HEADERS = st.sampled_from(
    [
        [],
        [("trace", b"7")],
        [("lapse-ttl-ms", b"400")],
        [("lapse-ttl-ms", b"60000"), ("trace", None)],
        [("lapse-expires-at-ms", b"%d" % (T + 900))],
        [("lapse-expires-at-ms", b"%d" % (T + 100))],
        [("lapse-enqueue-at-ms", b"%d" % (T + 500))],
        [("lapse-command", b"delta")],
        [("lapse-command", b"delta"), ("lapse-ttl-ms", b"400")],
        [("lapse-command", b"publish")],
        [("lapse-command", b"upsert")],
        [("lapse-message-id", b"one")],
        [("lapse-origin", b"elsewhere")],
        [("lapse-ttl-ms", b"no number")],
    ]
)
_RUN = st.tuples(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.integers(-100, 400),
            st.integers(0, 30).map(lambda number: b"k%d" % number) | st.none(),
            st.sampled_from([b'{"a": 1}', b'{"a": null, "b": {"c": 2}}', b"x" * 40, b"", None]),
        ),
        min_size=1,
        max_size=40,
        unique_by=lambda record: record[2],
    ),
    _HEADERS,
    st.sampled_from([0, 1]),
)
_SETTINGS = st.builds(
    lambda expiration, **more: SowSettings(name="orders", expiration=expiration, **more),
    st.builds(Expiration, st.booleans(), st.sampled_from([None, 300, 60_000]), st.sampled_from(ExpirationModel)),
    max_step_bytes=st.sampled_from([1_000, 1 << 22]),
    max_record_bytes=st.sampled_from([200, 1 << 20]),
    dedup_window_ms=st.sampled_from([0, 1_000]),
    hash_index=st.sampled_from([(), ("/a",)]),
)


def remembered(shard: SowShard) -> list[Any]:
    """All that a shard knows."""
    state = shard.state
    return [
        state.entries, state.tombstones, state.pending, state.sequence, state.now_ms, state.sources,
        list(state.schedule.by_key), sorted(state.record_names.walk().take(1 << 30)),
        sorted(state.deadlines.due(1 << 60, 1 << 30)[0]),
    ]  # fmt: skip


@pytest.mark.feature("S2", "S4", "C1", "C46")
@settings(max_examples=examples(600))
@given(_SETTINGS, st.lists(_RUN, min_size=1, max_size=6), st.sampled_from([1, 5, LEAST]))
def test_updates_in_columns_are_those_that_come_one_by_one(given: Any, runs: list[Any], least: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batch_rows, "_FEW", 1)
        one_by_one, together = SowShard(given), SowShard(given)
        together._entrance._plain_updates.least = least
        offset, stamp_ms = 0, T
        for records, headers, partition in runs:
            batch: list[Any] = []
            for gap, later_ms, key, value in records:
                stamp_ms += later_ms
                batch.append((gap, stamp_ms, key, value, headers, False))
            objects, rows = both(encoded(batch, base=offset))
            offset = objects[-1].offset + 1
            taken = 0
            while taken < len(objects):
                steps = Step(), Step()
                done = one_by_one.arrive("orders", partition, objects[taken:], steps[0])
                assert together.arrive("orders", partition, rows[taken:], steps[1]) == done
                assert list(steps[1].changes.items()) == list(steps[0].changes.items())
                assert steps[1] == steps[0]
                taken += done
            assert remembered(together)[:-1] == remembered(one_by_one)[:-1]
        assert remembered(together) == remembered(one_by_one)


@pytest.mark.feature("S2")
def test_many_plain_updates_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = SowShard(SowSettings(name="orders", expiration=Expiration(True, 60_000, ExpirationModel.OVERRIDE)))
    asked: list[int] = []
    entrance = shard._entrance
    take = entrance._plain_updates.take

    def noted(_: Any, *given: Any) -> int:
        asked.append(take(*given))
        return asked[-1]

    monkeypatch.setattr(type(entrance), "_take_singly", None)
    monkeypatch.setattr(type(entrance._plain_updates), "take", noted)
    for turn in range(3):
        batch = [
            (0, T + turn, b"k%d" % number, b"%d" % turn, [("lapse-ttl-ms", b"500")], False) for number in range(700)
        ]
        _, rows = both(encoded(batch, base=turn * 700))
        assert shard.arrive("orders", 0, rows, Step()) == 700
    assert sum(asked) == 2_100
    assert len(shard.state.entries) == 700


@pytest.mark.feature("S10", "C88")
def test_many_updates_stamped_before_what_they_replace_count_as_no_earlier() -> None:
    shard = SowShard(SowSettings(name="orders"))
    for turn, at_ms in enumerate((T, T - 5)):
        batch = [(0, at_ms, b"k%d" % number, b"%d" % turn, [], False) for number in range(LEAST)]
        _, rows = both(encoded(batch, base=turn * LEAST))
        shard.arrive("orders", 0, rows, Step())
    entries = shard.state.entries.values()
    assert {(facts_of(entry).timestamp_ms, payload_of(entry)) for entry in entries} == {(T, b"1")}
