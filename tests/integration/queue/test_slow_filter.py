"""A filter that takes long stops nobody: not its own queue for long, and no other entity (X7)."""

import threading
import time
from pathlib import Path

import orjson
import pytest

import support.workers.stern
from lapse.core.error_code import ErrorCode
from lapse_client.error import CommandFailed
from lapse_client.sow.sow_client import SowClient
from support.kafka.log import until, write
from support.processes.deployment import Deploy, Deployment

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


@pytest.mark.feature("X7", "S6", "X1")
def test_a_sow_subscription_whose_filter_costs_too_much_is_ended_and_told_and_the_others_go_on(deploy: Deploy) -> None:
    here = deploy({})
    here.configure({}, {"prices": {}})
    here.apply()
    here.run([str(Path(support.workers.stern.__file__)), str(here.config), str(here.directory / "data")])
    costly = " AND ".join(f"UPPER(/text) != '{number}'" for number in range(90))
    told: list[CommandFailed] = []

    def follow() -> None:
        try:
            with (
                SowClient(here.name("prices"), connection=here.connection) as client,
                client.subscribe(costly) as updates,
            ):
                for _ in updates.updates(60):
                    pass
        except CommandFailed as error:
            told.append(error)

    with SowClient(here.name("prices"), connection=here.connection) as client, client.subscribe("/n >= 0") as updates:
        hostile = threading.Thread(target=follow)
        hostile.start()
        until(lambda: sum(one.event == "subscribed" for one in here.events("prices")) == 2, "both are subscribed")
        seen = 0
        for turn in range(3):
            values = [orjson.dumps({"n": turn, "text": "a" * 100_000}) for _ in range(30)]
            here.write("prices", *values, key=b"k")
            for update in updates.updates(30):
                seen += update.kind == "publish"
                if seen == 30 * (turn + 1):
                    break
            assert seen == 30 * (turn + 1)
        hostile.join(60)
    assert [one.code for one in told] == [ErrorCode.TOO_COSTLY]
    assert "Simplify the filter" in str(told[0])


@pytest.mark.feature("X7", "Q14", "X1")
def test_a_subscription_whose_filter_costs_too_much_is_ended_and_told_and_the_others_go_on(deploy: Deploy) -> None:
    here = deploy({"orders": {}}).apply()
    here.run([str(Path(support.workers.stern.__file__)), str(here.config), str(here.directory / "data")])
    costly = " AND ".join(f"UPPER(/text) != '{number}'" for number in range(90))
    told: list[CommandFailed] = []

    def receive() -> None:
        try:
            with here.subscriber("orders", 1, filter=costly) as subscriber:
                while subscriber.receive(60) is not None:
                    pass  # it keeps the one message that it may have
        except CommandFailed as error:
            told.append(error)

    hostile = threading.Thread(target=receive)
    hostile.start()
    with here.subscriber("orders", 10, filter="/n >= 0") as subscriber:
        for turn in range(3):
            values = [orjson.dumps({"n": turn, "text": "a" * 100_000}) for _ in range(20)]
            here.write("orders", *values)
            taken = 0
            while taken < 18 and (delivery := subscriber.receive(30)) is not None:
                delivery.acknowledge()
                taken += 1
            assert taken == 18, turn
    hostile.join(60)
    assert [one.code for one in told] == [ErrorCode.TOO_COSTLY]
    assert "Simplify the filter" in str(told[0])
