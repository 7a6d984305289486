"""How a SOW topic ends: refused while it holds records, and what becomes of them by force (C4, L11)."""

from __future__ import annotations

import pytest

from lapse.core.lifetime import NEVER
from lapse.core.reason import Reason
from lapse.core.shard.activity import USED
from lapse.core.shard.agreement import GRACE_MS
from lapse.core.shard.event import EventKind
from lapse.core.shard.retirement import (
    LAST_READ,
    RETIREMENT,
    Asker,
    Cause,
    Phase,
    ShardMessage,
    ShardMessageKind,
    Verdict,
)
from lapse.core.sow.settings import SowSettings
from lapse.core.sow.step import Kind, OutOfFocus, StateDelete, Step
from lapse.protocol.command import Command
from unit.core.sow.make import Arrived, Desk, T, shard_of


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
    assert "orders is not empty: 2 records; 1 scheduled" in refused.refusal.text
    assert desk.shard.state.retirement is None
    refused, _ = delete(desk, 100)
    assert "1 records; 1 scheduled" in refused.refusal.text
    done, _ = delete(desk, 1_000)
    assert done.refusal is None
    assert desk.shard.state.retirement.phase is Phase.RETIRED


@pytest.mark.feature("C4", "S7", "L14", "C25", "S10")
def test_by_force_records_leave_as_purged_and_subscribers_see_them_go() -> None:
    reasons = frozenset({Reason.PURGED})
    desk = Desk(shard_of(dead_letter_reasons=reasons))
    desk.put("a", {"n": 1}, 0)
    desk.put("b", {"n": 2}, 0, lapse_enqueue_at_ms=T + 9_000)
    desk.ask("subscribe", 1, subscription="s")
    desk.put("a", {"n": 3}, 2)
    done, step = delete(desk, 3, force=True)
    assert (done.refusal, done.counts["records"], done.counts["scheduled"]) == (None, 1, 1)
    assert [(one.kind, one.key) for one in step.events] == [(EventKind.DELETED, None)]
    step = desk.advance(3)
    end = StateDelete(OutOfFocus.EXPIRED, T + 2)
    assert step.state_deletes == {b"ra": end}, "it is deleted at no copy, however late a copy reads it (S10)"
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


@pytest.mark.feature("C4", "Q23")
def test_the_decision_stays_among_the_last_records_of_the_journal_however_much_leaves() -> None:
    """`lapse apply` looks for it there."""
    desk, written = Desk(shard_of()), list[bytes]()
    for number in range(2 * LAST_READ):
        desk.put(f"k{number}", {"n": number}, 0)
    _, step = delete(desk, 1, force=True)
    while True:
        written += step.changes
        assert RETIREMENT in written[-LAST_READ:]
        if desk.shard.next_due_ms() > T + 1:
            break
        step = desk.advance(1)
    assert len(written) > 2 * LAST_READ


IDLE_MS = 60_000


class Temporary(Desk):
    """A temporary SOW topic's only shard: `at` lets time pass, and its messages to itself arrive."""

    def __init__(self, default_ms: int | None = None, **more: object) -> None:
        super().__init__(shard_of(default_ms, idle_ms=IDLE_MS, configured="1", **more))
        self.step(lambda step: self.shard.take_over(T, step))

    def at(self, at: int) -> Step:
        step = Step()
        while self.shard.next_due_ms() <= T + at:
            self.shard.advance(T + at, step)
            while step.shard_messages:
                self.shard.agreement.receive(step.shard_messages.pop(0), T + at, step)
        return self.keep(step)

    def ends_at(self, at: int) -> None:
        """It does not end before an instant, and does then."""
        self.at(at - 1)
        assert not self.shard.agreement.retired, "too early"
        self.at(at)
        assert self.shard.agreement.retired

    @property
    def phase(self) -> Phase | None:
        retirement = self.shard.state.retirement
        return None if retirement is None else retirement.phase


@pytest.mark.feature("Q18", "Q23", "C25")
@pytest.mark.parametrize("asked", [False, True])
def test_a_temporary_topic_that_nobody_uses_ends_with_its_records(asked: bool) -> None:
    """Records keep nothing: they leave as `auto_deleted`, with letters where those are asked for."""
    desk = Temporary(dead_letter_reasons=frozenset({Reason.AUTO_DELETED}) if asked else frozenset())
    desk.put("a", {"n": 1}, 500)
    assert desk.at(500 + IDLE_MS - 1).events == []
    step = desk.at(500 + IDLE_MS)
    assert [(one.kind, one.key, one.reasons) for one in step.events] == [
        (EventKind.DELETED, None, ()),
        (EventKind.DEAD_LETTERED if asked else EventKind.EXPIRED, b"a", (Reason.AUTO_DELETED,)),
    ]
    assert {one.reason for one in step.state_deletes.values()} == {OutOfFocus.EXPIRED}, "it is deleted at no copy (S10)"
    assert step.events[0].detail == "the SOW topic, idle for 60 s"
    assert [letter.value for letter in step.letters] == ([b'{"n": 1}'] if asked else [])
    assert desk.compacted == {}


