"""Transactions where they meet another feature: `transaction` in the rows of `tests/interactions.toml` (X9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lapse.protocol.command import Command
from lapse.testing import Lapse
from lapse_client import Delivery, QueueSubscriber, Retry, TransactionFailed
from lapse_client.letters.redrive import Choice, Target, plan
from unit.testing.test_transaction import received, ship, values

pytestmark = pytest.mark.feature("X9", "X8")


@pytest.fixture
def shop(lapse: Lapse) -> Lapse:
    lapse.topic("shipments")
    return lapse


def publish(lapse: Lapse, *some: object, to: str = "orders", **options: Any) -> None:
    with lapse.publisher() as publisher:
        for value in some:
            publisher.publish(to, str(value).encode(), **options)
    lapse.settle()


def dropped(delivery: Delivery, after: float = 0) -> None:
    """A transaction that ends with an exception."""
    with delivery.transaction() as tx:
        tx.produce("shipments", b"never")
        raise Retry(after=after)


def is_too_late(delivery: Delivery) -> None:
    with pytest.raises(TransactionFailed):
        ship(delivery)


def in_turn(subscriber: QueueSubscriber, count: int) -> list[bytes | None]:
    """Work on so many messages, one after the other."""
    found: list[bytes | None] = []
    for _ in range(count):
        delivery = received(subscriber)
        found.append(delivery.value)
        assert not ship(delivery)
    return found


def ship_and_die(lapse: Lapse, subscriber: QueueSubscriber) -> bool:
    """Commit for a message, and be killed before it is acknowledged."""
    held = received(subscriber)
    work = subscriber.subscription.settler.work
    assert work is not None
    work._acknowledge = lambda deliveries: None  # type: ignore[method-assign]
    repeated = ship(held)
    lapse.lose(subscriber)
    lapse.clock.advance(60)
    return repeated


@pytest.mark.feature("Q10", "L11", "C22")
def test_a_lease_protects_its_transaction_from_the_deadline(shop: Lapse) -> None:
    shop.queue("orders", expiration="enabled", lease_period="30s")
    publish(shop, "in time", "too late", ttl_ms=5_000)
    with shop.subscriber("orders", 2) as subscriber:
        first, second = received(subscriber), received(subscriber)
        shop.clock.advance(20)
        assert not ship(first), "past its deadline, and leased"
        shop.clock.advance(11)
        is_too_late(second)
    assert [letter.value for letter in shop.dead_letters("orders")] == [b"too late"]
    assert values(shop, "shipments") == [b"in time"]


@pytest.mark.feature("L5", "C11")
def test_an_output_may_be_scheduled_and_its_message_is_done(shop: Lapse) -> None:
    shop.queue("orders")
    shop.queue("later")
    publish(shop, "due", enqueue_at_ms=shop.clock.now_ms + 1_000)
    with shop.subscriber("orders") as subscriber, shop.subscriber("later") as other:
        shop.clock.advance(2)
        with received(subscriber).transaction() as tx:
            tx.produce("later", b"on", enqueue_at_ms=shop.clock.now_ms + 60_000)
        assert shop.depth("orders") == 0
        assert other.receive(1) is None
        shop.clock.advance(61)
        assert not ship(received(other))


@pytest.mark.feature("C19", "Q24", "Q9", "C22")
def test_a_transaction_that_is_dropped_is_a_cancel_with_its_delay_and_its_limit(shop: Lapse) -> None:
    shop.queue("orders", max_cancels=1, max_deliveries=9)
    publish(shop, "a")
    with shop.subscriber("orders") as subscriber:
        dropped(received(subscriber), after=30)
        assert subscriber.receive(1) is None
        shop.clock.advance(31)
        again = received(subscriber)
        assert again.delivery_count == 2
        dropped(again)
        assert subscriber.receive(1) is None
    (letter,) = shop.dead_letters("orders")
    assert letter.reasons == ("max_cancels",)
    assert values(shop, "shipments") == []


@pytest.mark.feature("Q18", "C39")
def test_a_temporary_queue_takes_its_decisions_along(shop: Lapse) -> None:
    shop.queue("orders", auto_delete_on_idle="5m", lease_period="1h")
    publish(shop, "a")
    with shop.subscriber("orders", heartbeat_timeout_ms=3_600_000) as subscriber:
        held = received(subscriber)
        shop.clock.advance(600)
        assert not ship(held), "somebody works, so it is not idle"
    assert "lapse.orders.decisions" in shop.connection.partitions()
    shop.clock.advance(310)
    assert "lapse.orders.decisions" not in shop.connection.partitions()


@pytest.mark.feature("Q13", "C12")
def test_a_commit_makes_room_and_what_is_dropped_keeps_its_place(shop: Lapse) -> None:
    shop.queue("orders", target_queue_depth=1)
    publish(shop, *"abc")
    with shop.subscriber("orders", 3) as subscriber:
        dropped(received(subscriber))
        assert in_turn(subscriber, 3) == [b"a", b"b", b"c"]


@pytest.mark.feature("Q12", "C34", "Q11", "Q17", "Q20", "C19", "C32")
@pytest.mark.parametrize(
    ("settings", "published", "order"),
    [
        ({"priority": "/p"}, ['{"p": 1}', '{"p": 2}'], [1, 1, 0]),
        ({"group_by": "/g"}, ['{"g": 1, "n": 1}', '{"g": 1, "n": 2}'], [0, 0, 1]),
        ({"ordering": "total"}, ["a", "b"], [0, 0, 1]),
        ({"ordering": "total", "barrier": "/b = 1"}, ['{"b": 0}', '{"b": 1}', '{"b": 0, "n": 2}'], [0, 0, 1, 2]),
    ],
    ids=["priority", "group", "total order", "barrier"],
)
def test_what_is_dropped_comes_again_in_its_place(
    shop: Lapse, settings: dict[str, Any], published: Sequence[str], order: Sequence[int]
) -> None:
    """So nothing behind it in its group, and nothing behind the barrier that waits for it, comes earlier."""
    shop.queue("orders", **settings)
    publish(shop, *published)
    got: list[bytes | None] = []
    with shop.subscriber("orders", 1) as subscriber:
        for _ in order:
            delivery = received(subscriber)
            got.append(delivery.value)
            if delivery.is_barrier:
                continue
            if len(got) == 1:
                dropped(delivery)
            else:
                assert not ship(delivery)
        assert subscriber.receive(1) is None
    assert got == [published[at].encode() for at in order]
    assert len(values(shop, "shipments")) == len([one for one in published if '"b": 1' not in one])


@pytest.mark.feature("Q7", "C49", "Q14", "X1")
def test_what_is_dropped_goes_to_another_whose_filter_takes_it(shop: Lapse) -> None:
    shop.queue("orders", fairness="round-robin")
    with shop.subscriber("orders", filter="/f = 1") as some, shop.subscriber("orders", filter="/f > 5"):
        publish(shop, '{"f": 1}')
        dropped(received(some))
        again = received(some)
        assert again.delivery_count == 2, "nobody else takes it"
        with shop.subscriber("orders") as other:
            dropped(again)
            assert some.receive(1) is None
            assert not ship(received(other))


@pytest.mark.feature("Q21", "C21", "C37", "Q16", "D4")
@pytest.mark.parametrize("state", ["memory", "disk"])
def test_what_is_held_is_committed_while_the_queue_is_paused_and_not_after_a_purge(shop: Lapse, state: str) -> None:
    shop.queue("orders", state=state)
    publish(shop, *"abc")
    payload = "reference" if state == "disk" else "inline"
    with shop.subscriber("orders", 2, payload=payload) as subscriber, shop.queue_client("orders") as queue:
        first, second = received(subscriber), received(subscriber)
        queue.pause()
        assert not ship(first)
        assert queue.purge()["removed"] == 1, "what is leased stays"
        assert queue.purge(leased=True)["removed"] == 1
        is_too_late(second)
        queue.resume()
    assert values(shop, "shipments") == [b"a"]


@pytest.mark.feature("Q21", "C38", "X6", "C43")
def test_an_output_is_forwarded_once_it_is_committed_and_its_id_holds(shop: Lapse) -> None:
    shop.queue("orders")
    shop.queue("onward", forward_to="arrived")
    shop.queue("arrived")
    publish(shop, *"abc")
    with shop.subscriber("orders", 3) as subscriber:
        for _ in range(2):
            with received(subscriber).transaction() as tx:
                tx.produce("onward", b"once", message_id="one")
        with received(subscriber).transaction() as tx:
            tx.produce("onward", b"never")
            raise Retry(after=60)
    shop.settle()
    assert shop.depth("onward") == 0
    assert values(shop, "arrived") == [b"once"]


@pytest.mark.feature("Q17", "C77")
def test_what_was_handed_over_meanwhile_fails_its_transaction(shop: Lapse) -> None:
    shop.queue("orders", lease_period="30s", heartbeat_timeout="10s")
    publish(shop, "a")
    with shop.subscriber("orders") as subscriber, shop.queue_client("orders") as queue:
        held = received(subscriber)
        hold = Command(command="transfer", transfer="tom", to="there", top_n=1, bookmarks=("orders:0:0",))
        queue._ask(hold)
        assert [one.state for one in queue.peek()] == ["leased"], "what is leased is not handed over"
        shop.lose(subscriber)
        shop.clock.advance(60)
        queue._ask(hold)
        assert [one.state for one in queue.peek()] == ["transferring"]
        shop.find(subscriber)
        is_too_late(held)
    assert values(shop, "shipments") == []


@pytest.mark.feature("D5", "C54", "Q9")
def test_a_letter_that_is_redriven_is_worked_on_anew(shop: Lapse) -> None:
    """Its first transaction was committed, and not acknowledged in time: that says nothing of the new record."""
    shop.queue("orders", max_deliveries=1, heartbeat_timeout="10s")
    publish(shop, "a")
    with shop.subscriber("orders") as dying:
        assert not ship_and_die(shop, dying)
    planned = plan(shop.dead_letters("orders"), Choice(), Target(), int(shop.clock.now_ms))
    for line in planned:
        shop.connection.producer().produce(line.topic, line.letter.value, headers=line.headers)
    with shop.subscriber("orders") as other:
        assert in_turn(other, 1) == [b"a"]
    assert values(shop, "shipments") == [b"a", b"a"]


@pytest.mark.feature("S2", "S10", "S6")
def test_an_update_of_a_record_may_be_an_output(shop: Lapse) -> None:
    shop.queue("orders")
    shop.sow("prices", key="/k")
    publish(shop, "a", "b")
    with shop.subscriber("orders", 2) as subscriber, shop.sow_client("prices") as prices:
        with received(subscriber).transaction() as tx:
            tx.produce("prices", b'{"k": 1, "v": 1}')
        with received(subscriber).transaction() as tx:
            tx.produce("prices", b'{"k": 1, "v": 2}')
            raise Retry(after=60)
        assert [record.value for record in prices.query()] == [b'{"k": 1, "v": 1}']


@pytest.mark.feature("C4", "C77", "C52", "C42")
def test_a_deletion_waits_for_a_transaction_and_by_force_it_writes_nothing(shop: Lapse) -> None:
    shop.queue("orders")
    publish(shop, "a")
    with shop.subscriber("orders") as subscriber, shop.admin() as admin:
        held = received(subscriber)
        with pytest.raises(Exception, match="leas"):
            admin.delete_queue("orders")
        admin.delete_queue("orders", force=True)
        shop.settle()
        with pytest.raises(Exception, match=r"orders|gone|deleted|lease"):
            ship(held)
    assert values(shop, "shipments") == []


@pytest.mark.feature("Q23", "C65", "C66")
def test_a_change_leaves_a_transaction_its_lease_and_what_was_decided(shop: Lapse) -> None:
    shop.queue("orders", lease_period="30s", heartbeat_timeout="10s")
    publish(shop, "a", "b")
    with shop.admin() as admin, shop.subscriber("orders", 2) as dying:
        held = received(dying)
        assert admin.alter_queue("orders", lease_period="40s", max_deliveries=3).version == 2
        assert not ship(held)
        assert not ship_and_die(shop, dying)
        assert admin.alter_queue("orders", max_deliveries=4).version == 3
        with shop.subscriber("orders") as other:
            assert ship(received(other)), "somebody had committed it before"
    assert values(shop, "shipments") == [b"a", b"b"]
    assert shop.depth("orders") == 0
