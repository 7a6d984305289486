"""What changes something is recorded, even if nobody knows whether it took effect; and what fails stops no other."""

import asyncio
import logging
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from lapse_client import Connection
from lapse_client.error import AnswerTimeout, EntityDeleted, LapseError
from lapse_gateway import Gateway, Settings, Users
from lapse_gateway.clients import Clients
from lapse_gateway.console.queues import _carry_out
from lapse_gateway.console.watch import Watch
from lapse_gateway.fault import Fault
from lapse_gateway.operation import Call
from lapse_gateway.parameter import Parameter
from lapse_gateway.subscription import Subscriptions
from lapse_gateway.user import Caller

CALLER = Caller(name="alice", connection=Connection("nowhere:1"))


def call() -> Call:
    request: Any = SimpleNamespace(client=SimpleNamespace(host="10.0.0.1"))
    gateway = Gateway(Connection("nowhere:1"), Settings(), Users())
    return Call(request=request, gateway=gateway, caller=CALLER, path={}, parameters={}, body=b"")


@pytest.mark.feature("X4", "Q21")
@pytest.mark.parametrize(
    "error", [AnswerTimeout("orders", "purge", [0], 10), asyncio.CancelledError(), BufferError()], ids=type
)
def test_an_action_of_which_nobody_knows_whether_it_took_effect_is_recorded(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lapse_gateway.audit")
    with pytest.raises(type(error)), call().recording("purge", "orders", leased=True):
        raise error
    (record,) = caplog.records
    facts: Any = record.__dict__["facts"]
    assert (facts["user"], facts["from"], facts["did"], facts["entity"], facts["leased"]) == (
        "alice", "10.0.0.1", "purge", "orders", True,
    )  # fmt: skip
    assert facts["fault"]


@pytest.mark.feature("X7")
@pytest.mark.parametrize("bookmark", [None, "", "orders:0:1-5", "nonsense"])
def test_a_form_that_names_no_message_or_several_expires_none(bookmark: str | None) -> None:
    expired: list[object] = []

    async def expire(bookmarks: list[str]) -> None:
        expired.append(bookmarks)

    queue: Any = SimpleNamespace(expire=expire)
    with pytest.raises(ValueError, match="expected"):
        asyncio.run(_carry_out(queue, {"action": "expire", "bookmark": bookmark}, {}))
    assert not expired


@pytest.mark.feature("X7")
@pytest.mark.parametrize("text", [".", "-.", "-", "", "1.2.3", "1e3", "nan", "٣"])
def test_a_parameter_that_is_no_number_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(Fault, match="parameter wait_s: expected a number"):
        Parameter(name="wait_s", description="", kind="number").read([text])


@pytest.mark.parametrize(("text", "number"), [("5", 5.0), ("5.", 5.0), (".5", 0.5), ("0.25", 0.25)])
def test_a_number_may_begin_or_end_with_its_point(text: str, number: float) -> None:
    assert Parameter(name="wait_s", description="", kind="number").read([text]) == number


class Closing:
    """A subscriber that may fail to close."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.closed = False

    async def close(self) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        await asyncio.sleep(0.01)
        self.closed = True


@pytest.mark.feature("Q5")
def test_a_subscription_that_cannot_be_closed_keeps_no_other_from_returning_its_messages() -> None:
    some = [Closing(LapseError("the brokers are away")), Closing()]

    async def end() -> None:
        found = Subscriptions(5, 10, 10)
        open_ones: Any = {("", "q", str(at)): SimpleNamespace(subscriber=one) for at, one in enumerate(some)}
        found._open = open_ones
        await found.close()
        assert some[1].closed

    asyncio.run(end())


@pytest.mark.feature("Q15")
def test_a_queue_whose_question_fails_is_asked_again() -> None:
    """After an unexpected error it was never asked again, and its page said that no worker answers."""
    asked: list[str] = []

    class Failing:
        timeout_s = 1.0

        def at_a_glance(self, *_: object, **__: object) -> Any:
            asked.append("once")
            raise RuntimeError("cannot start new thread")

    async def look() -> None:
        clients: Any = Failing()
        watch = Watch(clients)
        for _ in range(2):
            (found,) = await watch.look(CALLER, ["orders"])
            assert "RuntimeError" in found.fault
            found.at_s = -1e9  # the figures are old
        assert len(asked) == 2

    asyncio.run(look())


@pytest.mark.feature("Q15", "Q23")
def test_a_queue_that_was_created_anew_is_asked_by_a_client_that_knows_it() -> None:
    """The client that has lost the first one stays open until the others have their answers."""
    made: list[Any] = []

    class Asked:
        """A client of both queues. The first client has lost one of them."""

        def __init__(self) -> None:
            self.queues, self.closed, self.slow = self, False, Future[dict[str, int]]()
            made.append(self)

        def depth(self, name: str) -> Future[dict[str, int]]:
            found: Future[dict[str, int]] = Future()
            if self is not made[0]:
                found.set_result({"depth": 1})
            elif name == "stays":
                return self.slow
            else:
                found.set_exception(EntityDeleted(name, "it is no more"))
            return found

        async def close(self) -> None:
            self.closed = True

    async def look() -> None:
        clients = Clients(1.0)

        async def make(*_: object) -> Any:
            return Asked()

        clients._glances._make = make
        watch = Watch(clients)
        looking = asyncio.create_task(watch.look(CALLER, ["goes", "stays"]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert watch.needy(CALLER, ["goes"]) == ["goes"]
        assert not made[0].closed, "the other queue has not answered"
        made[0].slow.set_result({"depth": 0})
        goes, stays = await looking
        assert ("no more" in goes.fault, stays.figures) == (True, {"depth": 0})
        assert made[0].closed
        goes.at_s = -1e9  # the answer is old
        goes, _ = await watch.look(CALLER, ["goes", "stays"])
        assert (goes.fault, goes.figures) == ("", {"depth": 1})

    asyncio.run(look())
