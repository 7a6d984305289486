"""A filter that takes long stops nobody: not its own queue for long, and no other entity (X7)."""

import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

import support.workers.stern
from lapse.core.error_code import ErrorCode
from lapse_client.error import CommandFailed
from lapse_client.queue.queue import Queue
from lapse_client.sow.sow_client import SowClient
from support.consumers.kcat import Kcat
from support.kafka.log import until, write
from support.processes.deployment import Deploy, Deployment, broker_now_ms

QUEUES = {"slow": {}, "quick": {}, "heavy": {}}
MESSAGES = 40
COSTLY = " AND ".join(f"UPPER(/text) != '{number}'" for number in range(90))
"""Takes several ms on a text of 100,000 characters."""

TURNS = 30
"""More than enough to spend what a subscription's filter may take, on any machine."""

HOSTILE = "/text LIKE '(a*)(a*)(a*)b'"
TEXT = "a" * 255 + "c"


@pytest.fixture(scope="module")
def stern(deploy: Deploy) -> Deployment:
    """A deployment whose worker allows commands and subscriptions a tenth of a second of CPU."""
    here = deploy({})
    here.configure({"orders": {}, "full": {}, "target": {}}, {"prices": {}, "stocks": {}})
    here.apply()
    program = str(Path(support.workers.stern.__file__))
    return here.run([program, str(here.config), str(here.directory / "data")]).wait_for_shards(5) and here


@pytest.mark.feature("X1", "X7", "Q14", "Q15")
def test_a_pattern_that_backtracks_holds_no_queue_up(served: Deployment) -> None:
    write(
        served.servers, served.name("slow"), [orjson.dumps({"text": TEXT, "n": number}) for number in range(MESSAGES)]
    )
    with served.queue("slow") as slow, served.queue("quick") as quick:
        until(lambda: slow.depth()["depth"] == MESSAGES, "all arrived")
        # With backtracking each of the 40 texts takes more than a second, so no answer would come in time.
        assert list(slow.peek(filter=HOSTILE)) == []
        assert slow.purge(filter=HOSTILE)["removed"] == 0
        assert quick.depth()["depth"] == 0


@pytest.mark.feature("X1", "X7")
def test_others_have_their_turn_while_a_filter_is_at_work(served: Deployment) -> None:
    """Each message takes several ms to judge, all of them seconds; another queue answers many times meanwhile."""
    write(served.servers, served.name("heavy"), [orjson.dumps({"text": "a" * 100_000}) for _ in range(300)])
    patient = Queue(served.name("heavy"), connection=served.connection, timeout_s=120)  # seconds of CPU
    with patient as heavy, served.queue("quick") as quick:
        until(lambda: heavy.depth()["depth"] == 300, "all arrived")
        counts: list[int] = []
        asking = threading.Thread(target=lambda: counts.append(heavy.purge(filter=COSTLY)["removed"]))
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
def test_a_sow_subscription_whose_filter_costs_too_much_is_ended_and_informed_and_the_others_go_on(
    stern: Deployment,
) -> None:
    here = stern
    failures: list[CommandFailed] = []

    def follow() -> None:
        try:
            with (
                SowClient(here.name("prices"), connection=here.connection) as client,
                client.subscribe(COSTLY) as updates,
            ):
                for _ in updates.updates(60):
                    pass
        except CommandFailed as error:
            failures.append(error)

    with SowClient(here.name("prices"), connection=here.connection) as client, client.subscribe("/n >= 0") as updates:
        hostile = threading.Thread(target=follow)
        hostile.start()
        until(lambda: sum(one.event == "subscribed" for one in here.events("prices")) == 2, "both are subscribed")
        seen = 0
        for turn in range(TURNS):
            values = [orjson.dumps({"n": turn, "text": "a" * 100_000}) for _ in range(30)]
            here.write("prices", *values, key=b"k")
            for update in updates.updates(30):
                seen += update.kind == "publish"
                if seen == 30 * (turn + 1):
                    break
            assert seen == 30 * (turn + 1)
            if turn >= 2 and not hostile.is_alive():
                break
        hostile.join(60)
    assert [one.code for one in failures] == [ErrorCode.TOO_COSTLY]
    assert "Simplify the filter" in str(failures[0])


@pytest.mark.feature("X7", "Q14", "X1")
def test_a_subscription_whose_filter_costs_too_much_is_ended_and_informed_and_the_others_go_on(
    stern: Deployment,
) -> None:
    here = stern
    failures: list[CommandFailed] = []

    def receive() -> None:
        try:
            with here.subscriber("orders", 1, filter=COSTLY) as subscriber:
                while subscriber.receive(60) is not None:
                    pass  # it keeps the one message that it may have
        except CommandFailed as error:
            failures.append(error)

    hostile = threading.Thread(target=receive)
    hostile.start()
    until(lambda: any(one.event == "subscribed" for one in here.events("orders")), "the costly one is subscribed")
    with here.subscriber("orders", 10, filter="/n >= 0") as subscriber:
        for turn in range(TURNS):
            values = [orjson.dumps({"n": turn, "text": "a" * 100_000}) for _ in range(20)]
            here.write("orders", *values)
            taken = 0
            while taken < 18 and (delivery := subscriber.receive(30)) is not None:
                delivery.acknowledge()
                taken += 1
            assert taken == 18, turn
            if turn >= 2 and not hostile.is_alive():
                break
    hostile.join(60)
    assert [one.code for one in failures] == [ErrorCode.TOO_COSTLY]
    assert "Simplify the filter" in str(failures[0])


