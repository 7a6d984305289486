"""Who is subscribed to a queue's shard, since when, and what they hold (Q15, Q3)."""

import pytest

from lapse.core.error_code import ErrorCode
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.settings import QueueSettings, Semantics
from lapse.core.queue.settlement.settlement import Claim
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


def test_many_are_reported_a_part_at_a_time() -> None:
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


def hanging(one: World) -> int:
    """How many messages are held by who hangs; the listing names the same subscriptions."""
    count = one.shard.held_up(one.now_ms).get("hanging", 0)
    named = [each for each in dict(asked(one).facts)["subscriptions"] if each.hangs_since_ms]
    assert count == sum(each.outstanding for each in named)
    return count


def with_messages(count: int, **settings) -> World:
    one = World(QueueSettings(name="orders", lease_ms=1_000, **settings))
    for _ in range(count):
        one.publish("orders")
    one.read("orders")
    return one


def test_who_lets_leases_end_and_settles_nothing_hangs() -> None:
    one = with_messages(6)
    one.subscribe("hung", 2)
    one.deliver()
    one.advance(1_001)
    one.deliver()
    assert not hanging(one), "one lease may end for many reasons"
    first_end_ms = one.now_ms
    one.advance(1_001)
    one.deliver()
    assert hanging(one) == 2
    (listed_one,) = dict(asked(one).facts)["subscriptions"]
    assert listed_one.hangs_since_ms == first_end_ms
    one.subscribe("hung", 3)  # other options change nothing about it
    assert hanging(one) == 2
    one.settle("acknowledge", "hung", Claim("orders", 0, 0, 0))
    assert not hanging(one), "it settles again"


def test_who_is_slow_and_settles_or_renews_does_not_hang() -> None:
    one = with_messages(40)
    one.subscribe("slow", 8)
    one.subscribe("renewing", 4)
    one.deliver()
    for _ in range(12):  # the leases of what was prefetched end all the time
        one.advance(700)
        one.deliver()
        for name, action in (("slow", "acknowledge"), ("renewing", "renew")):
            first = next(each for each in one.shard.peek(0, 100) if each.subscription == name)
            assert one.settle(action, name, Claim("orders", 0, first.offset, first.offset)) == ["settled"]
        assert not hanging(one)


def test_leases_that_end_far_apart_have_nothing_to_do_with_each_other() -> None:
    one = with_messages(0)
    one.subscribe("mostly idle", 1)
    for _ in range(3):
        one.publish("orders")
        one.read("orders")
        one.deliver()
        one.advance(1_001)  # its lease ends
        one.purge()
        one.advance(10_000)
        assert not hanging(one)


def test_a_place_in_the_backlog_that_travels_between_shards_hides_nobody() -> None:
    """Each shard sees an end of a lease only when the place comes round again."""
    one = with_messages(6)
    ends = []
    for _ in range(3):
        one.subscribe("hung", 1)
        one.deliver()
        assert hanging(one) == (len(ends) == 2)
        one.subscribe("hung", 0)  # its client takes the place to another shard once the lease has ended
        one.advance(1_001)
        ends.append(one.now_ms)
        one.advance(8_000)
        assert not hanging(one), "it holds nothing here"
    one.subscribe("hung", 1)
    one.deliver()
    (listed_one,) = dict(asked(one).facts)["subscriptions"]
    assert listed_one.hangs_since_ms == ends[0]
    (held,) = [each for each in one.shard.peek(0, 100) if each.subscription == "hung"]
    one.settle("acknowledge", "hung", Claim("orders", 0, held.offset, held.offset))
    one.deliver()
    assert not hanging(one)


def test_at_most_once_who_settles_nothing_for_two_lease_periods_hangs() -> None:
    one = with_messages(9, semantics=Semantics.AT_MOST_ONCE)
    one.subscribe("hung", 2)
    one.advance(50_000)
    one.deliver()
    one.advance(1_999)
    assert not hanging(one), "it was idle before"
    one.advance(1)
    assert hanging(one) == 2
    (listed_one,) = dict(asked(one).facts)["subscriptions"]
    assert listed_one.hangs_since_ms == one.now_ms - 2_000
    one.subscribe("hung", 3)  # other options change nothing about it
    assert hanging(one) == 2
    one.settle("acknowledge", "hung", Claim("orders", 0, 0, 0))
    one.deliver()
    assert not hanging(one), "it settles again"
    one.advance(1_999)
    assert not hanging(one), "a slow one"
    one.advance(1)
    assert hanging(one) == 3
    one.commit()
    one.crash()
    assert not hanging(one), "a new owner looks anew"
    one.settle("acknowledge", "hung", Claim("orders", 0, 1, 8))
    one.advance(9_000)
    assert not hanging(one), "it has nothing to settle"
