"""A crash swallows no answer that cannot be asked for again: what was done once is told as that (C55)."""

from collections.abc import Callable

import pytest

from lapse.core.shard.answer import CommandAnswer
from lapse.protocol.command import Command
from lapse.runtime.kafka.output import Output
from lapse.runtime.shard.kept_answers import KEY, KeptAnswers
from lapse.testing import CrashPoint, Lapse
from lapse_client import CommandFailed, Queue, SowClient
from support.suite.at_length import alike


def refused(queue: Queue) -> str:
    with pytest.raises(CommandFailed) as error:
        queue.delete()
    return str(error.value).partition(" by ")[0]


Ask = Callable[[Queue, SowClient], object]

ASKED: dict[str, Ask] = {
    "purge": lambda queue, _: queue.purge(),
    "purge by filter": lambda queue, _: queue.purge(filter="/n > 1"),
    "acknowledge by filter": lambda queue, _: queue.acknowledge(filter="/n > 1"),
    "expire by filter": lambda queue, _: queue.expire(filter="/n > 0"),
    "a cancel that names no delivery": lambda queue, _: queue.cancel(["orders:0:0"]),
    "sow_delete": lambda _, prices: prices.delete(filter="/n > 1"),
    "delete": lambda queue, _: queue.delete(force=True),
    "a deletion that is refused": lambda queue, _: refused(queue),
}


def asked(ask: Ask, *points: CrashPoint) -> object:
    with Lapse() as lapse:
        lapse.queue("orders", lease_period="60s")
        lapse.sow("prices", key="/n")
        queue, prices = lapse.queue_client("orders"), lapse.sow_client("prices")
        with lapse.publisher() as publisher, lapse.subscriber("orders") as subscriber, queue, prices:
            for n in range(5):
                publisher.publish("orders", b'{"n": %d}' % n)
                publisher.publish("prices", b'{"n": %d}' % n)
            assert subscriber.receive(1) is not None
            for point in points:
                lapse.crash(before=point)
            return ask(queue, prices)


@pytest.mark.feature("C55", "C83", "S3", "C4")
@pytest.mark.parametrize("point", alike(CrashPoint.DELIVERIES, CrashPoint.JOURNAL))
@pytest.mark.parametrize("how", ASKED)
def test_who_asks_is_answered_as_if_nothing_had_crashed(how: str, point: CrashPoint) -> None:
    assert asked(ASKED[how], point) == asked(ASKED[how])


@pytest.mark.feature("C55", "C37")
@pytest.mark.parametrize("point", [None, *CrashPoint])
@pytest.mark.parametrize("how", alike("acknowledge", "expire"))
def test_a_settlement_that_is_asked_twice_does_not_claim_what_a_purge_was_faster_with(
    how: str, point: CrashPoint | None, lapse: Lapse
) -> None:
    lapse.queue("orders", lease_period="60s")
    with (
        lapse.publisher() as publisher,
        lapse.subscriber("orders", 2) as subscriber,
        lapse.queue_client("orders") as queue,
    ):
        for n in range(2):
            publisher.publish("orders", b'{"n": %d}' % n)
        both = [subscriber.receive(1), subscriber.receive(1)]
        queue.purge(leased=True, filter="/n = 0")
        if point is not None:
            lapse.crash(before=point)
        results = [one.result for one in subscriber.settle(how, [one for one in both if one is not None], wait=True)]
    assert results == ["already_settled", "settled"]


@pytest.mark.feature("C55")
def test_an_answer_that_clients_have_is_forgotten(lapse: Lapse) -> None:
    lapse.queue("orders")
    with lapse.queue_client("orders") as queue:
        queue.purge()
        queue.depth()
        queue.pause()
    journal = [(one.key, one.value) for one in lapse.records("lapse-orders-changelog") if one.key[:2] == KEY]
    assert len(journal) == 2
    assert journal[1] == (journal[0][0], None), "only the purge's, and it is gone"
    before = len(lapse.records("lapse.orders.deliveries"))
    lapse.crash()
    lapse.depth("orders")
    logged = lapse.records("lapse.orders.deliveries")[before:]
    assert [dict(one.headers)["lapse-kind"] for one in logged] == [b"epoch", b"answer"], "it is not told again"


@pytest.mark.feature("C55", "X4")
def test_a_user_who_is_not_spoken_to_any_more_gets_no_answer() -> None:
    first = KeptAnswers(1)
    first.expect(Command(command="purge", id="x"))
    answer = Output("lapse.q.deliveries.amy", 0, None, b"{}\n", [("lapse-kind", b"answer"), ("lapse-epoch", b"1")])
    (kept,) = first.keep(CommandAnswer("x", "purge", "", 0), answer)
    second = KeptAnswers(2, dict([kept]))
    assert second.left(["lapse.q.deliveries"]) == []
    assert second.forgotten() == [(kept[0], None)]
    (again,) = KeptAnswers(2, dict([kept])).left(["lapse.q.deliveries.amy"])
    assert again == answer._replace(headers=[("lapse-kind", b"answer"), ("lapse-epoch", b"2")])
