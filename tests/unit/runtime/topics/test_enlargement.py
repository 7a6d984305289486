"""A queue gets as many shards as its topics have partitions, or is told why not (C81)."""

import pytest

from unit.runtime.bad_partitions import CASES, Case, enlarged


@pytest.mark.feature("C81", "X7")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_queue_that_cannot_get_shards_reports_why(case: Case) -> None:
    assert case.message


@pytest.mark.feature("C81")
def test_every_topic_of_a_shard_gets_partitions_and_no_other() -> None:
    found = enlarged("orders", orders=4)
    assert (found.shards, found.partitions) == (2, 4)
    own = ("lapse-orders-changelog", "lapse.events.orders", "lapse.orders.commands", "lapse.orders.deliveries")
    assert found.topics == own


@pytest.mark.feature("C81")
def test_what_was_begun_is_finished_and_what_is_done_stays() -> None:
    begun = enlarged("orders", orders=4, **{"lapse.events.orders": 4, "lapse-orders-changelog": 4})
    assert (begun.shards, begun.topics) == (2, ("lapse.orders.commands", "lapse.orders.deliveries"))
    assert begun.rounds == (("lapse.orders.commands",), ("lapse.orders.deliveries",))
    assert not enlarged("orders").topics
    assert "lapse.both.decisions" in enlarged("both", web=6, fax=6, **{"lapse.both.decisions": 2}).topics
