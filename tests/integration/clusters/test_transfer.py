"""`lapse transfer` between two real deployments: two brokers, two workers, and processes that are killed on the way."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import pytest

from lapse.core.reason import Reason
from lapse.embedded import EmbeddedKafka
from lapse.protocol.answer import QueuedMessage
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.command import Command
from lapse.protocol.event import EventKind
from lapse.transfer.copier import Copier, TransferError
from lapse.transfer.mover import Choice, Mover, Outcome
from lapse.transfer.side import Side
from lapse_client.error import UnknownEntity
from lapse_client.letters import dead_letter
from support.kafka.created_topic import take_at_most
from support.kafka.log import until
from support.processes import fork_server
from support.processes.deployment import Deploy, Deployment, broker_now_ms
from support.processes.sides import Sides
from support.suite.at_length import cases

RULE = """
import json, os

def left(message):
    with open(os.path.join(os.path.dirname(__file__), "left"), "a") as out:
        out.write(json.dumps([(message.value or b"").decode(), message.reasons, message.expires_at_ms]) + "\\n")
"""
QUEUES = {
    "orders": {"expiration": "enabled", "partitions": 2, "on_expire": "rule:left", "lease_period": "10m"},
    "single": {"expiration": "enabled"},
    "going-hold": {},
    "going-accept": {},
    "deep": {"expiration": "enabled", "target_queue_depth": 3},
    "poison": {"max_deliveries": 3, "dead_letter": "dlq.poison{}"},
    "total": {
        "topics": ["t1{}", "t2{}"],
        "ordering": "total",
        "target_queue_depth": 3,
        "default_publish_target": "t1{}",
    },
}


@pytest.fixture(scope="module")
def sides(kafka: str, deploy: Deploy) -> Iterator[Sides]:
    with EmbeddedKafka() as other:
        both = Sides(deploy(QUEUES), deploy(QUEUES, servers=other.bootstrap_servers))
        for one in both:
            (one.directory / "rule.py").write_text(RULE, "utf-8")
            one.apply().worker()
        for one in both:
            one.workers[0].wait_for_shards(8)
        yield both


class Consumers:
    """Consumers of one queue on both sides, at work the whole time.

    The one here stops after `first` messages until the first message is there, and is slow from then on.
    """

    def __init__(self, sides: Sides, stem: str, first: int | None = None) -> None:
        self.got: dict[str, list[bytes]] = {"here": [], "there": []}
        self._over = threading.Event()
        self._first = first
        self._threads = [
            threading.Thread(target=self._consume, args=(name, side, stem)) for name, side in sides._asdict().items()
        ]

    def _consume(self, name: str, side: Deployment, stem: str) -> None:
        with side.subscriber(stem, 2) as subscriber:
            while not self._over.is_set():
                for delivery in subscriber.messages(0.1):
                    self.got[name].append(delivery.value or b"")
                    if name == "here" and self._first is not None and len(self.got["here"]) >= self._first:
                        until(lambda: self.got["there"] or self._over.is_set(), "a message there", 60)
                        time.sleep(0.01)
                    delivery.acknowledge()
                    if self._over.is_set():
                        break

    def __enter__(self) -> "Consumers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait(self, count: int) -> None:
        until(lambda: sum(map(len, self.got.values())) >= count, f"{count} deliveries, {self.got}", 40)


def all_go(count: int) -> dict[str, object]:
    """What a dry run says of messages all of which would be transferred."""
    return {"transferred": count, "left": {}, "held_by": [], "names_now": []}


def on_screen(side: Deployment, arguments: list[str], pattern: str) -> str:
    """What a command that runs on shows on a terminal, once that matches a pattern."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, **side.environment(), "COLUMNS": "220", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "lapse", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = ""
    try:
        while not re.search(pattern, shown):
            shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(ours, 65_536).decode("utf-8", "replace"))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        os.close(ours)
    return shown


def states_with_deadlines(side: Deployment, stem: str) -> list[tuple[str, int | None, int | None]]:
    with side.queue(stem) as queue:
        return [(one.state, one.expires_at_ms, one.until_ms) for one in queue.peek()]


def left(side: Deployment) -> list[list[Any]]:
    path = side.directory / "left"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


