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
    """The instant that an epoch begins with, ms since the epoch.

    One that is gone on with begins with what its shard had heard of by then. Its journal was written later: the shard
    took in messages meanwhile, and they have earlier instants.
    """
    if epoch.taken_over:
        instants = next((step.instants for step in epoch.steps if "began" in step.instants), {})
        return instants.get("began", epoch.begin.at_ms)
    return next((step.instants["from"] for step in epoch.steps if "from" in step.instants), epoch.begin.at_ms)


def reached_ms(read: Iterable[Any]) -> int:
    """The last tick that was read, ms since the epoch; 0 = none.

    Args:
        read: the commands before the epoch is gone on with.
    """
    return max((record.timestamp for record in read if record.key == TICK_KEY), default=0)


def hear(machine: QueueMachine, read: Iterable[Any], authorizer: CommandAuthorizer | None, taken_over_ms: int) -> None:
    """Know when each subscription was heard last: it does not begin a heartbeat timeout here (Q5).

    Args:
        machine: the shard's; it has begun.
        read: the commands before the epoch is gone on with.
        authorizer: reads them where users are configured, and is not used for anything else; None = there are none.
        taken_over_ms: when the shard was taken over, ms since the epoch: from then on each had one timeout (C5).
    """
    known = {one.id: one for one in machine.shard.subscriptions()}
    heard: dict[str, int] = {}
    for admitted in _admitted(read, authorizer):
        if admitted.command.subscription in known:
            heard[admitted.command.subscription] = admitted.at_ms
    for name, at_ms in heard.items():
        known[name].last_seen_ms = max(at_ms, taken_over_ms)


def _admitted(read: Iterable[Any], authorizer: CommandAuthorizer | None) -> Iterator[Admitted]:
    for record in read:
        if record.key != TICK_KEY and record.value is not None:
            try:
                yield admit_all(record) if authorizer is None else authorizer.read(record)
            except CommandError:
                continue  # it was refused then as well
