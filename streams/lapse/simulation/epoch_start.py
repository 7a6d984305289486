"""Restores what a shard knows within an epoch and its journal does not say, from the log before that point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from lapse.core.broker_offset import STEP_MS
from lapse.core.queue.journal.inherited import inherit
from lapse.protocol.command import CommandError
from lapse.protocol.tick import TICK_KEY
from lapse.runtime.authorization.command_authorizer import Admitted, CommandAuthorizer, admit_all
from lapse.runtime.queue.machine import QueueMachine
from lapse.simulation.recorded_journal import RecordedEpoch


def began_ms(epoch: RecordedEpoch) -> int:
    """Return when an epoch began, ms since the epoch. Nothing was decided as of an earlier instant.

    A replay may begin within an epoch, which began when its shard was taken over. A later command may have an instant
    not long after that.
    """
    began_ms = next((step.instants["began"] for step in epoch.steps if "began" in step.instants), None)
    if began_ms is not None:
        return began_ms
    if epoch.taken_over:
        return epoch.begin.at_ms
    return latest_known_ms(epoch) if epoch.taken_over_ms is None else epoch.taken_over_ms


def unwritten_search_ms(epoch: RecordedEpoch) -> int:
    """Return when the owner looked for deliveries that were not written (C55), without those whose leases were over.

    It is earlier than the beginning of the epoch, behind which the found deliveries are written.
    """
    return next((step.instants["looked"] for step in epoch.steps if "looked" in step.instants), began_ms(epoch))


def latest_known_ms(epoch: RecordedEpoch) -> int:
    """Return the latest instant that the shard knew where the replay begins within an epoch, ms since the epoch.

    The journal before that point was written later. Meanwhile the shard took in messages with earlier instants.
    """
    return next((step.instants["from"] for step in epoch.steps if "from" in step.instants), epoch.begin.at_ms)


def grow(machine: QueueMachine, epoch: RecordedEpoch) -> None:
    """Tell a shard's machine what its worker knew of the queue's other shards, and of added partitions (C81)."""
    topics = Counter(tp.topic for tp in epoch.begin.positions)
    machine.merged_by_time |= any(count > 1 for count in topics.values())
    if epoch.growth is not None:
        for source in machine.shard.state.sources:
            source.first_offset = epoch.growth.begun.get(f"{source.topic}:{source.partition}", 0)
    if epoch.taken_over and epoch.inherited is not None:
        inherit(machine.shard.state, epoch.inherited)


def reached_ms(read: Iterable[Any]) -> int:
    """Return the instant up to which timers act, ms since the epoch; 0 if no tick was read.

    It is that of the latest tick, unless the broker's clock was set back before a later one (C3).

    Args:
        read: the commands before the replay begins.
    """
    reached_ms = 0
    for at_ms in (record.timestamp for record in read if record.key == TICK_KEY):
        reached_ms = at_ms if reached_ms - at_ms > STEP_MS else max(reached_ms, at_ms)
    return reached_ms


def restore_last_seen(
    machine: QueueMachine, read: Iterable[Any], authorizer: CommandAuthorizer | None, unheard_ms: int
) -> None:
    """Set when each subscription was last heard, because its heartbeat timeout does not begin anew here (Q5).

    Args:
        machine: the shard's machine, which has begun.
        read: the commands before the replay begins.
        authorizer: an authorizer for these commands only, if users are configured; None otherwise.
        unheard_ms: when the timeout of the other subscriptions begins, ms since the epoch.
    """
    known = {one.id: one for one in machine.shard.subscriptions() if not one.lost}
    heard: dict[str, int] = {}
    for admitted in _admitted(read, authorizer):
        if admitted.command.subscription in known:
            heard[admitted.command.subscription] = admitted.at_ms
    for name, at_ms in heard.items():
        machine.shard.state.subscription_table.note_heard(known[name], at_ms)
    for name in known.keys() - heard.keys():
        machine.shard.state.subscription_table.note_heard(known[name], unheard_ms)


def _admitted(read: Iterable[Any], authorizer: CommandAuthorizer | None) -> Iterator[Admitted]:
    for record in read:
        if record.key != TICK_KEY and record.value is not None:
            try:
                yield admit_all(record) if authorizer is None else authorizer.read(record)
            except CommandError:
                continue  # it was refused in the recording as well
