"""What the end of a queue would take along: its deletion, or the idle end of a temporary one."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from lapse.core.lifetime import NEVER
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.reason import Reason
from lapse.core.shard.retirement import Asker
from unit.core.queue.compared.restarts import Restarts
from unit.core.queue.compared.shown import rows

IDLE_MS = 1_000
"""What `Endings.idle` takes for the idle time of a temporary queue."""


class Endings(Restarts):
    """Asks a copy of the shard what its end would do. The shard itself goes on."""

    def end(self, force: bool) -> None:
        """Check the answer to a deletion, and what it would take along. The shard itself goes on.

        A shard that is restored from the log is asked, so the questions and the decision pass through the journal, too.
        """
        self.commit()
        state = restore(self.log.latest().items()).state
        shard, oracle, step = QueueShard(self.settings, state), copy.deepcopy(self.oracle), Step()
        shard.take_over(self.now_ms, step)
        oracle.take_over(self.now_ms)
        shard.advance(self.now_ms, step)
        while shard.next_due_ms() <= self.now_ms:  # a bounded amount at a time; the runtime does the same
            shard.advance(self.now_ms, step)
        oracle.advance(self.now_ms)
        placed = oracle.in_state("available", "leased", "delayed", "transferring")
        there = {m.bookmark: m for m in (*placed, *oracle.scheduled())}
        leased = Counter(m.holder for m in oracle.in_state("leased"))
        step = converse(shard, self.now_ms, lambda step: shard.agreement.delete(Asker("me"), force, self.now_ms, step))
        (verdict,) = step.verdicts
        self.did["deletion"] += bool(there)
        left = sum(map(len, oracle.transfers.values()))
        states = [m.state for m in (*placed, *oracle.scheduled())]
        under_way = {
            "transferring": states.count("transferring") + states.count("early") + left,
            "unconfirmed": states.count("unconfirmed"),
        }
        assert dict(verdict.counts) == {
            **{name: len(oracle.in_state(name)) for name in ("leased", "available", "delayed")},
            "scheduled": sum(m.state == "scheduled" for m in oracle.scheduled()),
            "dying": len(oracle.pending),
            **{name: count for name, count in under_way.items() if count},
            **({"held": states.count("held")} if "held" in states else {}),
        }
        error = "" if verdict.refusal is None else verdict.refusal.text
        unfinished = any(under_way.values())  # not even force takes that along (C77)
        assert bool(error) is (unfinished or (bool(there or oracle.pending) and not force))
        assert ("Unfinished is transfer" in error) is unfinished
        if error:
            assert all(f"{count} by {name} (client) until" in error for name, count in leased.items())
            assert shard.state.ending.retirement is None
            assert not step.removals
            return
        while shard.next_due_ms() <= self.now_ms:
            shard.advance(self.now_ms, step)
        gone = [(bookmark, one.reasons) for one in step.removals for bookmark, *_ in rows(one.messages)]
        assert Counter(bookmark for bookmark, _ in gone) == Counter(there.keys())
        assert all(Reason.PURGED in reasons for _, reasons in gone)
        assert all((Reason.TIME_LIMIT in reasons) is oracle.late(there[b], self.now_ms) for b, reasons in gone)
        assert {one.letter for one in step.removals} <= {bool(self.settings.dead_letter_topic), False}
        assert shard.depth()["depth"] == shard.depth()["scheduled"] == shard.room() == 0
        assert not shard.deliver(self.now_ms, step)

    def idle(self) -> None:
        """Check what a temporary queue would do that nobody uses from now on (Q18, C50, C77).

        A shard that is restored from the log is asked; the shard itself goes on.
        """
        self.commit()
        settings = replace(self.settings, idle_ms=IDLE_MS, configured="temporary")
        shard, oracle, step = (
            QueueShard(settings, restore(self.log.latest().items()).state),
            copy.deepcopy(self.oracle),
            Step(),
        )
        shard.take_over(self.now_ms, step)
        oracle.take_over(self.now_ms)
        shard.advance(self.now_ms, step)
        while min(shard.next_due_ms(), shard.activity.idle_at_ms()) <= self.now_ms:
            shard.advance(self.now_ms, step)
        oracle.advance(self.now_ms)
        shard.note_use(self.now_ms, step)
        waits = oracle.subscribers or oracle.scheduled() or oracle.in_state("delayed", "transferring")
        idle_at_ms = NEVER if waits or any(oracle.transfers.values()) else self.now_ms + IDLE_MS
        self.did["temporary"] += 1
        assert shard.activity.idle_at_ms() == idle_at_ms
        due_ms = oracle.next_due_ms()
        if idle_at_ms == NEVER or (due_ms is not None and due_ms <= idle_at_ms):
            return  # what leaves meanwhile is use
        shard.advance(idle_at_ms - 1, step)
        assert shard.state.ending.retirement is None, "too early"
        step = converse(shard, idle_at_ms, lambda step: shard.advance(idle_at_ms, step))
        assert shard.agreement.retired
        self.did["auto_deleted"] += 1
        while shard.next_due_ms() <= idle_at_ms:
            shard.advance(idle_at_ms, step)
        there = [message.bookmark for message in oracle.in_state("available")]
        gone = [(bookmark, one.reasons) for one in step.removals for bookmark, *_ in rows(one.messages)]
        assert Counter(bookmark for bookmark, _ in gone) == Counter(there)
        assert all(Reason.AUTO_DELETED in reasons for _, reasons in gone)
        assert not any(one.letter for one in step.removals), "only where the queue asks for it"


def converse(shard: QueueShard, now_ms: int, begin: Callable[[Step], object]) -> Step:
    """Begin something on a shard, and pass it the messages that it sends to itself. Return the step of all of it."""
    step = Step()
    begin(step)
    while step.shard_messages:
        shard.agreement.receive(step.shard_messages.pop(0), now_ms, step)
    return step
