"""A filter that takes long stops nobody: not its own queue for long, and no other entity (X7)."""

import threading
import time

import orjson
import pytest

from support.deployment import Deployment
from support.log import until, write

QUEUES = {"slow": {}, "quick": {}, "heavy": {}}
MESSAGES = 40
HOSTILE = "/text LIKE '(a*)(a*)(a*)b'"
TEXT = "a" * 255 + "c"


@pytest.mark.feature("X1", "X7", "Q14", "Q15")
def test_a_pattern_that_backtracks_holds_no_queue_up(served: Deployment) -> None:
    write(
        served.servers, served.name("slow"), [orjson.dumps({"text": TEXT, "n": number}) for number in range(MESSAGES)]
    )
    with served.queue("slow") as slow, served.queue("quick") as quick:
        until(lambda: slow.depth()["depth"] == MESSAGES, "all arrived")
        begin = time.monotonic()
        assert list(slow.peek(filter=HOSTILE)) == []
        assert slow.purge(filter=HOSTILE)["removed"] == 0
        assert quick.depth()["depth"] == 0
        # With backtracking each of the 40 texts takes more than a second.
        assert time.monotonic() - begin < 20


@pytest.mark.feature("X1", "X7")
def test_others_have_their_turn_while_a_filter_is_at_work(served: Deployment) -> None:
    """Each message takes several ms to judge, all of them seconds; another queue answers many times meanwhile."""
    write(served.servers, served.name("heavy"), [orjson.dumps({"text": "a" * 100_000}) for _ in range(300)])
    filter_text = " AND ".join(f"UPPER(/text) != '{number}'" for number in range(90))
    with served.queue("heavy") as heavy, served.queue("quick") as quick:
        until(lambda: heavy.depth()["depth"] == 300, "all arrived")
        counts: list[int] = []
        asking = threading.Thread(target=lambda: counts.append(heavy.purge(filter=filter_text)["removed"]))
        answered = 0
        begin = time.monotonic()
        asking.start()
        while asking.is_alive():
            quick.depth()
            answered += asking.is_alive()
        took_s = time.monotonic() - begin
    assert counts == [300]
    assert answered >= 5, took_s
