"""Settlements, purges and peeks by filter, by name (Q8, Q15, C37).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.queue.command import QueueCommands
from lapse.core.queue.settings import Leasing
from lapse.core.queue.step import Step
from lapse.protocol.command import Command
from unit.core.queue.order.bodies import ONCE, got, publish, world

pytestmark = pytest.mark.usefixtures("each_room")


@pytest.mark.feature("Q8", "C14")
def test_a_filter_covers_unleased_messages_and_under_strict_ones_own_leases_only() -> None:
    for leasing, results in (
        (Leasing.SUBLET, ["settled"] * 3),
        (Leasing.STRICT, ["settled", "not_holder", "not_leased"]),
    ):
        one = world({"f": 1}, {"f": 1}, {"f": 0}, {"f": 1}, leasing=leasing)
        one.subscribe("inky")
        one.subscribe("blinky")
        one.deliver()
        assert one.settle_by_filter("acknowledge", "inky", "/f = 1") == results


@pytest.mark.feature("Q6", "Q8", "C18")
@pytest.mark.parametrize("action", ["acknowledge", "cancel", "expire"])
def test_a_filter_frees_the_places_of_what_was_sent_at_most_once(action: str) -> None:
    one = world({"f": 1}, {"f": 0}, {"f": 1}, **ONCE)
    one.subscribe("inky", 2)
    one.deliver()
    assert one.settle_by_filter(action, "inky", "/f > 0")[0] == "settled"
    assert one.shard.depth()["depth"] == (1 if action == "cancel" else 0), "a cancel spares what was not sent"
    publish(one, {"f": 2})
    assert len(got(one.deliver(), "inky")) == 1, "one place was free"


@pytest.mark.feature("Q8", "C18", "X4")
def test_under_a_row_filter_a_filter_frees_only_the_places_of_its_user() -> None:
    one = world({"f": 1}, {"f": 1}, **ONCE)
    one.subscribe("inky", 1)
    one.subscribe("blinky", 1)
    one.deliver()
    commands = QueueCommands(one.shard, "")
    for sender, settled in (("stranger", 0), ("inky", 1), ("inky", 0), ("blinky", 1)):
        step = Step()
        with one.selection("/f = 1"):
            command = Command(command="acknowledge", id="c", subscription=sender, filter="/f = 1")
            commands.handle(command, one.now_ms, step, "/f > 0")
        (answer,) = step.answers
        assert dict(answer.counts) == {"settled": settled, "skipped": 0}


@pytest.mark.feature("Q8", "C16")
def test_a_filter_names_no_scheduled_message() -> None:
    one = world({"f": 1})
    publish(one, {"f": 1}, enqueue_at_ms=5_000)
    assert one.settle_by_filter("acknowledge", "inky", "/f = 1") == ["settled"]
    assert one.shard.depth()["scheduled"] == 1


@pytest.mark.feature("C37")
def test_purge_by_filter_leaves_the_rest_and_what_is_leased() -> None:
    one = world({"f": 1}, {"f": 0}, {"f": 1}, {"f": 1})
    one.subscribe("inky")
    one.deliver()
    assert one.purge(text="/f = 1") == (2, 1)
    assert one.purge(leased=True, text="/f = 1") == (1, 0)
    assert one.peek() == [("orders", 0, 1)]


@pytest.mark.feature("Q15")
def test_peek_by_filter_shows_leased_ones_too_and_takes_no_lease() -> None:
    one = world({"f": 1}, {"f": 0}, {"f": 1}, {"f": 2})
    one.subscribe("inky")
    one.deliver()
    assert [offset for _, _, offset in one.peek("/f > 0", skip=1, limit=2)] == [2, 3]
    assert [offset for _, _, offset in one.peek("/f > 0")] == [0, 2, 3]
