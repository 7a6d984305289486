"""The figures of a queue's answers are those that docs/protocol.md lists (X2)."""

import re
from pathlib import Path

import pytest

from lapse.core.expression import compile_filter
from lapse.core.queue.arrival.trait import TraitReader
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.step import Step
from lapse.core.shard.retirement import Asker
from lapse.protocol.command import Command
from unit.core.queue.compared.endings import converse
from unit.core.queue.expected.message import FILTERS
from unit.core.queue.world import World

pytestmark = pytest.mark.feature("X2")

PAGE = (Path(__file__).parents[4] / "docs/protocol.md").read_text("utf-8")
TEXT = next(text for text in FILTERS if text)


def listed(first_cell: str) -> set[str]:
    """What is in backticks in a row of the page's table of counts."""
    table = PAGE.split("\n### Counts\n")[1].split("\n## ")[0]
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {first_cell} | ")]
    return set(re.findall(r"`(\w+)`", line.removeprefix(f"| {first_cell} | ")))


@pytest.fixture
def world() -> World:
    """A shard with a message in each state, one of which a barrier waits for."""
    barrier = TraitReader(priority=None, barrier=compile_filter("/b = 'yes'"), group=None)
    one = World(QueueSettings(name="orders", lease_ms=100_000, max_cancels=0, traits=barrier, dead_letter_topic="dlq"))
    one.subscribe("inky", 2)
    one.publish("orders")
    one.publish("orders", body={"b": "yes"})
    one.publish("orders", enqueue_at_ms=one.now_ms + 1_000)
    one.publish("orders", transferred=("orders", "to"))
    one.read("orders")
    one.deliver()
    return one


def counts(one: World, command: str, text: str | None = None) -> dict[str, int | None]:
    """The figures of a shard's answer."""
    step, commands = Step(), QueueCommands(one.shard, "")
    with one.selection(text or ""):
        commands.handle(Command(command=command, id="c", filter=text), one.now_ms, step, None)
    (answer,) = step.answers
    assert not answer.error
    return dict(answer.counts)


def test_those_of_a_depth(world: World) -> None:
    there, named = counts(world, "depth").keys(), listed("`depth` of a queue")
    assert named - {"filter"} == there, "also if they are 0, as programs that read JSON expect"


def test_those_of_a_depth_by_filter(world: World) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| `depth` of a queue | "))
    said = row.split("only the first five and ")[1]
    first_five = {"available", "leased", "delayed", "transferring", "depth"}
    assert counts(world, "depth", TEXT).keys() == first_five | set(re.findall(r"`(\w+)`", said))


def test_those_of_a_purge(world: World) -> None:
    there, named = counts(world, "purge").keys(), listed("`purge`")
    assert there == named


def test_those_of_a_deletion(world: World) -> None:
    agreement = world.shard.agreement
    (verdict,) = converse(
        world.shard, world.now_ms, lambda step: agreement.delete(Asker("me"), False, world.now_ms, step)
    ).verdicts
    assert dict(verdict.counts).keys() <= listed("`delete`")
