"""Letters that the broker refused are tried again, each alone; what no topic takes holds the others back (C27)."""

import asyncio

import pytest

from lapse.runtime.kafka.output import Output
from lapse.runtime.letters import letter_retry
from lapse.runtime.letters.letter_retry import LetterRetry
from lapse.runtime.letters.refusal import Refusal


class Broker:
    """Refuses letters by their value; a topic that is not there refuses all."""

    def __init__(self, too_large: set[bytes], missing: int = 0) -> None:
        self.too_large = too_large
        self.missing = missing
        self.asked: list[bytes] = []

    async def write(self, letters) -> dict[int, Refusal]:
        (letter,) = letters
        self.asked.append(letter.value)
        if self.missing:
            self.missing -= 1
            return {0: Refusal("no topic", of_topic=True)}
        return {0: Refusal("too large")} if letter.value in self.too_large else {}


async def letter(name: bytes) -> Output | None:
    return None if name == b"gone" else Output("dlq", 0, None, name, [])


async def retried(broker: Broker, names: list[bytes], until: int, left: list[bytes]) -> list[bytes]:
    safe: list[bytes] = []
    news = asyncio.Event()
    retry = LetterRetry("orders", letter, left)
    retry.start(broker.write, news.set)
    retry.add((name, "too large") for name in names)
    while len(safe) < until:
        await news.wait()
        news.clear()
        safe += retry.safe()
    retry.stop()
    return safe


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_retry, "FIRST_S", 0.01)
    monkeypatch.setattr(letter_retry, "LONGEST_S", 0.04)


@pytest.mark.feature("C27")
def test_each_is_tried_alone_in_the_order_of_removal_and_one_that_is_refused_holds_no_other_back() -> None:
    broker = Broker({b"2"})
    safe = asyncio.run(retried(broker, [b"2", b"3", b"gone", b"4"], 5, [b"0", b"1"]))
    assert safe == [b"0", b"1", b"3", b"gone", b"4"]
    assert broker.asked[:5] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.feature("C27")
def test_while_the_topic_takes_nothing_only_the_first_knocks_and_then_all_pass_in_order() -> None:
    broker = Broker(set(), missing=3)
    assert asyncio.run(retried(broker, [], 3, [b"0", b"1", b"2"])) == [b"0", b"1", b"2"]
    assert broker.asked == [b"0", b"0", b"0", b"0", b"1", b"2"]


@pytest.mark.feature("C27")
def test_a_letter_passes_by_itself_once_the_broker_takes_it() -> None:
    async def scenario() -> list[bytes]:
        broker = Broker({b"0"})
        asyncio.get_running_loop().call_later(0.05, broker.too_large.clear)
        return await retried(broker, [b"0"], 1, [])

    assert asyncio.run(scenario()) == [b"0"]
