"""Messages that Kafka removed before they were read leave as the table of a message's life says."""

from __future__ import annotations

import pytest

from lapse.core.queue.life.message_state import State
from lapse.core.queue.life.table import Trigger, route
from lapse.protocol.event import decode
from lapse.runtime.queue.output import QueueOutput


@pytest.mark.feature("C80", "L14", "D4")
def test_what_was_never_read_is_reported_as_its_row_says() -> None:
    row = route(Trigger.TRUNCATE).row(State.UNREAD)
    (record,) = QueueOutput("orders", 0, 1, "dlq.orders", 1).report_unread("orders-in", 0, [(1, 9)], 1_000)
    event = decode(record.value)
    assert row.to is State.GONE
    assert (event.event, event.reasons, event.dead_letter_topic) == (row.emits, (row.reason,), "")
    assert [(one.first, one.last) for one in event.messages] == [(1, 9)]
