"""The end of a temporary SOW topic in the machine, without a broker."""

import orjson
import pytest

from lapse.core.shard.retirement import Cause, ShardMessage, ShardMessageKind
from lapse.runtime.shard.effects import Effects
from lapse.runtime.shard.shard_message import SHARD_MESSAGE_KEY
from lapse.runtime.sow.machine import SowMachine
from lapse.runtime.sow.output import SowOutput
from support.suite.event_loop import finished
from unit.core.sow.make import Arrived, T, shard_of


async def nothing(*_: object) -> None:
    """A log without records."""


async def write(_: object) -> dict[int, object]:
    """A broker that takes all letters."""
    return {}


def finish(running: SowMachine) -> Effects:
    return finished(running.finish(write))  # type: ignore[arg-type]


@pytest.mark.feature("Q18", "C39", "C46")
def test_an_update_that_must_wait_vetoes_the_end_that_an_idle_shard_has_agreed_to() -> None:
    """A shard that merges partitions by time takes in nothing then. The update was lost with the topic."""
    shard = shard_of(idle_ms=300_000, shards=2, partition=1, added_partitions=True)
    running = SowMachine(shard, SowOutput("prices", 1, 1, "dlq.prices", 1), nothing)
    running.take_over(T)
    finish(running)
    ask = ShardMessage(kind=ShardMessageKind.ASK, id=T + 301_000, sender=0, to=1, cause=Cause.IDLE)
    running.command(Arrived(0, T + 301_000, SHARD_MESSAGE_KEY, ask.encode()))
    (check,) = finish(running).after
    running.command(Arrived(1, T + 301_001, SHARD_MESSAGE_KEY, check.value))
    (report,) = finish(running).after
    assert orjson.loads(report.value)["report"]["willing"]
    assert running.merged_by_time
    assert running.room() == 0
    running.note_received("prices", 0)
    (veto,) = finish(running).after
    assert not orjson.loads(veto.value)["report"]["willing"]
