"""Both kinds of shard fulfil one contract, with one vocabulary of steps: one driver drives them, without Kafka."""

from __future__ import annotations

from dataclasses import fields

import pytest

from lapse.core.error_code import ErrorCode
from lapse.core.lifetime import NEVER, Expiration
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step as QueueStep
from lapse.core.reason import Reason
from lapse.core.shard.agreement import GRACE_MS
from lapse.core.shard.contract import Shard, ShardCommands
from lapse.core.shard.event import EventKind
from lapse.core.shard.retirement import Asker
from lapse.core.shard.step import Step
from lapse.core.sow.settings import SowSettings
from lapse.core.sow.shard import SowShard
from lapse.core.sow.step import Step as SowStep
from lapse.protocol.command import Command
from unit.core.sow.make import Arrived, T

LIVES = Expiration(True)


def queue() -> tuple[Shard, type[Step]]:
    settings = QueueSettings(name="prices", expiration=LIVES, dead_letter_topic="dlq.prices")
    return QueueShard(settings, restore([]).state), QueueStep


def sow() -> tuple[Shard, type[Step]]:
    return SowShard(SowSettings(name="prices", expiration=LIVES, dead_letter_reasons=frozenset(Reason))), SowStep


KINDS = [queue, sow]


def driven(shard: Shard, make: type[Step], to_ms: int) -> list[Step]:
    """Let a shard do what is due, as a machine does: its messages to itself are answered in the next step."""
    steps = []
    while shard.is_due(to_ms):
        step = make()
        shard.advance(to_ms, step, 1_000)
        steps.append(step)
        while step.shard_messages:
            (message,) = step.shard_messages
            step = make()
            shard.agreement.receive(message, to_ms, step)
            steps.append(step)
    return steps


def test_steps_differ_only_in_what_the_state_is_made_of() -> None:
    shared = {one.name for one in fields(Step)}
    queues, sows = ({one.name for one in fields(kind)} - shared for kind in (QueueStep, SowStep))
    assert queues == {"changes", "lost"}
    assert sows == {"changes", "state_deletes", "queries", "deletions", "change_bytes"}


@pytest.mark.feature("L1", "L14", "D1", "D3")
@pytest.mark.parametrize("kind", KINDS)
def test_what_expires_is_reported_in_one_vocabulary(kind) -> None:
    shard, make = kind()
    shard.take_over(T, make())
    arrived = make()
    records = [Arrived(at, T, b"k%d" % at, b"{}", [("lapse-ttl-ms", b"50")]) for at in range(3)]
    assert shard.arrive("prices", 0, records, arrived, T) == 3
    assert arrived.changes
    assert not arrived.removals
    assert shard.next_due_ms() <= T + 50
    assert not shard.is_due(T - 1)
    steps = driven(shard, make, T + 50)
    removals = [one for step in steps for one in step.removals]
    assert {one.reasons for one in removals} == {(Reason.TIME_LIMIT,)}
    assert {one.at_ms for one in removals} == {T + 50}
    assert [one for step in steps for one in step.letters] == removals
    assert any(step.changes for step in steps)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_set_aside_gets_a_letter_that_says_why(kind) -> None:
    shard, make = kind()
    step = make()
    shard.set_aside("prices", 0, Arrived(0, T, b"k", b"{}"), "stopped the worker", step)
    (letter,) = step.letters
    assert (letter.reasons, letter.detail) == ((Reason.UNDECODABLE,), "stopped the worker")


@pytest.mark.feature("C27", "D3")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_set_aside_stays_until_its_letter_is_safe(kind) -> None:
    shard, make = kind()
    step = make()
    shard.set_aside("prices", 0, Arrived(0, T, b"k", b"{}"), "stopped the worker", step)
    subject = step.letters[0] if kind is sow else (step.letters[0], 0)
    (letter_key,) = shard.keep_refused_letters([(subject, "too large")], step)
    assert [event.kind for event in step.events] == [EventKind.DYING]
    assert list(shard.state.pending) == [letter_key]
    for _ in range(2):  # the second time it is gone
        step = make()
        shard.letter_written(letter_key, step)
        assert not shard.state.pending
    assert not step.events


@pytest.mark.feature("C1", "X7")
@pytest.mark.parametrize("kind", KINDS)
def test_commands_are_answered_by_one_entry(kind) -> None:
    shard, make = kind()
    commands: ShardCommands = shard.commands if isinstance(shard, SowShard) else QueueCommands(shard, "prices")
    step = make()
    for command in ("depth", "frobnicate"):
        commands.handle(Command(id=command, command=command), T, step)
    known, unknown = step.answers
    assert (known.id, known.error, known.at_ms) == ("depth", "", T)
    assert (unknown.id, unknown.code) == ("frobnicate", ErrorCode.UNKNOWN_COMMAND)


@pytest.mark.feature("C42")
@pytest.mark.parametrize("kind", KINDS)
def test_bookmarks_of_a_replaced_topic_name_its_new_records(kind) -> None:
    shard, make = kind()
    shard.arrive("prices", 0, [Arrived(0, T, b"k", b"{}")], make(), T)
    while not shard.replace_topic("prices", 2, T, make()):
        pass
    step = make()
    assert shard.arrive("prices", 0, [Arrived(0, T + 1, b"k", b"{}")], step, T + 1) == 1
    assert step.changes


@pytest.mark.feature("C4")
@pytest.mark.parametrize("kind", KINDS)
def test_an_end_is_agreed_on_and_reported_alike(kind) -> None:
    shard, make = kind()
    shard.take_over(T, make())
    assert list(shard.subscriptions()) == []
    step = make()
    assert shard.agreement.delete(Asker("d"), False, T, step) is None
    steps = [step]
    for before in steps:  # what it says to itself comes back in a later step, and it says more
        for message in before.shard_messages:
            steps.append(make())
            shard.agreement.receive(message, T, steps[-1])
    (verdict,) = (verdict for step in steps for verdict in step.verdicts)
    assert verdict.refusal is None
    assert EventKind.DELETED in [event.kind for step in steps for event in step.events]
    driven(shard, make, T + GRACE_MS)
    assert shard.agreement.stopped
    assert shard.next_due_ms() == NEVER
