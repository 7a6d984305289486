"""Who is subscribed to a queue's shard, since when, and what they hold (Q15, Q3)."""

import pytest

from lapse.core.error_code import ErrorCode
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.step import Step
from lapse.core.shard.answer import CommandAnswer
from lapse.protocol.command import MOST_SUBSCRIPTIONS, Command
from unit.core.queue.world import World

pytestmark = pytest.mark.feature("Q15")


def asked(one: World, row_filter: str | None = None, **fields) -> CommandAnswer:
    step = Step()
    commands = QueueCommands(one.shard, "")
    commands.handle(Command(command="subscriptions", id="c", **fields), one.now_ms, step, row_filter)
    (answer,) = step.answers
    return answer


def listed(one: World, **fields) -> dict[str, tuple[int, int, int]]:
    facts = dict(asked(one, **fields).facts)
    return {each.subscription: (each.since_ms, each.outstanding, each.max_backlog) for each in facts["subscriptions"]}


def test_a_subscription_began_when_it_came_whatever_happens_since() -> None:
    one = World(QueueSettings(name="orders", lease_ms=10_000_000))
    began_ms = one.now_ms
    one.subscribe("first", 2)
    for _ in range(3):
        one.publish("orders")
    one.read("orders")
    one.deliver()
    one.advance(500)
    one.subscribe("second", 1)
    later_ms = one.now_ms
    assert later_ms > began_ms
    assert listed(one) == {"first": (began_ms, 2, 2), "second": (later_ms, 0, 1)}
    one.subscribe("first", 5, text="/n > 1")  # other options
    one.commit()
    one.crash()
    assert listed(one) == {"first": (began_ms, 2, 5), "second": (later_ms, 0, 1)}
    (first, _) = dict(asked(one).facts)["subscriptions"]
    assert (first.client, first.filter) == ("client", "/n > 1")


def test_many_are_told_a_part_at_a_time() -> None:
    one = World(QueueSettings(name="orders"))
    for number in range(MOST_SUBSCRIPTIONS + 1):
        one.subscribe(f"s{number}", 0)
    assert len(listed(one)) == len(listed(one, top_n=1_000)) == MOST_SUBSCRIPTIONS
    assert list(listed(one, skip=MOST_SUBSCRIPTIONS)) == [f"s{MOST_SUBSCRIPTIONS}"]
    assert list(listed(one, skip=1, top_n=1)) == ["s1"]
    assert not listed(one, skip=(1 << 63) - 1), "a command may name any number of 63 bits"
    assert dict(asked(one).counts) == {"subscriptions": MOST_SUBSCRIPTIONS + 1}


@pytest.mark.feature("X4")
def test_who_sees_a_part_of_the_messages_sees_no_list() -> None:
    answer = asked(World(QueueSettings(name="orders")), "/desk = 'A'")
    assert answer.code == ErrorCode.FORBIDDEN


@pytest.mark.feature("X7")
@pytest.mark.parametrize("more", [{"filter": "TRUE"}, {"bookmarks": ("orders:0:1",)}, {"keys": (b"k",)}])
def test_what_the_list_does_not_heed_is_refused(more: dict) -> None:
    assert "takes top_n and skip" in asked(World(QueueSettings(name="orders")), **more).error
