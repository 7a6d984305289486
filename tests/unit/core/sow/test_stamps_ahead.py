"""Records whose timestamps are ahead of the broker's clock, as those of a producer with a wrong clock (C6)."""

from __future__ import annotations

import pytest

from lapse.core.sow.records.record import payload_of
from lapse.core.sow.step import Step
from unit.core.sow.make import Arrived, T, shard_of


@pytest.mark.feature("L5", "L10", "C6")
def test_instants_between_the_clock_and_a_stamp_ahead_of_it_are_still_to_come() -> None:
    shard, step = shard_of(), Step()
    ahead_ms, first_ms, second_ms = T + 3_600_000, T + 1_000, T + 2_000
    stored = Arrived(0, T, b"merged", b'{"a": 1}', [("lapse-expires-at-ms", b"%d" % second_ms)])
    shard.arrive("orders", 0, [stored], step, T)
    records = [
        Arrived(1, ahead_ms, b"scheduled", b"{}", [("lapse-enqueue-at-ms", b"%d" % first_ms)]),
        Arrived(2, ahead_ms, b"living", b"{}", [("lapse-expires-at-ms", b"%d" % second_ms)]),
        Arrived(3, ahead_ms, b"expired", b"{}", [("lapse-expires-at-ms", b"%d" % T)]),
        Arrived(4, ahead_ms, b"merged", b'{"b": 2}', [("lapse-command", b"delta"), ("lapse-ttl-ms", b"1")]),
    ]
    shard.arrive("orders", 0, records, step, T)
    payloads = {name[1:]: payload_of(entry) for name, entry in shard.state.entries.items()}
    assert payloads.pop(b"merged") == b'{"a":1,"b":2}'
    assert payloads == {b"living": b"{}"}
    shard.advance(first_ms, step)
    assert len(shard.state.entries) == 3
    shard.advance(second_ms, step)
    assert sorted(name[1:] for name in shard.state.entries) == [b"merged", b"scheduled"]
    assert {one.at_ms for one in step.events} == {T, second_ms}
    assert shard.state.now_ms == second_ms
