"""A long peek with a filter is asked for in pages; each message is judged for the first one only (Q15, C60)."""

from __future__ import annotations

from collections import Counter

import pytest

from lapse.core.queue.inquiry.matching import MOST_PAGED, Matching
from lapse.protocol.command import MOST_PEEKED
from lapse.testing import Lapse
from lapse_client import Queue

pytestmark = pytest.mark.feature("Q15", "C60", "C82")

COUNT = 2 * MOST_PEEKED + 10
FILTER = "/n % 2 = 0"


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many messages were judged under any filter, with and without a place."""
    counts: Counter[str] = Counter()
    placed, others = Matching.judge, Matching.judge_bookmarks

    def judge(self, places, messages):
        counts["placed"] += len(places)
        placed(self, places, messages)

    def judge_bookmarks(self, text, messages):
        messages = list(messages)
        counts["scheduled"] += len(messages)
        others(self, text, messages)

    monkeypatch.setattr(Matching, "judge", judge)
    monkeypatch.setattr(Matching, "judge_bookmarks", judge_bookmarks)
    return counts


def fill(lapse: Lapse, first: int = 0, count: int = COUNT, **options: int) -> None:
    with lapse.publisher() as publisher:
        for number in range(first, first + count):
            publisher.publish("orders", b'{"n": %d}' % number, **options)


def pages(queue: Queue, state: str = "", text: str = FILTER) -> int:
    """How many messages all pages of a peek have."""
    return len(queue.peek(filter=text, state=state))


@pytest.mark.slow
def test_each_message_is_judged_once_however_many_pages_there_are(lapse: Lapse, judged: Counter[str]) -> None:
    lapse.queue("orders")
    fill(lapse)
    fill(lapse, enqueue_at_ms=lapse.clock.now_ms + 60_000)
    with Queue("orders", connection=lapse.connection) as queue:
        assert pages(queue, "scheduled") == COUNT // 2
        assert judged == {"scheduled": COUNT}, "the others cannot be among them"
        assert pages(queue, "available") == COUNT // 2
        assert pages(queue) == COUNT
        assert judged == {"placed": COUNT, "scheduled": COUNT}


def test_what_comes_and_goes_between_pages_is_judged_as_it_is(lapse: Lapse, judged: Counter[str]) -> None:
    lapse.queue("orders")
    fill(lapse, count=6, enqueue_at_ms=lapse.clock.now_ms + 60_000)
    with Queue("orders", connection=lapse.connection) as queue:
        assert pages(queue) == 3
        queue.cancel(["orders:0:0"])
        fill(lapse, first=10, count=1, enqueue_at_ms=lapse.clock.now_ms + 90_000)
        assert pages(queue) == 3
        assert judged == {"scheduled": 7}
        lapse.clock.advance(60)
        assert pages(queue) == 3
        assert judged == {"scheduled": 7, "placed": 5}, "they have places now"


def test_so_many_filters_are_kept_and_no_more(lapse: Lapse, judged: Counter[str]) -> None:
    lapse.queue("orders")
    fill(lapse, count=10)
    with Queue("orders", connection=lapse.connection) as queue:
        for number in range(MOST_PAGED + 1):
            pages(queue, text=f"/n > {number}")
        before = judged["placed"]
        pages(queue, text=f"/n > {MOST_PAGED}")
        assert judged["placed"] == before
        pages(queue, text="/n > 0")
        assert judged["placed"] == before + 10
