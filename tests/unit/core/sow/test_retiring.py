"""How a SOW topic ends: refused while it holds records, and what becomes of them by force (C4, L11)."""

from __future__ import annotations

import pytest

from lapse.core.lifetime import NEVER
from lapse.core.reason import Reason
from lapse.core.shard.agreement import GRACE_MS
from lapse.core.shard.event import EventKind
from lapse.core.shard.retirement import Asker, Phase, Verdict
from lapse.core.sow.step import Kind, OutOfFocus, Step
from unit.core.sow.make import Desk, T, shard_of


def delete(desk: Desk, at: int, force: bool = False) -> tuple[Verdict, Step]:
    """Ask a desk's only shard, and hear it out."""
    step = Step()
    desk.shard.advance(T + at, step)
    assert desk.shard.agreement.delete(Asker("me"), force, T + at, step) is None
    while step.shard_messages:
        desk.shard.agreement.receive(step.shard_messages.pop(0), T + at, step)
    (verdict,) = step.verdicts
    return verdict, desk.keep(step)


@pytest.mark.feature("C4", "L11", "L10")
def test_records_and_scheduled_updates_stand_in_the_way_and_expired_ones_do_not() -> None:
    desk = Desk(shard_of(100))
    desk.put("a", {"n": 1}, 0)
    desk.put("b", {"n": 2}, 0, lapse_ttl_ms=1_000)
    desk.put("c", {"n": 3}, 0, lapse_enqueue_at_ms=T + 500, lapse_ttl_ms=100)
    refused, _ = delete(desk, 50)
    assert "orders is not empty: 2 records; 1 scheduled" in refused.error
    assert desk.shard.state.retirement is None
    refused, _ = delete(desk, 100)
    assert "1 records; 1 scheduled" in refused.error
    done, _ = delete(desk, 1_000)
    assert done.error == ""
    assert desk.shard.state.retirement.phase is Phase.RETIRED


@pytest.mark.feature("C4", "S7", "L14", "C25")
def test_by_force_records_leave_as_purged_and_subscribers_see_them_go() -> None:
    reasons = frozenset({Reason.PURGED})
    desk = Desk(shard_of(dead_letter_reasons=reasons))
    desk.put("a", {"n": 1}, 0)
    desk.put("b", {"n": 2}, 0, lapse_enqueue_at_ms=T + 9_000)
    desk.ask("subscribe", 1, subscription="s")
    desk.put("a", {"n": 3}, 2)
    done, step = delete(desk, 3, force=True)
    assert (done.error, done.counts["records"], done.counts["scheduled"]) == ("", 1, 1)
    assert [(one.kind, one.key) for one in step.events] == [(EventKind.DELETED, None)]
    step = desk.advance(3)
    assert {(one.kind, one.key, one.reasons) for one in step.events} == {
        (EventKind.DEAD_LETTERED, b"a", (Reason.PURGED,)),
        (EventKind.DEAD_LETTERED, b"b", (Reason.PURGED,)),
    }
    assert sorted(letter.value for letter in step.letters) == [b'{"n": 2}', b'{"n": 3}']
    assert [(one.kind, one.key, one.reason) for one in step.deliveries] == [
        (Kind.OUT_OF_FOCUS, b"a", OutOfFocus.DELETED)
    ]
    assert desk.compacted == {}


@pytest.mark.feature("C4", "Q16")
def test_the_decision_survives_and_what_was_left_leaves_after_a_crash() -> None:
    desk = Desk(shard_of())
    for number in range(3):
        desk.put(f"k{number}", {"n": number}, 0)
    delete(desk, 1, force=True)
    desk.crash(10)
    assert desk.shard.agreement.retired
    step = desk.advance(10)
    assert [one.reasons for one in step.events] == [(Reason.PURGED,)] * 3
    desk.advance(1 + GRACE_MS)
    assert desk.shard.agreement.stopped
    assert desk.shard.next_due_ms() == NEVER
    assert [name for name in desk.journal if name[:1] in b"rsg"] == []
