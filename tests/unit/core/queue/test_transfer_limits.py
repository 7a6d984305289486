"""Transfers by who may not see all, and letters of records that were never confirmed."""

from __future__ import annotations

import pytest

from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.protocol import header
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.dead_letter import Death, headers
from unit.core.queue.compared.written import published
from unit.core.queue.two_queues import ON


@pytest.mark.feature("C84", "X7", "L12")
@pytest.mark.parametrize("fault", ["lifetime", "stops the worker"])
def test_the_letter_of_an_unconfirmed_record_says_so_whatever_else_is_wrong_with_it(fault: str) -> None:
    """Redrive leaves such a letter. Without the mark it could deliver the message at both deployments."""
    shard, step = QueueShard(QueueSettings(name="orders", expiration=ON, dead_letter_topic="dlq.orders")), Step()
    record = published(0, timestamp=1_000, transferred=("orders", "t1"), broken=fault == "lifetime")
    if fault == "lifetime":
        shard.arrive("orders", 0, [record], step)
    else:
        shard.set_aside("orders", 0, record, "stopped the worker", step)
    (removal,) = step.removals
    assert ("lapse-ttl-ms" if fault == "lifetime" else "stopped the worker") in removal.detail
    death = Death(
        entity="orders",
        bookmark=Bookmark("orders", 0, 0),
        reasons=removal.reasons,
        expired_at_ms=removal.at_ms,
        detail=removal.detail,
    )
    stated = dict(headers(death, record.headers))
    assert stated[header.UNCONFIRMED_TRANSFER] == b"orders/t1"
    assert removal.detail.encode() == stated[header.DLQ_MESSAGE]


@pytest.mark.feature("C29", "X7")
def test_a_record_for_another_queue_that_stopped_the_worker_is_no_letter_of_this_one() -> None:
    shard, step = QueueShard(QueueSettings(name="orders", dead_letter_topic="dlq.orders")), Step()
    for record in (
        published(0, timestamp=1, transferred=("audit", "t1")),
        published(1, timestamp=1, redriven_for="audit"),
    ):
        shard.set_aside("orders", 0, record, "stopped the worker", step)
    assert not step.removals
    assert shard.arrive("orders", 0, [published(2, timestamp=1)], step)
    assert shard.depth()["available"] == 1
