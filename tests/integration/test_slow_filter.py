"""A filter that takes long stops nobody: not its own queue for long, and no other entity (X7, C60)."""

import time

import orjson
import pytest

from support.deployment import Deployment
from support.log import until, write

QUEUES = {"slow": {}, "quick": {}}
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