@pytest.mark.feature("Q17")
def test_a_whole_queue_goes_with_consumers_on_both_sides_and_nothing_is_delivered_on_both(sides: Sides) -> None:
    values = [b"%d" % number for number in range(300)]
    for partition in (0, 1):
        sides.here.write("orders", *values[partition::2], partition=partition, key=b"k", headers=[("own", b"1")])
    with Consumers(sides, "orders", first=10) as consumers:
        until(lambda: len(consumers.got["here"]) >= 10, "deliveries here")
        outcome = sides.transfer("orders", "--all", code=None)
        consumers.wait(len(values))
        time.sleep(0.5)
    here, there = consumers.got["here"], consumers.got["there"]
    assert not set(here) & set(there)
    assert sorted(here + there) == sorted(values)
    assert len(there) == outcome["transferred"] > 100
    assert sides.there.depth("orders")["unconfirmed"] == 0
    assert sides.here.depth("orders")["transferring"] == 0
    gone = [one for one in sides.here.events("orders") if one.event == EventKind.TRANSFERRED]
    assert sum(len(some) for one in gone for some in one.messages) == outcome["transferred"]


@pytest.mark.feature("Q17", "L9")
def test_deadlines_and_schedules_are_the_same_to_the_millisecond(sides: Sides) -> None:
    with sides.there.queue("single") as queue:
        queue.pause()
    now_ms = broker_now_ms()
    for number in range(20):
        sides.here.write("single", f"relative {number}", headers=[("lapse-ttl-ms", b"%d" % (900_000 + number))])
        sides.here.write("single", "absolute", headers=[("lapse-expires-at-ms", b"%d" % (now_ms + 1_000_000 + number))])
    sides.here.write("single", "for ever")
    later = [("lapse-enqueue-at-ms", b"%d" % (now_ms + 600_000)), ("lapse-ttl-ms", b"70000")]
    sides.here.write("single", "later", headers=later)
    until(lambda: len(states_with_deadlines(sides.here, "single")) == 42, "42 messages")
    before = states_with_deadlines(sides.here, "single")
    assert sides.transfer("single", "--all", "--dry-run") == all_go(42)
    assert states_with_deadlines(sides.here, "single") == before
    assert sides.transfer("single", "--all")["transferred"] == 42
    assert states_with_deadlines(sides.there, "single") == before
    assert states_with_deadlines(sides.here, "single") == []
    assert {state for state, *_ in before} == {"available", "scheduled"}
    with sides.there.queue("single") as queue:
        assert queue.purge()["removed"] == 42
        queue.resume()


@pytest.mark.feature("Q17")
@pytest.mark.parametrize("moment", cases(["put"], long=["confirm", "accept"]))
def test_a_transfer_that_is_killed_is_brought_to_its_end(sides: Sides, moment: str) -> None:
    name = f"k-{moment}"
    values = [f"{moment} {number}".encode() for number in range(5)]
    with Consumers(sides, "orders") as consumers:
        with sides.here.queue("orders") as queue:
            queue.pause()
        written = sides.here.write("orders", *values)
        until(lambda: sides.here.depth("orders")["available"] == 5, "five messages")
        bookmarks = [f"--bookmark={sides.here.bookmark('orders', one)}" for one in written]
        sides.killed(moment, "orders", *bookmarks, "--id", name)
        with sides.here.queue("orders") as queue:
            queue.resume()
        assert sides.here.depth("orders")["transferring"] == (5 if moment == "put" else 0)
        if moment != "accept":
            until(lambda: sides.there.depth("orders")["unconfirmed"] == 5, "five unconfirmed messages")
            time.sleep(0.3)
            assert consumers.got == {"here": [], "there": []}
        if moment != "put":
            with sides.mover("orders", name) as mover, pytest.raises(TransferError, match=f"--resume {name}"):
                mover.cancel()
        outcome = sides.transfer("orders", "--resume", name)
        assert (outcome["transferred"], outcome["discarded"]) == (5, 5 if moment == "put" else 0)
        consumers.wait(5)
        time.sleep(0.3)
    assert sorted(consumers.got["there"]) == values
    assert not consumers.got["here"]
    with sides.mover("orders", name) as mover:
        assert mover.resume().transferred == 0
    for side in sides:
        counts = side.depth("orders")
        assert (counts["depth"], counts["unconfirmed"]) == (0, 0)


