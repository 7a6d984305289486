"""A settlement by filter of very many messages takes several steps, in which others have their turn (Q8, C60)."""

from __future__ import annotations

import pytest

from lapse.core.queue import command as commands
from lapse.core.queue.command import QueueCommands
from lapse.protocol.command import Command
from lapse.testing import Lapse
from lapse_client import CommandFailed, Queue
from lapse_client.queue import Settling

pytestmark = pytest.mark.feature("Q8", "C60")

COUNT = 10_000
"""Of three segments."""

FILTER = "/n % 2 = 0"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether there was more, of each part of a settlement; a segment makes one."""
    found: list[bool] = []
    whole = QueueCommands.settle_some

    def noted(self, command, at_ms, step):
        more = whole(self, command, at_ms, step)
        if command.filter:
            found.append(more)
        return more

    monkeypatch.setattr(QueueCommands, "settle_some", noted)
    monkeypatch.setattr(commands, "SETTLED_AT_ONCE", 1_000)
    return found


def fill(lapse: Lapse) -> None:
    lapse.queue("orders", lease_period="1h", max_cancels=1)
    with lapse.publisher() as publisher:
        for number in range(COUNT):
            publisher.publish("orders", b'{"n": %d}' % number)


@pytest.mark.parametrize("how", ["acknowledge", "cancel", "expire"])
def test_all_that_match_are_settled_once_and_told_together(lapse: Lapse, parts: list[bool], how: Settling) -> None:
    fill(lapse)
    with lapse.subscriber("orders", COUNT) as subscriber, Queue("orders", connection=lapse.connection) as queue:
        subscriber.start()
        assert queue.depth()["leased"] == COUNT
        queue.pause()
        results = queue.settle(how, filter=FILTER)
        assert parts == [True, True, True, False] or parts == [True, True, False]
        assert sum(len(one.messages) for one in results if one.settled) == COUNT // 2
        counts = queue.depth()
        assert (counts["leased"], counts["available"]) == (COUNT // 2, COUNT // 2 if how == "cancel" else 0)
        assert {one.delivery_count for one in queue.peek(filter=FILTER)} == ({1} if how == "cancel" else set())
        assert queue.settle(how, filter="/n = 1")[0].settled, "the next one begins anew"
        assert queue.depth()["leased"] == COUNT // 2 - 1


def test_what_is_refused_settles_nothing(lapse: Lapse, parts: list[bool]) -> None:
    fill(lapse)
    with Queue("orders", connection=lapse.connection) as queue:
        with pytest.raises(CommandFailed, match="takes no state"):
            queue._ask(Command.of(command="expire", filter=FILTER, state="leased"))
        assert queue.depth()["available"] == COUNT
        with pytest.raises(CommandFailed, match="takes no state"):
            queue._ask(Command.of(command="purge", state="leased"))
        assert queue.depth()["available"] == COUNT
