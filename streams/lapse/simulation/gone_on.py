"""What a shard knows in the middle of an epoch, and its journal does not say: what the log said before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lapse.protocol.command import CommandError
from lapse.protocol.tick import TICK_KEY
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.shard.command_authorizer import Admitted, CommandAuthorizer, admit_all
from lapse.simulation.recorded_journal import RecordedEpoch


def began_ms(epoch: RecordedEpoch) -> int:
    """When an epoch began, ms since the epoch: nothing was decided as of an earlier instant.

    One that is gone on with began when its shard was taken over. A command that is still to come may have an instant
    not long after that.
    """
    told = next((step.instants["began"] for step in epoch.steps if "began" in step.instants), None)
    if told is not None:
        return told
    if epoch.taken_over:
        return epoch.begin.at_ms
    return heard_of_ms(epoch) if epoch.taken_over_ms is None else epoch.taken_over_ms


def looked_ms(epoch: RecordedEpoch) -> int:
    """When its owner looked for deliveries that were not written (C55): those whose leases were over do not count.

    It is earlier than the beginning of the epoch, behind which the deliveries that were found are written.
    """
    return next((step.instants["looked"] for step in epoch.steps if "looked" in step.instants), began_ms(epoch))


def heard_of_ms(epoch: RecordedEpoch) -> int:
    """The latest instant that its shard had heard of where an epoch is gone on with, ms since the epoch.

    The journal before was written later: the shard took in messages meanwhile, and they have earlier instants.
    """
    return next((step.instants["from"] for step in epoch.steps if "from" in step.instants), epoch.begin.at_ms)


def reached_ms(read: Iterable[Any]) -> int:
    """The last tick that was read, ms since the epoch; 0 = none.

    Args:
        read: the commands before the epoch is gone on with.
    """
    return max((record.timestamp for record in read if record.key == TICK_KEY), default=0)


def hear(machine: QueueMachine, read: Iterable[Any], authorizer: CommandAuthorizer | None, unheard_ms: int) -> None:
    """Know when each subscription was heard last: it does not begin a heartbeat timeout here (Q5).

    Args:
        machine: the shard's; it has begun.
        read: the commands before the epoch is gone on with.
        authorizer: reads them where users are configured, and is not used for anything else; None = there are none.
        unheard_ms: from when on the others have one timeout, ms since the epoch.
    """
    known = {one.id: one for one in machine.shard.subscriptions()}
    heard: dict[str, int] = {}
    for admitted in _admitted(read, authorizer):
        if admitted.command.subscription in known:
            heard[admitted.command.subscription] = admitted.at_ms
    for name, at_ms in heard.items():
        known[name].last_seen_ms = max(at_ms, known[name].last_seen_ms)
    for name in known.keys() - heard.keys():
        known[name].last_seen_ms = max(unheard_ms, known[name].last_seen_ms)


def _admitted(read: Iterable[Any], authorizer: CommandAuthorizer | None) -> Iterator[Admitted]:
    for record in read:
        if record.key != TICK_KEY and record.value is not None:
            try:
                yield admit_all(record) if authorizer is None else authorizer.read(record)
            except CommandError:
                continue  # it was refused then as well