@pytest.mark.feature("Q17")
def test_a_transfer_is_taken_back(sides: Sides) -> None:
    (written,) = sides.here.write("single", "back")
    sides.killed("put", "single", "--bookmark", sides.here.bookmark("single", written), "--id", "back")
    with sides.here.queue("single") as queue:
        (one,) = queue.peek()
        assert (one.state, one.subscription) == ("transferring", "back")
        (result,) = queue.expire([one.bookmark])
        assert result.result == "transferring"
    until(lambda: sides.there.depth("single")["unconfirmed"] == 1, "the record there")
    taken = {"transfer": "back", "returned": 0, "discarded": 0, "given_up": []}
    assert sides.transfer("single", "--cancel", "back") == taken | {"returned": 1, "discarded": 1}
    with sides.mover("single", "back") as mover, pytest.raises(TransferError, match="was cancelled"):
        mover.resume()
    assert sides.transfer("single", "--cancel", "back") == taken
    with sides.here.subscriber("single") as subscriber:
        delivery = next(iter(subscriber.messages(10)))
        assert delivery.value == b"back"
        delivery.acknowledge()
    assert sides.there.depth("single")["unconfirmed"] == 0
    (thrown,) = [one for one in sides.there.events("single") if Reason.WITHDRAWN in one.reasons]
    assert thrown.event == EventKind.EXPIRED


@pytest.mark.feature("Q17", "C57", "C77")
@pytest.mark.parametrize(("moment", "returned"), [("hold", 2), ("accept", 0)])
def test_a_transfer_is_taken_back_when_the_queue_there_was_deleted(sides: Sides, moment: str, returned: int) -> None:
    """What was held comes back. What the queue there had accepted was in it when it was deleted."""
    stem, name = f"going-{moment}", f"gone-{moment}"
    written = sides.here.write(stem, "1", "2")
    bookmarks = [f"--bookmark={sides.here.bookmark(stem, one)}" for one in written]
    sides.killed(moment, stem, *bookmarks, "--id", name)
    with sides.there.queue(stem) as queue:
        if moment == "accept":
            assert queue.purge()["removed"] == 2
        queue.delete()
    error = " ".join(sides.transfer(stem, "--resume", name, code=1)["error"].split())
    assert f"no queue '{sides.there.name(stem)}'" in error
    assert f"--cancel {name}" in error
    error = " ".join(sides.transfer(stem, "--cancel", name, "--to-queue", "mistyped", code=1)["error"].split())
    assert f"transfer {name} goes to {sides.there.name(stem)} at " in error
    given_up = [] if returned else [f"{sides.here.name(stem)}:0:0-1"]
    taken = {"transfer": name, "returned": returned, "discarded": 0, "given_up": given_up}
    assert sides.transfer(stem, "--cancel", name) == taken
    counts = sides.here.depth(stem)
    assert (counts["available"], counts["transferring"]) == (returned, 0)
    assert sides.transfer(stem, "--cancel", name)["returned"] == 0
    if given_up:
        with sides.here.queue(stem) as queue:
            first = Bookmark(sides.here.name(stem), 0, 0)
            assert queue.rewind(first, handed_over=True)["rewound"] == 2


@pytest.mark.feature("Q17", "C57")
@pytest.mark.parametrize(("moment", "returned"), [("put", 2), ("accept", 0)])
def test_a_transfer_is_taken_back_when_the_deployment_there_is_gone(sides: Sides, moment: str, returned: int) -> None:
    """It is reached nowhere. When it is back nevertheless, what was held here is still seen on this side only."""
    name, nowhere = f"nowhere-{moment}", ("--to", "127.0.0.1:1")
    with sides.there.queue("single") as queue:
        queue.pause()
    written = sides.here.write("single", "1", "2")
    bookmarks = [f"--bookmark={sides.here.bookmark('single', one)}" for one in written]
    sides.killed(moment, "single", *bookmarks, "--id", name)
    for option in ("--resume", "--cancel"):
        error = " ".join(sides.transfer("single", option, name, *nowhere, code=1)["error"].split())
        assert f"--cancel {name} --target-is-gone" in error
    done = sides.ended("single", "--cancel", name, "--target-is-gone", *nowhere)
    assert done.returncode == 0, done.stderr
    assert f"Warning: {sides.there.name('single')} at " in done.stderr
    assert "was not asked" in done.stderr
    given_up = [] if returned else [f"{sides.here.name('single')}:0:{written[0].offset}-{written[1].offset}"]
    taken = {"transfer": name, "returned": returned, "discarded": 0, "given_up": given_up}
    assert json.loads(done.stdout) == taken
    counts = sides.here.depth("single")
    assert (counts["available"], counts["transferring"]) == (returned, 0)
    discarded = 2 if moment == "put" else 0
    until(lambda: sides.there.depth("single")["unconfirmed"] == discarded, "the records there")
    assert sides.transfer("single", "--cancel", name) == taken | {
        "returned": 0, "discarded": discarded, "given_up": []
    }  # fmt: skip
    with sides.there.queue("single") as queue:
        assert queue.purge()["removed"] == 2 - discarded
        queue.resume()
    with sides.here.queue("single") as queue:
        assert queue.purge()["removed"] == returned


