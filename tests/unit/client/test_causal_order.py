"""The order of a life's moments within one millisecond."""

from typing import Any

import pytest

from lapse.core.generation import position_of
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.event import EventKind
from lapse_client.reading.causal_order import in_causal_order
from lapse_client.reading.moment import ARRIVED, DEAD_LETTER, DELIVERED, Moment

pytestmark = pytest.mark.feature("D6")

FIRST, SECOND = Bookmark("orders", 0, 1), Bookmark("target", 0, 7)


def moment(what: str, count: int | None = None, message: Bookmark = FIRST, at_ms: int = 5, **facts: Any) -> Moment:
    if count is not None:
        facts["delivery_count"] = count
    return Moment(at_ms=at_ms, entity="orders", what=what, facts=facts, shown_by=message, message=message)


def kinds_and_counts(found: list[Moment]) -> list[tuple[str, int | None]]:
    return [(one.what, one.facts.get("delivery_count")) for one in found]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([("acknowledged", 1)], [(DELIVERED, 1), ("acknowledged", 1)], id="acknowledged"),
        pytest.param([("acknowledged", None)], [(DELIVERED, 1), ("acknowledged", None)], id="an event about many"),
        pytest.param([("scheduled", None)], [("scheduled", None), (DELIVERED, 1)], id="scheduled"),
        pytest.param(
            [("delivered_at_most_once", 1)], [("delivered_at_most_once", 1), (DELIVERED, 1)], id="removed before (Q6)"
        ),
        pytest.param(
            [("rewound", None), ("renewed", 1), ("dead_lettered", 1)],
            [("rewound", None), (DELIVERED, 1), ("renewed", 1), ("dead_lettered", 1)],
            id="dead",
        ),
    ],
)
def test_a_delivery_stands_before_what_became_of_it_and_behind_what_led_to_it(
    events: list[tuple[str, int | None]], expected: list[tuple[str, int | None]]
) -> None:
    found = [*(moment(what, count) for what, count in events), moment(DELIVERED, 1)]
    assert kinds_and_counts(in_causal_order(found)) == expected


@pytest.mark.parametrize("counted", [True, False])
def test_deliveries_and_returns_alternate_with_and_without_counts_in_the_events(counted: bool) -> None:
    kinds = (EventKind.CANCELLED, EventKind.LEASE_RETURNED, EventKind.ACKNOWLEDGED)
    events = [moment(kind, number if counted else None) for number, kind in enumerate(kinds, 1)]
    letter, arrival = moment(DEAD_LETTER), moment(ARRIVED)
    found = in_causal_order([letter, *events, *(moment(DELIVERED, number) for number in (1, 2, 3)), arrival])
    expected = [DELIVERED, "cancelled", DELIVERED, "lease_returned", DELIVERED, "acknowledged"]
    assert [one.what for one in found] == [ARRIVED, *expected, DEAD_LETTER]


@pytest.mark.feature("S7")
def test_a_subscriber_of_a_sow_topic_sees_the_record_before_it_expires_and_that_it_left_afterwards() -> None:
    found = [moment("expired"), moment(DELIVERED, kind="publish"), moment(DELIVERED, kind="oof")]
    assert [one.facts.get("kind") for one in in_causal_order(found)] == ["publish", None, "oof"]


@pytest.mark.feature("C59", "C61")
def test_a_message_lives_before_the_record_as_which_it_continues() -> None:
    again = FIRST._replace(offset=position_of(FIRST.offset, 1))
    assert again.log_offset == FIRST.log_offset
    facts: dict[str, Any] = {"from": str(FIRST), "to": str(SECOND)}
    step = moment("redriven", **facts)
    expected = [moment(ARRIVED), moment("dead_lettered"), moment(DEAD_LETTER), step]
    expected += [moment("rewound", message=again), moment(ARRIVED, message=SECOND), moment("held", message=SECOND)]
    assert in_causal_order(expected[::-1], [(FIRST, SECOND)]) == expected
    assert in_causal_order([moment("held", at_ms=6), moment(ARRIVED)])[0].what == ARRIVED
    circle = [(FIRST, SECOND), (SECOND, FIRST)]
    assert len(in_causal_order(expected, circle)) == len(expected)