QUEUE_COMMANDS: dict[str, dict[str, object]] = {
    **{settling: {"subscription": "holder"} for settling in ("acknowledge", "cancel", "expire", "renew")},
    "purge": {"leased": True},
    "sow": {},
    "depth": {},
    "transfer": {"transfer": "t", "to": "elsewhere"},
}
SOW_COMMANDS: list[tuple[str, dict[str, object]]] = [
    ("sow", {}),
    ("sow", {"order_by": "/n", "top_n": 1}),
    ("sow_and_subscribe", {"subscription": "s"}),
    ("sow", {"state": "scheduled"}),
    ("sow_delete", {"state": "scheduled"}),
    ("sow_delete", {}),
]


def refused(there: Kcat, asked: list[tuple[str, dict[str, object]]], others: Queue) -> list[dict[str, Any]]:
    """Send commands with costly filters at once, and return their answers; another queue answers all the time."""
    idents = [f"costly-{at}" for at in range(len(asked))]
    commands = [
        {"command": command, "id": ident, "filter": f"{COSTLY} AND /n != '{ident}'", **fields}
        for ident, (command, fields) in zip(idents, asked, strict=True)
    ]
    for one in commands:
        there.send(orjson.dumps(one))

    def by_ident() -> dict[str, dict[str, Any]]:
        there.tail.poll()
        found = [orjson.loads(one.value() or b"") for one in there.answers()]
        return {one["id"]: one for one in found if one["id"] in idents}

    answered = 0
    while len(by_ident()) < len(idents):
        others.depth()
        answered += len(by_ident()) < len(idents)
    assert answered, "the other queue answers while they are at work"
    return [by_ident()[ident] for ident in idents]


@pytest.mark.feature("X7", "X1", "Q8", "Q15", "Q17", "Q22")
def test_a_command_whose_filter_costs_too_much_is_refused_with_its_reason_and_does_nothing(stern: Deployment) -> None:
    here, text = stern, "a" * 100_000
    here.write("full", *[orjson.dumps({"n": str(number), "text": text}) for number in range(60)])
    in_an_hour = [("lapse-enqueue-at-ms", b"%d" % (broker_now_ms() + 3_600_000))]
    here.write("full", *[orjson.dumps({"n": "later", "text": text})] * 60, headers=in_an_hour)
    with here.subscriber("full", 5, name="holder") as holder, here.queue("full") as full, here.queue("target") as quick:
        held = [holder.receive(20) for _ in range(5)]
        assert None not in held
        until(lambda: full.depth()["scheduled"] == 60, "all arrived")
        states = ("depth", "available", "leased", "scheduled")
        before = {state: full.depth()[state] for state in states}
        assert before == {"depth": 60, "available": 55, "leased": 5, "scheduled": 60}
        answers = refused(Kcat(here, "full"), list(QUEUE_COMMANDS.items()), quick)
        assert {one["command"]: one["code"] for one in answers} == dict.fromkeys(QUEUE_COMMANDS, "too_costly")
        for one in answers:
            assert one["error"].startswith(f"{one['command']}: stopped after 0."), one["error"]
            assert "Simplify the filter" in one["error"]
            assert not one["settlements"], "nothing is settled"
        assert {state: full.depth()[state] for state in states} == before
        assert full.purge(filter="/n = 'later'")["removed"] == 60, "one that costs little is carried out"
        full.purge()
        for _ in range(2):  # asked again, it is answered again
            with pytest.raises(CommandFailed, match="records were not looked at") as refusal:
                full.rewind("beginning", filter=COSTLY, command_id="costly")
            assert refusal.value.code == ErrorCode.TOO_COSTLY
        came = full.depth()
        assert 0 < came["available"] + came["scheduled"] < 100, "a part of them is back"
        left = full.rewind("beginning", dry_run=True)
        assert left["rewound"] + left["live"] >= 115


@pytest.mark.feature("X7", "X1", "S3", "S5", "L5")
def test_a_command_to_a_sow_topic_whose_filter_costs_too_much_is_refused_and_tells_what_it_did(
    stern: Deployment,
) -> None:
    here, value = stern, orjson.dumps({"n": "1", "text": "a" * 100_000})
    in_an_hour = [("lapse-enqueue-at-ms", b"%d" % (broker_now_ms() + 3_600_000))]
    for number in range(80):  # few enough to be looked at, too many for the filter
        here.write("stocks", value, key=b"%d" % number, headers=in_an_hour if number >= 40 else ())
    with (
        SowClient(here.name("stocks"), connection=here.connection) as stocks,
        here.queue("target") as quick,
    ):

        def there() -> tuple[int, int] | None:
            """Look without a filter; None if a busy machine made even that too costly."""
            try:
                return len(list(stocks.query(select=["/n"]))), len(stocks.scheduled())
            except CommandFailed as error:
                if error.code != ErrorCode.TOO_COSTLY:
                    raise
                return None

        until(lambda: there() == (40, 40), "all arrived", 60)
        answers = refused(Kcat(here, "stocks"), SOW_COMMANDS, quick)
        assert [one["code"] for one in answers] == ["too_costly"] * len(SOW_COMMANDS), answers
        assert all("Simplify the filter" in one["error"] for one in answers)
        withdrawn, deleted = (one["counts"]["removed"] for one in answers[-2:])
        until(lambda: there() == (40 - deleted, 40 - withdrawn), "what is gone is told", 60)
        assert stocks.subscriptions() == []