@pytest.mark.feature("Q17", "C73", "C24")
def test_a_message_that_nobody_can_digest_dies_wherever_it_is(sides: Sides) -> None:
    """Two of its three deliveries here, the third there, and a restart of the worker in between."""
    trace = ("traceparent", b"00-9df59580d7e83b8c3abd8fedd95628b5-a679a417c747789d-01")
    forged = ("lapse-transfer-counts", b"9/9")  # a publisher's own means nothing
    sides.here.write("poison", "bad", headers=[forged, trace])
    with sides.here.subscriber("poison") as subscriber:
        for count in (1, 2):
            delivery = subscriber.receive(20)
            assert delivery is not None
            assert delivery.delivery_count == count
            delivery.cancel(0 if count == 1 else 1_000)  # so that it does not come once more before the end
    until(lambda: sides.here.depth("poison")["available"] == 1, "it is back")
    assert sides.transfer("poison", "--all")["transferred"] == 1
    sides.there.workers[0].kill()
    sides.there.workers[0].start()
    with sides.there.subscriber("poison") as subscriber:
        delivery = subscriber.receive(40)
        assert delivery is not None
        assert (delivery.delivery_count, delivery.value) == (3, b"bad")
        assert "lapse-transfer-counts" not in dict(delivery.headers)
        assert trace in delivery.headers, "its life is one trace in both deployments"
        delivery.cancel(0)
    (letter,) = sides.there.letters("poison", 1)
    stated = dict(letter.headers())
    assert (stated["__dlq.errors.delivery.count"], stated["lapse-cancel-count"]) == (b"3", b"3")
    assert stated["lapse-reasons"] == b"max_deliveries"
    assert "lapse-transfer-counts" not in stated
    assert stated["traceparent"] == trace[1]


