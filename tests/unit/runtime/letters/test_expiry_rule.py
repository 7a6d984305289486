"""The calls of one shard: journaled, made in order, forgotten when done, made again by the next owner."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lapse.core.lifetime import NEVER
from lapse.core.queue.step import Messages, Removal
from lapse.core.reason import Reason
from lapse.core.sow.step import Removal as RecordRemoval
from lapse.protocol.bookmark import Bookmark
from lapse.runtime.letters import expiry_rule
from lapse.runtime.letters.expired_message import ExpiredMessage
from lapse.runtime.letters.expiry_rule import ExpiryRule
from lapse.runtime.letters.rule_process import RuleFigures

pytestmark = pytest.mark.feature("L15", "C26")


class Caller:
    """Remembers what it was called with; the gate holds it up."""

    def __init__(self) -> None:
        self.figures = RuleFigures()
        self.called: list[ExpiredMessage] = []
        self.gate = asyncio.Event()
        self.news = asyncio.Event()

    async def call(self, messages: Sequence[ExpiredMessage]) -> None:
        await self.gate.wait()
        self.called += messages
        self.news.set()


class Log:
    """Has every even offset; the others are gone from Kafka."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures

    async def read(self, topic: str, partition: int, first: int, last: int) -> list[Any]:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no broker")
        return [record(offset) for offset in range(first + first % 2, last + 1, 2)]


def record(offset: int) -> Any:
    headers = [("lapse-redriven-count", b"2")]
    return SimpleNamespace(offset=offset, key=b"k", value=b"v%d" % offset, headers=headers, timestamp=1)


def removal(offsets: Sequence[int], deadlines_ms: Sequence[int] | None = None, incarnation: int = 0) -> Removal:
    count = len(offsets)
    messages = Messages(
        "t",
        3,
        np.array(offsets, np.int64),
        None if deadlines_ms is None else np.array(deadlines_ms, np.int64),
        np.arange(count).astype(np.uint32),
        None,
    )
    return Removal(messages, (Reason.TIME_LIMIT, Reason.MAX_CANCELS), 99, letter=True, incarnation=incarnation)


async def settled(caller: Caller, count: int) -> None:
    async with asyncio.timeout(5):
        while len(caller.called) < count:
            await caller.news.wait()
            caller.news.clear()


def test_the_function_is_given_what_is_known_of_each_message():
    async def run() -> list[ExpiredMessage]:
        caller = Caller()
        caller.gate.set()
        rule = ExpiryRule("q", 1, caller, Log())
        rule.removed(removal([4, 5], [77, NEVER]), [record(4), None])
        rule.start(lambda: None)
        await settled(caller, 2)
        rule.stop()
        return caller.called

    first, second = asyncio.run(run())
    assert first == ExpiredMessage(
        entity="q",
        topic="t",
        partition=3,
        offset=4,
        key=b"k",
        value=b"v4",
        headers=(("lapse-redriven-count", b"2"),),
        reasons=("time_limit", "max_cancels"),
        expires_at_ms=77,
        expired_at_ms=99,
        delivery_count=0,
        cancel_count=0,
        lapse_id="q/t:3:4/2",
    )
    assert (second.expires_at_ms, second.value, second.delivery_count) == (None, None, 1)
    assert second.bookmark == "t:3:5"


@pytest.mark.feature("C7")
def test_a_deadline_in_1970_is_one_over_a_crash_too():
    async def run(first_owner: bool) -> list[int | None]:
        made = ExpiryRule("q", 1, caller := Caller(), Log())
        left = RecordRemoval(Bookmark("s", 0, 1), None, None, (), 1, (Reason.TIME_LIMIT,), 5, deadline_ms=0)
        items = [*made.removed(removal([4, 6], [0, NEVER]), [record(4), record(6)]), *made.copied([left])]
        rule = made if first_owner else ExpiryRule("q", 2, caller, Log(), dict(items))
        caller.gate.set()
        rule.start(lambda: None)
        await settled(caller, 3)
        rule.stop()
        return [one.expires_at_ms for one in caller.called]

    assert [asyncio.run(run(first_owner)) for first_owner in (True, False)] == [[0, None, 0]] * 2


