"""Records of producers whose clocks are ahead of the broker's, or behind it (C6)."""

from __future__ import annotations

import pytest

from lapse.core.shard.event import EventKind
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


@pytest.mark.feature("X6", "C43", "C6")
@pytest.mark.parametrize("wrong_ms", [-3_600_000, 3_600_000])
def test_a_producer_with_a_wrong_clock_makes_no_id_of_others_outdated(wrong_ms: int) -> None:
    shard, step = shard_of(dedup_window_ms=1_000), Step()
    arrivals = [(0, 0, None), (wrong_ms, 0, "wrong"), (0, 0, "right"), (wrong_ms, 0, "wrong as well"), (1, 1, None)]
    arrivals += [(999, 999, "right"), (wrong_ms + 9, 999, "wrong")]
    for offset, (stamp_ms, clock_ms, name) in enumerate(arrivals):
        headers = [] if name is None else [("lapse-message-id", name.encode())]
        shard.arrive("orders", 0, [Arrived(offset, T + stamp_ms, b"k", b"{}", headers)], step, T + clock_ms)
    repeats = [one.messages.bookmark.offset for one in step.events if one.kind is EventKind.REPEATED]
    assert repeats == [5, 6]
    for offset, at_ms in ((7, T + 1_000), (8, T + 2_000), (9, T + 3_000)):
        shard.arrive("orders", 0, [Arrived(offset, at_ms, b"k", b"{}")], step, at_ms)
    assert not shard.state.repeats.chunks, "nor does it keep them"
