"""Who is subscribed to a SOW topic's shard, and since when (Q15, S6)."""

import pytest

from lapse.core.error_code import ErrorCode
from unit.core.sow.make import Desk, T, shard_of

pytestmark = pytest.mark.feature("Q15")


def listed(desk: Desk, at: int) -> dict[str, tuple[int, str]]:
    (answer,) = desk.ask("subscriptions", at).answers
    assert dict(answer.counts) == {"subscriptions": len(dict(answer.facts)["subscriptions"])}
    return {one.subscription: (one.since_ms - T, one.filter) for one in dict(answer.facts)["subscriptions"]}


def test_a_subscription_began_when_it_came_whatever_happens_since() -> None:
    desk = Desk(shard_of())
    desk.ask("subscribe", 5, subscription="screen", client="me")
    desk.answer(desk.ask("sow_and_subscribe", 9, subscription="table", filter="/n > 1", row_filter="/desk = 'A'"), 9)
    desk.ask("subscribe", 20, subscription="screen", filter="/n > 2")
    desk.crash(30)
    assert listed(desk, 40) == {"screen": (5, "/n > 2"), "table": (9, "(/n > 1) AND (/desk = 'A')")}
    desk.ask("unsubscribe", 50, subscription="screen")
    desk.ask("subscribe", 60, subscription="screen")
    assert listed(desk, 70)["screen"] == (60, "")


@pytest.mark.feature("X4")
def test_who_sees_a_part_of_the_records_sees_no_list() -> None:
    (answer,) = Desk(shard_of()).ask("subscriptions", 1, row_filter="/n = 1").answers
    assert answer.code == ErrorCode.FORBIDDEN
    assert Desk(shard_of()).ask("subscriptions", 1, answer="none", row_filter="/n = 1").answers == []