@pytest.mark.feature("Q18", "Q23")
def test_updates_commands_and_batches_of_queries_are_use() -> None:
    desk = Temporary()
    desk.put("a", {"n": 1}, 10)
    desk.put("b", {"n": 2}, 20)
    desk.ask("depth", 1_000)
    step = desk.ask("sow", 2_000, batch_size=1)
    desk.pull(step.queries[0], 3_000)
    desk.ask("no such command", 4_000)
    desk.ends_at(4_000 + IDLE_MS)
    other = Temporary()
    query = other.ask("sow", 2_000, batch_size=1).queries[0]
    other.pull(query, 3_000)
    other.ends_at(3_000 + IDLE_MS)


@pytest.mark.feature("Q18", "Q23", "C39")
def test_an_open_subscription_keeps_the_topic_and_its_end_is_use_also_where_it_is_lost() -> None:
    desk = Temporary()
    desk.ask("subscribe", 10, subscription="s", heartbeat_timeout_ms=10 * IDLE_MS)
    desk.at(9 * IDLE_MS)
    assert desk.phase is None
    desk.at(10 + 10 * IDLE_MS)
    assert desk.shard.subscriptions() == []
    desk.ends_at(10 + 11 * IDLE_MS)


@pytest.mark.feature("Q18", "Q23", "C50")
def test_a_scheduled_update_keeps_the_topic_and_its_coming_due_and_every_removal_are_use() -> None:
    desk = Temporary()
    desk.put("a", {"n": 1}, 0, lapse_enqueue_at_ms=T + 5 * IDLE_MS, lapse_ttl_ms=IDLE_MS)
    step = desk.at(6 * IDLE_MS)
    assert [one.kind for one in step.events] == [EventKind.EXPIRED], "it expires in the instant the topic was idle"
    desk.at(6 * IDLE_MS + 61_000 - 2_000)
    desk.ends_at(7 * IDLE_MS)


@pytest.mark.feature("Q18", "Q23")
def test_that_a_tombstone_is_forgotten_is_no_use() -> None:
    desk = Temporary(tombstone_ms=IDLE_MS // 2)
    desk.put("a", {"n": 1}, 0)
    desk.ask("sow_delete", 10, keys=(b"a",))
    desk.ends_at(10 + IDLE_MS)
    assert desk.shard.state.tombstones == {}


@pytest.mark.feature("Q18", "Q23", "Q16", "C39")
def test_use_is_journaled_now_and_then_and_a_restart_never_shortens_the_time() -> None:
    desk = Temporary()
    for at in range(0, 5_000, 100):
        desk.put("a", {"n": at}, at)
    assert desk.journal[USED].startswith(b'{"at_ms": %d' % (T + 4_000))
    desk.crash(5_000)
    desk.at(4_900 + IDLE_MS - 1)
    assert desk.phase is None
    desk.at(4_000 + IDLE_MS + IDLE_MS // 60)
    assert desk.shard.agreement.retired
    again = Temporary()
    settings: SowSettings = shard_of(idle_ms=IDLE_MS, configured="2").settings
    again.crash(30_000, settings)
    again.ends_at(30_000 + IDLE_MS)


@pytest.mark.feature("Q18", "Q23", "C39")
def test_use_of_another_shard_is_a_veto_until_it_is_decided() -> None:
    """The first shard is idle and asks; the second one has agreed, and is used before the decision."""
    second = Desk(shard_of(idle_ms=IDLE_MS, configured="1", shards=2, partition=1))
    second.step(lambda step: second.shard.take_over(T, step))
    ask = ShardMessage(kind=ShardMessageKind.ASK, id=T + IDLE_MS, sender=0, to=1, cause=Cause.IDLE)
    step = Step()
    second.shard.agreement.receive(ask, T + IDLE_MS, step)
    second.shard.agreement.receive(step.shard_messages.pop(), T + IDLE_MS, step)
    assert step.shard_messages.pop().report.willing
    assert second.shard.agreement.frozen
    second.shard.commands.handle(Command(id="d", command="depth"), T + IDLE_MS + 5, step)
    (report,) = step.shard_messages
    assert (report.kind, report.report.willing, report.report.active_ms) == (
        ShardMessageKind.REPORT,
        False,
        T + IDLE_MS + 5,
    )


@pytest.mark.feature("Q18", "Q23", "C88")
def test_an_update_is_use_as_of_the_brokers_clock_whatever_its_producer_stamped() -> None:
    for stamp in (-9 * IDLE_MS, 9 * IDLE_MS):
        desk = Temporary()
        record = Arrived(0, T + stamp, b"a", b"{}")
        desk.step(lambda step, desk=desk, record=record: desk.shard.arrive("t", 0, [record], step, T + 700))
        desk.ends_at(700 + IDLE_MS)


@pytest.mark.feature("Q18")
def test_a_topic_that_is_not_temporary_journals_no_use_and_never_ends() -> None:
    desk = Desk(shard_of())
    desk.put("a", {"n": 1}, 0)
    desk.ask("depth", 10)
    assert USED not in desk.journal
    assert desk.shard.next_due_ms() == NEVER