@pytest.mark.feature("C42", "D3")
def test_the_letter_id_names_a_topic_that_was_created_again_over_a_crash_too():
    async def run(first_owner: bool) -> list[str]:
        made = ExpiryRule("q", 1, caller := Caller(), Log())
        left = RecordRemoval(Bookmark("s", 0, 1), None, None, (), 1, (Reason.TIME_LIMIT,), 5, incarnation=1)
        items = [*made.removed(removal([4], incarnation=7), [record(4)]), *made.copied([left])]
        rule = made if first_owner else ExpiryRule("q", 2, caller, Log(), dict(items))
        caller.gate.set()
        rule.start(lambda: None)
        await settled(caller, 2)
        rule.stop()
        return [one.lapse_id for one in caller.called]

    assert [asyncio.run(run(first_owner)) for first_owner in (True, False)] == [["q@7/t:3:4/2", "q@1/s:0:1/0"]] * 2


def test_a_slow_function_holds_nothing_up_and_the_journal_forgets_only_what_is_done():
    async def run() -> None:
        caller = Caller()
        woken = asyncio.Event()
        rule = ExpiryRule("q", 1, caller, Log())
        rule.start(woken.set)
        items = rule.removed(removal(range(2500)), [record(offset) for offset in range(2500)])
        assert len(items) == 3
        assert rule.waiting == 2500
        await asyncio.sleep(0)
        assert rule.forgotten() == []
        caller.gate.set()
        async with asyncio.timeout(5):
            await woken.wait()
        await settled(caller, 2500)
        assert rule.forgotten() == [(key, None) for key, _ in items]
        assert rule.waiting == 0
        rule.stop()

    asyncio.run(run())


def test_the_next_owner_makes_the_calls_that_are_left_and_reads_payloads_back(monkeypatch: pytest.MonkeyPatch):
    """In the order of removal, whatever reading back costs."""
    monkeypatch.setattr(expiry_rule, "_RETRY_S", 0)

    async def run() -> list[ExpiredMessage]:
        first = ExpiryRule("q", 7, Caller(), Log())
        items = [
            *first.removed(removal([6, 7, 90_000]), [record(6), record(7), record(90_000)]),
            *first.copied(
                [RecordRemoval(Bookmark("s", 0, 1), b"\xff", b"\x00whole", (("h", None),), 1, (Reason.PURGED,), 5)]
            ),
            *first.copied([RecordRemoval(Bookmark("s", 0, 2), None, None, (), 1, (Reason.PURGED,), 5)]),
        ]
        caller = Caller()
        caller.gate.set()
        journal = {key: value for key, value in items if value is not None}
        rule = ExpiryRule("q", 8, caller, Log(failures=2), {**journal, b"\x00p1": b"{}"})
        rule.start(lambda: None)
        await settled(caller, 5)
        assert rule.forgotten() == [(key, None) for key, _ in items]
        rule.stop()
        return caller.called

    called = asyncio.run(run())
    assert [one.bookmark for one in called] == ["t:3:6", "t:3:7", "t:3:90000", "s:0:1", "s:0:2"]
    assert [one.value for one in called] == [b"v6", None, b"v90000", b"\x00whole", None]
    assert called[3].key == b"\xff"
    assert called[3].headers == (("h", None),)
    assert called[0].lapse_id == "q/t:3:6/2"


def test_payloads_beyond_the_limit_are_read_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(expiry_rule, "_KEPT_BYTES", 1_000)

    async def run() -> list[ExpiredMessage]:
        caller = Caller()
        rule = ExpiryRule("q", 1, caller, Log())
        for offset in range(0, 40, 2):
            rule.removed(removal([offset]), [record(offset)])
        assert rule._kept <= 1_000
        rule.start(lambda: None)
        caller.gate.set()
        await settled(caller, 20)
        assert rule._kept == 0
        rule.stop()
        return caller.called

    assert [one.value for one in asyncio.run(run())] == [b"v%d" % offset for offset in range(0, 40, 2)]