@pytest.mark.feature("Q17", "L11", "L15", "C84")
def test_between_put_and_confirm_it_expires_on_both_sides_and_both_rules_are_called(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(copier: Copier, messages: Iterable[QueuedMessage]) -> NoReturn:
        original(copier, messages)
        raise InterruptedError("the process ends here")

    original = Copier.put
    monkeypatch.setattr(Copier, "put", put)
    already = [len(left(side)) for side in sides]
    with sides.here.queue("orders") as queue:
        queue.pause()
    with Consumers(sides, "orders") as consumers, sides.mover("orders", "short") as mover:
        expires_at_ms = broker_now_ms() + 9_000  # when it is there, however slow the machine
        (written,) = sides.here.write("orders", "short", headers=[("lapse-expires-at-ms", b"%d" % expires_at_ms)])
        until(lambda: sides.here.depth("orders")["available"] == 1, "the message")
        with pytest.raises(InterruptedError):
            mover.run(Choice((BookmarkRange.parse(sides.here.bookmark("orders", written)),)))
        with sides.here.queue("orders") as queue:
            queue.resume()
            assert queue.depth()["transferring"] == 1
        until(lambda: sides.there.depth("orders")["unconfirmed"] == 1, "the record there")
        for side, before in zip(sides, already, strict=True):
            until(lambda side=side, before=before: len(left(side)) > before, "the rule's call", 30)
            assert left(side)[before:] == [["short", ["time_limit"], expires_at_ms]]
            (letter,) = [one for one in side.letters("orders", 1) if one.value() == b"short"]
            read = dead_letter.read(letter)
            assert (read.reasons, read.expires_at_ms) == (("time_limit",), expires_at_ms)
            # The message is here; what expired there never was one, so nobody shall redrive it.
            assert read.unconfirmed_transfer == ("" if side is sides.here else f"{side.name('orders')}/short")
            assert ("not confirmed" in read.message) == (side is sides.there)
        planned = sides.there.lapse("dlq", "redrive", sides.there.name("orders"), "--json").stdout.splitlines()
        assert [one["refused"] for one in map(json.loads, planned)] == ["unconfirmed transfer"]
        monkeypatch.setattr(Copier, "put", original)
        with sides.mover("orders", "short") as mover:
            assert mover.resume() == Outcome()
        time.sleep(0.3)
    assert consumers.got == {"here": [], "there": []}


@pytest.mark.feature("Q17", "Q13", "C51", "C85")
@pytest.mark.parametrize("stem", cases(["total"], long=["deep"]))
def test_beyond_the_target_depth_it_is_advanced_to(sides: Sides, stem: str) -> None:
    topic = "deep" if stem == "deep" else "t2"
    written = sides.here.write(topic, *(f"{number}" for number in range(50)))
    until(lambda: sides.here.depth(stem)["depth"] == 3, "three active messages")
    bookmark = sides.here.bookmark(topic, written[40])
    with Side(sides.here.connection, sides.here.name(stem), 20) as side:
        (answer,) = side.ask(Command(command="transfer", transfer="first", to="there", bookmarks=(bookmark,))).values()
        assert (answer.counts["transferring"], answer.counts["advancing"]) == (0, 1), (
            "it says that it is on its way there"
        )
    assert sides.transfer(stem, "--bookmark", bookmark)["transferred"] == 1
    counts = sides.here.depth(stem)
    assert 40 <= counts["depth"] <= 43
    with sides.there.subscriber(stem) as subscriber:
        delivery = next(iter(subscriber.messages(10)))
        assert delivery.value == b"40"
        delivery.acknowledge()
    # The whole queue goes too, a step at a time.
    assert sides.transfer(stem, "--all")["transferred"] == 49
    assert sides.here.depth(stem)["depth"] == 0
    # What is accepted beyond the depth of the other side waits outside it (C85).
    counts = sides.there.depth(stem)
    assert (counts["depth"], counts["held"]) == (3, 46)


@pytest.mark.feature("Q17", "Q14", "C21", "C82")
def test_a_filter_says_which_messages_go(sides: Sides) -> None:
    """All that match, or those of the bookmarks that do; a dry run counts the same."""
    values = [f'{{"price": {price}}}' for price in (50, 150, 250, 350)]
    written = sides.here.write("single", *values, "no JSON")
    until(lambda: sides.here.depth("single")["available"] == 5, "five messages")
    dear = ["--filter", "/price > 100"]
    for side in sides:
        with side.queue("single") as queue:
            queue.pause()
    assert sides.transfer("single", *dear, "--dry-run") == all_go(3)
    first = BookmarkRange.parse(sides.here.bookmark("single", written[0]))
    some = f"--bookmark={first.topic}:{first.partition}:{first.first}-{first.first + 1}"
    assert sides.transfer("single", some, *dear, "--dry-run") == all_go(1)
    assert sides.transfer("single", some, *dear)["transferred"] == 1
    assert sides.transfer("single", *dear)["transferred"] == 2
    for side, left in zip(sides, (2, 3), strict=True):
        assert side.depth("single")["available"] == left, "a paused queue hands over, and takes over"
        with side.queue("single") as queue:
            queue.resume()
    with sides.there.subscriber("single") as subscriber:
        got = []
        for delivery in subscriber.messages(20):
            got.append((delivery.value or b"").decode())
            delivery.acknowledge()
            if len(got) == 3:
                break
    assert got == values[1:]
    with sides.here.queue("single") as queue:
        assert len([*queue.peek()]) == 2
        queue.purge()
    later = [("lapse-enqueue-at-ms", str(broker_now_ms() + 3_600_000).encode())]
    sides.here.write("single", *values, headers=later)
    until(lambda: sides.here.depth("single")["scheduled"] == 4, "scheduled ones")
    assert sides.transfer("single", *dear, "--dry-run") == all_go(3)
    assert sides.transfer("single", *dear)["transferred"] == 3
    assert [sides.here.depth("single")["scheduled"], sides.there.depth("single")["scheduled"]] == [1, 3]
    with sides.here.queue("single") as queue, sides.there.queue("single") as there:
        queue.purge()
        there.purge()
    refused = sides.transfer("single", "--filter", "/price >", code=1)
    assert "line 1" in refused["error"]


@pytest.mark.feature("Q17", "C42")
def test_the_topic_here_is_created_again_in_the_middle_of_a_transfer(sides: Sides) -> None:
    """What was held leaves with its topic, and what was put there is thrown away: nobody gets it anywhere."""
    written = sides.here.write("single", "old 0", "old 1")
    bookmarks = [f"--bookmark={sides.here.bookmark('single', one)}" for one in written]
    sides.killed("put", "single", *bookmarks, "--id", "here-anew")
    until(lambda: sides.there.depth("single")["unconfirmed"] == 2, "the records there")
    worker = sides.here.workers[0]
    worker.kill()
    sides.here.recreate(sides.here.name("single"))
    sides.here.write("single", "new 0", "new 1")
    worker.start().wait_for_shards(5)
    until(lambda: sides.here.depth("single")["transferring"] == 0, "the old messages leave", 60)
    outcome = sides.transfer("single", "--resume", "here-anew")
    assert (outcome["transferred"], outcome["discarded"]) == (0, 2)
    assert sides.there.depth("single")["unconfirmed"] == 0
    # The same places of the new topic are other messages, and go with a transfer of their own.
    assert sides.transfer("single", "--all")["transferred"] == 2
    with sides.there.subscriber("single") as subscriber:
        got = []
        for delivery in subscriber.messages(20):
            got.append(delivery.value)
            delivery.acknowledge()
            if len(got) == 2:
                break
        assert got == [b"new 0", b"new 1"]
        assert subscriber.receive(0.3) is None


@pytest.mark.feature("Q17", "C42")
def test_the_topic_there_is_created_again_in_the_middle_of_a_transfer(sides: Sides) -> None:
    """What was put is gone with the topic; the transfer puts it again, and it is delivered there, once."""
    written = sides.here.write("single", "a", "b")
    bookmarks = [f"--bookmark={sides.here.bookmark('single', one)}" for one in written]
    sides.killed("put", "single", *bookmarks, "--id", "there-anew")
    until(lambda: sides.there.depth("single")["unconfirmed"] == 2, "the records there")
    worker = sides.there.workers[0]
    worker.kill()
    sides.there.recreate(sides.there.name("single"))
    worker.start().wait_for_shards(5)
    until(lambda: sides.there.depth("single")["unconfirmed"] == 0, "the old records leave", 60)
    assert sides.transfer("single", "--resume", "there-anew")["transferred"] == 2
    with sides.there.subscriber("single") as subscriber:
        got = []
        for delivery in subscriber.messages(20):
            got.append(delivery.value)
            delivery.acknowledge()
            if len(got) == 2:
                break
        assert got == [b"a", b"b"]
        assert subscriber.receive(0.3) is None
    for side in sides:
        counts = side.depth("single")
        assert (counts["depth"], counts["unconfirmed"]) == (0, 0)


@pytest.mark.feature("Q17", "Q15")
def test_top_shows_what_is_under_way_on_both_sides(sides: Sides) -> None:
    written = sides.here.write("single", "x", "y", "z")
    bookmarks = [f"--bookmark={sides.here.bookmark('single', one)}" for one in written[:2]]
    sides.killed("put", "single", *bookmarks, "--id", "shown")
    until(lambda: sides.there.depth("single")["unconfirmed"] == 2, "the records there")
    row_of_figures = r"│ single-\w+ +│ +\d[^\n]*│"
    for side, state, figures in (
        (sides.here, "transferring", {"available": 1, "transferring": 2, "unconfirmed": 0, "depth": 3}),
        (sides.there, "unconfirmed", {"available": 0, "transferring": 0, "unconfirmed": 2, "depth": 0}),
    ):
        shown = on_screen(side, ["top", side.name("single"), "--every", "0.2"], row_of_figures)
        (line,) = [line for line in shown.splitlines() if state in line][:1]
        titles = [title.strip() for title in line.split("┃")]
        row = [cell.strip() for cell in next(filter(re.compile(row_of_figures).search, shown.splitlines())).split("│")]
        assert {title: int(cell) for title, cell in zip(titles, row, strict=True) if title in figures} == figures
    assert sides.transfer("single", "--cancel", "shown")["returned"] == 2
    with sides.here.queue("single") as queue:
        assert queue.purge()["removed"] == 3


@pytest.mark.feature("Q17", "C57")
def test_a_resumed_transfer_of_a_whole_queue_goes_to_its_end(sides: Sides) -> None:
    """Killed in its first round, with more than a round holds still in the queue; what stays is told and goes later."""
    count = 3_000
    sides.here.write("single", *(b"%d" % number for number in range(count)))
    until(lambda: sides.here.depth("single")["available"] == count, "all messages")
    with sides.there.queue("single") as queue:
        queue.pause()
    sides.killed("put", "single", "--all", "--id", "whole")
    assert sides.here.depth("single")["transferring"] == 2_000
    sides.here.write("single", "published later")
    with sides.here.subscriber("single") as subscriber:
        delivery = next(iter(subscriber.messages(15)))  # the first message that was not held yet
        outcome = sides.transfer("single", "--resume", "whole", code=3)
        assert (outcome["transferred"], outcome["left"]) == (count - 1, {"leased": 1})
        subscriber.settle("cancel", [delivery], wait=True)
    outcome = sides.transfer("single", "--resume", "whole")
    assert (outcome["transferred"], outcome["left"]) == (1, {})
    assert sides.transfer("single", "--resume", "whole")["transferred"] == 0
    with sides.here.queue("single") as queue:
        assert queue.purge()["removed"] == 1
    with sides.there.queue("single") as queue:
        assert queue.purge()["removed"] == count
        queue.resume()


@pytest.mark.feature("Q17", "X7")
def test_what_is_too_large_for_the_topic_there_stays_and_the_others_go(sides: Sides) -> None:
    """Also where only those that come together are too large."""
    large = os.urandom(50_000)  # no compression makes it smaller
    take_at_most(sides.there.servers, sides.there.name("single"), 20_000)
    sides.here.write("single", *(os.urandom(5_000) for _ in range(8)), large, os.urandom(5_000))
    until(lambda: sides.here.depth("single")["available"] == 10, "all messages")
    outcome = sides.transfer("single", "--all", "--id", "large", code=3)
    assert (outcome["transferred"], outcome["left"]) == (9, {"too_large": 1})
    assert sides.here.depth("single")["available"] == 1
    for side in sides:
        take_at_most(side.servers, side.name("single"), 2_000_000)
    huge = sides.here.write("single", os.urandom(1_500_000), **{"message.max.bytes": 2_000_000})
    outcome = sides.transfer("single", "--resume", "large")
    assert (outcome["transferred"], outcome["left"]) == (1, {})
    bookmark = sides.here.bookmark("single", huge[0])
    assert sides.transfer("single", "--bookmark", bookmark)["transferred"] == 1
    with sides.there.queue("single") as queue:
        assert queue.purge()["removed"] == 11


@pytest.mark.feature("C57")
def test_an_id_that_never_was_is_an_error_and_nothing_is_to_be_resumed_where_nothing_had_begun(sides: Sides) -> None:
    for what in ("--resume", "--cancel"):
        error = sides.transfer("single", what, "t-typo", code=1)["error"]
        assert "has begun no transfer t-typo" in error
        assert "brought to its end" not in error
    error = sides.transfer("nothing", "--all", code=1)["error"]
    assert "nothing" in error
    assert "brought to its end" not in error
    error = sides.transfer("single", "--all", "--to-topic", "no-topic", code=1)["error"]
    assert "has no topic no-topic" in error
    assert "brought to its end" not in error


@pytest.mark.feature("Q17", "Q26", "X7")
@pytest.mark.parametrize("how", ["--all", "--follow"])
def test_a_topic_that_the_queue_there_does_not_read_gets_nothing(sides: Sides, how: str) -> None:
    """What is put there would leave here, and be in no queue."""
    sides.here.write("single", "stays")
    foreign = sides.there.name("orders")
    done = fork_server.run(
        ["-m", "lapse", "transfer", *sides.command("single", how, "--to-topic", foreign)], os.environ
    )
    assert done.returncode == 1, done.stdout + done.stderr
    error = " ".join(done.stderr.split())
    assert f"does not read the topic {foreign}" in error
    assert f"--to-topic: {sides.there.name('single')}" in error
    assert "brought to its end" not in error
    with sides.here.queue("single") as queue:
        assert queue.depth()["available"] == 1
        assert queue.purge()["removed"] == 1


@pytest.mark.feature("Q17", "C77", "C57")
def test_what_an_unknown_transfer_has_put_there_can_be_discarded(sides: Sides) -> None:
    """As when the queue there was created anew, and reads again what a long finished transfer has put. It blocks the
    queue's deletion (C77)."""
    stated = ("lapse-transfer", f"{sides.there.name('single')}/long-ago".encode())
    sides.there.write("single", "again", headers=[stated, ("lapse-ttl-ms", b"0")])
    until(lambda: sides.there.depth("single")["unconfirmed"] == 1, "the record there")
    with sides.there.queue("single") as queue:
        assert [(one.state, one.subscription) for one in queue.peek()] == [("unconfirmed", "long-ago")]
    assert "has begun no transfer" in sides.transfer("single", "--resume", "long-ago", code=1)["error"]
    assert sides.transfer("single", "--cancel", "long-ago")["discarded"] == 1
    assert sides.there.depth("single")["unconfirmed"] == 0


@pytest.mark.feature("Q17", "C57")
def test_a_transfer_is_resumed_and_cancelled_with_its_own_target_only(sides: Sides) -> None:
    """Also while its shards know nothing of it, because what it should take has stayed."""
    sides.here.write("single", "stays")
    with sides.here.subscriber("single") as subscriber:
        delivery = next(iter(subscriber.messages(10)))
        assert sides.transfer("single", "--all", "--id", "aimed", code=3)["left"] == {"leased": 1}
        subscriber.settle("cancel", [delivery], wait=True)
    other = sides.there.name("orders")
    for what in ("--resume", "--cancel"):
        error = " ".join(sides.transfer("single", what, "aimed", "--to-queue", other, code=1)["error"].split())
        assert f"transfer aimed goes to {sides.there.name('single')} at " in error
        assert f"not to {other} at " in error
    assert sides.here.depth("single")["available"] == 1
    assert sides.there.depth("orders")["depth"] == 0
    assert sides.transfer("single", "--resume", "aimed")["transferred"] == 1
    with sides.there.queue("single") as queue:
        assert queue.purge()["removed"] == 1


@pytest.mark.feature("Q17", "C61", "C57")
def test_a_bookmark_that_a_rewind_has_superseded_hands_nothing_over_and_names_the_one_of_now(sides: Sides) -> None:
    """Of a transfer, of its dry run and of a settlement by hand."""
    (written,) = sides.here.write("single", "again")
    old = sides.here.bookmark("single", written)
    with sides.here.queue("single") as queue:
        until(lambda: queue.depth()["available"] == 1, "the message")
        assert queue.settle("acknowledge", [old])[0].settled
        assert queue.rewind(Bookmark.parse(old))["rewound"] == 1
    now = f"{old}~1"
    done = sides.transfer("single", "--bookmark", old, code=3)
    assert (done["transferred"], done["left"], done["names_now"]) == (0, {"stale": 1}, [now])
    command = ["-m", "lapse", "transfer", *sides.command("single", "--bookmark", old)]
    printed = fork_server.run(command, os.environ)
    assert printed.returncode == 3
    assert f"1 stayed: stale; a rewind has superseded this bookmark, and now it is {now}." in printed.stderr
    assert sides.transfer("single", "--bookmark", old, "--dry-run")["names_now"] == [now]
    settled = sides.here.lapse("queue", "ack", sides.here.name("single"), old)
    assert settled.returncode == 1
    assert f"{old} stale" in settled.stdout
    assert f"now it is {now}" in settled.stderr
    assert sides.transfer("single", "--bookmark", now)["transferred"] == 1
    with sides.there.queue("single") as queue:
        assert queue.purge()["removed"] == 1


@pytest.mark.feature("Q17")
def test_what_is_leased_stays_and_mistakes_are_reported(sides: Sides) -> None:
    written = sides.here.write("single", "held", "free")
    with sides.here.subscriber("single") as subscriber:
        delivery = next(iter(subscriber.messages(10)))
        outcome = sides.transfer("single", "--all", code=3)
        assert (outcome["transferred"], outcome["left"]) == (1, {"leased": 1})
        delivery.acknowledge()
    with sides.mover("single", "late") as mover:
        assert mover.run(Choice((BookmarkRange.parse(sides.here.bookmark("single", written[0])),))) == Outcome()
    name = sides.here.name("single")
    circle = Mover(sides.here.connection, name, sides.here.connection, name, None, "circle")
    with pytest.raises(TransferError, match="to itself"), circle:
        pass
    with pytest.raises(UnknownEntity, match="nothing"), sides.mover("nothing", "none"):
        pass
    with sides.there.subscriber("single") as subscriber:
        for delivery in subscriber.messages(1):
            delivery.acknowledge()


@pytest.mark.feature("Q17", "C57")
def test_another_transfer_that_holds_messages_is_named(sides: Sides) -> None:
    sides.here.write("single", "1", "2")
    sides.killed("put", "single", "--all", "--id", "first")
    outcome = sides.transfer("single", "--all", "--id", "second", code=3)
    assert (outcome["left"], outcome["held_by"]) == ({"transferring": 2}, ["first"])
    planned = sides.transfer("single", "--all", "--dry-run")
    assert (planned["left"], planned["held_by"]) == ({"transferring": 2}, ["first"])
    shown = fork_server.run(["-m", "lapse", "transfer", *sides.command("single", "--all")], os.environ)
    assert "2 stayed: transferring; another transfer holds them, first: end it with --resume" in shown.stderr
    done = sides.transfer("single", "--resume", "first")
    assert (done["transferred"], done["left"], done["held_by"]) == (2, {}, [])
    with sides.there.queue("single") as queue:
        assert queue.purge()["removed"] == 2
