"""`lapse transfer --follow` between two real deployments: messages go where consumers wait, whatever is killed."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator

import pytest

from lapse.embedded import EmbeddedKafka
from lapse.transfer.copier import TakenOver
from lapse.transfer.follower import Follower
from support.kafka.log import until
from support.processes import fork_server
from support.processes.deployment import Deploy, broker_now_ms
from support.processes.sides import Consumer, Sides
from support.suite import command

QUEUES = {
    "orders": {"expiration": "enabled", "partitions": 2, "lease_period": "10m"},
    "flights": {"expiration": "enabled", "ordering": "total", "barrier": "/b = 1"},
    "short": {"expiration": "enabled"},
}

IMPATIENT = """
import sys
from lapse.transfer import acceptance
acceptance._PATIENCE_S = 1.0
from lapse.cli import main
main(["transfer", *sys.argv[1:]])
"""
"""A program that takes the command's arguments, and waits for a second only until the queue there has read."""


@pytest.fixture(scope="module")
def sides(kafka: str, deploy: Deploy) -> Iterator[Sides]:
    with EmbeddedKafka() as other:
        both = Sides(deploy(QUEUES), deploy(QUEUES, servers=other.bootstrap_servers))
        for one in both:
            one.apply().worker()
        for one in both:
            one.workers[0].wait_for_shards(4)
        yield both


@pytest.mark.long
@pytest.mark.feature("Q26", "C73", "L9")
def test_whatever_is_killed_nothing_is_lost_nor_delivered_on_both_sides(sides: Sides) -> None:
    now_ms = broker_now_ms()
    deadlines = {b"%d" % number: now_ms + 3_600_000 + number for number in range(250)}
    for value, expires_at_ms in deadlines.items():
        headers = [("lapse-expires-at-ms", b"%d" % expires_at_ms)]
        sides.here.write("orders", value, partition=int(value) % 2, headers=headers)
    until(lambda: sides.here.depth("orders")["available"] == len(deadlines), "all messages")
    with Consumer(sides.there, "orders", 10, 0.005) as there:
        for moment in ("put", "confirm", "accept"):
            sides.killed(moment, "orders", "--follow")
        with Consumer(sides.here, "orders", 2, 0.05) as here:
            with sides.following("orders") as follower:
                until(lambda: len(there.got) > 60, "messages there")
                follower.kill()
            for side in sides:
                side.workers[0].kill()
                side.workers[0].start().wait_for_shards(4)
            with sides.following("orders"):
                until(lambda: len(here.got) + len(there.got) >= len(deadlines), "all of them", 60)
                until(lambda: not sides.here.depth("orders")["depth"], "nothing left here", 30)
                until(lambda: not sides.there.depth("orders")["depth"], "nothing left there", 30)
    assert not here.got.keys() & there.got.keys()
    assert {**here.got, **there.got} == deadlines
    assert here.got
    assert len(there.got) > 60
    assert sides.there.depth("orders")["unconfirmed"] == 0


@pytest.mark.feature("Q26", "Q14", "C73", "L9")
def test_consumers_with_filters_get_what_matches_whatever_is_killed(sides: Sides) -> None:
    """A consumer there with a filter, one here with another one: one that may have it takes each message, once.

    Some of what is published there only the consumer here may have, so messages go both ways at once.
    """
    now_ms = broker_now_ms()
    deadlines: dict[bytes, int | None] = {}
    for number in range(240):
        value = b'{"n": %d, "of": "%s"}' % (number, (b"here", b"there", b"nobody")[number % 3])
        deadlines[value] = now_ms + 3_600_000 + number
        headers = [("lapse-expires-at-ms", b"%d" % deadlines[value])]
        sides.here.write("orders", value, partition=number % 2, headers=headers)
    until(lambda: sides.here.depth("orders")["available"] == len(deadlines), "all messages")
    for number in range(240, 280):
        value = b'{"n": %d, "of": "home"}' % number
        deadlines[value] = now_ms + 3_600_000 + number
        headers = [("lapse-expires-at-ms", b"%d" % deadlines[value])]
        sides.there.write("orders", value, partition=number % 2, headers=headers)
    home = {value for value in deadlines if b"home" in value}
    with Consumer(sides.there, "orders", 7, 0.005, "/of IN ('there', 'here')") as there:
        for moment in ("put", "confirm", "accept"):
            sides.killed(moment, "orders", "--follow")
        with Consumer(sides.here, "orders", 2, 0.05, "/of IN ('here', 'home')") as here:
            with sides.following("orders") as follower, sides.following("orders", back=True) as backwards:
                until(lambda: len(there.got) > 30 and home & here.got.keys(), "messages on both ways", 30)
                follower.kill()
                backwards.kill()
            for side in sides:
                side.workers[0].kill()
                side.workers[0].start().wait_for_shards(4)
            with sides.following("orders"), sides.following("orders", back=True):
                until(lambda: len(here.got) + len(there.got) >= 200, "all that match", 60)
                until(lambda: sides.here.depth("orders")["depth"] == 80, "what nobody may have stays", 30)
                until(lambda: not sides.there.depth("orders")["depth"], "nothing waits there", 30)
                sides.here.write("orders", '{"of": "there", "late": 1}')  # the filter is tried on what arrives, too
                until(lambda: len(here.got) + len(there.got) >= 201, "the late one", 30)
                assert sides.here.depth("orders")["available"] == 80
                with Consumer(sides.there, "orders", 10) as rest:  # no filter: the others are wanted now
                    until(lambda: len(rest.got) >= 80, "the others", 60)
    parts = [here.got, there.got, rest.got]
    assert sum(map(len, parts)) == len({key for part in parts for key in part}) == 281
    assert {key: ms for part in parts for key, ms in part.items() if b"late" not in key} == deadlines
    assert here.got
    assert home <= here.got.keys()
    assert all(b'"here"' in key for key in here.got.keys() - home)
    assert not any(b'"nobody"' in key for key in there.got)
    assert sides.there.depth("orders")["unconfirmed"] == 0


@pytest.mark.feature("Q26", "X4", "X7")
def test_a_filter_that_changes_its_meaning_on_the_way_asks_for_nothing(sides: Sides) -> None:
    with sides.following("short"), Consumer(sides.there, "short", 5, 0, "OFFSET() >= 0 OR /n = 1") as there:
        sides.here.write("short", '{"n": 1}')
        with Consumer(sides.there, "short", 5, 0, "/n = 2") as other:
            sides.here.write("short", '{"n": 2}')
            until(lambda: other.got or there.got, "the second one", 30)
        until(lambda: sides.there.depth("short")["depth"] == 0, "it is settled")
        assert [*there.got, *other.got] == [b'{"n": 2}']
        assert sides.here.depth("short")["available"] == 1
    with Consumer(sides.here, "short", 5) as here:
        until(lambda: len(here.got) == 1, "the first one")


@pytest.mark.feature("Q26", "C73")
def test_messages_go_to_where_consumers_are_and_back_when_nobody_there_may_have_them(sides: Sides) -> None:
    with sides.following("orders"), sides.following("orders", back=True):
        with Consumer(sides.there, "orders", 5, 60) as slow:
            sides.here.write("orders", *(f"to {number}" for number in range(20)))
            until(lambda: sides.there.depth("orders")["depth"] == 5, "as many as there is room for")
            time.sleep(1)
            assert sides.here.depth("orders")["available"] == 15
        assert len(slow.got) == 1
        stay = sides.there.depth("orders")["depth"]
        assert stay >= 4
        with contextlib.ExitStack() as there:
            there.enter_context(sides.there.subscriber("orders", 0))  # it has no room, but may have them
            with Consumer(sides.here, "orders", 5) as here:
                sides.there.write("orders", *(f"back {number}" for number in range(20)))
                until(lambda: len(here.got) == 35, "what was not handed over", 30)
                time.sleep(0.5)
                assert sides.there.depth("orders")["depth"] == stay
                there.close()
                until(lambda: len(here.got) == 35 + stay, "what was handed over, too", 30)
    assert sides.there.depth("orders")["depth"] == 0


@pytest.mark.feature("Q26", "C73")
def test_three_deployments_share_messages_and_none_crosses_two_links(sides: Sides, deploy: Deploy) -> None:
    third = deploy({"orders": QUEUES["orders"]}, servers=sides.there.servers).apply()
    third.worker().wait_for_shards(2)
    to_third, onwards = Sides(sides.here, third), Sides(sides.there, third)
    values = {b"shared %d" % number for number in range(100)}
    with sides.following("orders") as follower, to_third.following("orders"):
        with Consumer(sides.there, "orders", 5, 0.01) as there, Consumer(third, "orders", 5, 0.01) as at_third:
            for number, value in enumerate(sorted(values)):
                sides.here.write("orders", value, partition=number % 2)
            until(lambda: there.got and at_third.got, "messages at both", 60)
            follower.kill()
            sides.here.workers[0].kill()
            sides.here.workers[0].start().wait_for_shards(4)
            with sides.following("orders"):
                until(lambda: len(there.got) + len(at_third.got) >= len(values), "all of them", 60)
                for one in (sides.here, sides.there, third):
                    until(lambda one=one: not one.depth("orders")["depth"], "nothing is left", 30)
        assert not there.got.keys() & at_third.got.keys()
        assert there.got.keys() | at_third.got.keys() == values
    with sides.following("orders"), sides.there.subscriber("orders", 3):
        sides.here.write("orders", *(f"once {number}" for number in range(3)))
        until(lambda: sides.there.depth("orders")["depth"] == 3, "handed over once", 30)
    with onwards.following("orders"), Consumer(third, "orders", 10) as at_third:
        sides.there.write("orders", "its own")
        until(lambda: at_third.got, "what was published there", 30)
        assert [*at_third.got] == [b"its own"]
        until(lambda: sides.there.depth("orders")["available"] == 3, "what came from here stays")
        assert [*at_third.got] == [b"its own"]
    with Consumer(sides.there, "orders", 10) as there:
        until(lambda: len(there.got) == 3, "they are delivered there", 30)


@pytest.mark.feature("Q26", "Q17", "X7")
def test_what_the_queue_there_cannot_read_yet_arrives_later(sides: Sides) -> None:
    """As behind another producer's open transaction. The message has left here, so the process must not give up."""
    topic = sides.there.name("short")
    other = sides.there.connection.producer(transactional_id=f"open-{topic}")
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(topic, b"never")
    assert other.flush(30) == 0
    log = sides.here.directory / "impatient.log"
    with log.open("ab") as output:
        follower = fork_server.start(["-c", IMPATIENT, *sides.command("short", "--follow")], output, os.environ)
    try:
        with Consumer(sides.there, "short", 5) as there:
            sides.here.write("short", "1")
            until(lambda: "has not read" in log.read_text("utf-8"), "it waits", 60)
            sides.here.write("short", "2")
            other.abort_transaction(30)
            until(lambda: len(there.got) == 2, "both", 60)
    finally:
        follower.terminate()
        assert follower.wait(30) == 0, log.read_text("utf-8")
    assert [*there.got] == [b"1", b"2"]


@pytest.mark.feature("Q26", "X7")
def test_a_process_that_was_taken_over_does_not_take_back_the_link(sides: Sides) -> None:
    """As when a broker did not answer, so that it tries again only after the later process has begun."""
    here, there, name = sides.here.connection, sides.there.connection, sides.there.name("short")
    at_once = threading.Event()
    at_once.set()
    began = []
    for _ in range(2):
        with Follower(here, sides.here.name("short"), there, name, None) as process:
            process.follow(at_once)
            began.append(process.generation)
    first, second = began
    taken_over = pytest.raises(TakenOver, match="another process has taken over")
    with Follower(here, sides.here.name("short"), there, name, None) as process, taken_over:
        process.follow(at_once, first)
    with Follower(here, sides.here.name("short"), there, name, None) as process:
        process.follow(at_once, second)
        assert process.generation == second + 1


@pytest.mark.feature("Q26", "C73", "Q12")
def test_neither_a_barrier_nor_what_is_behind_it_goes(sides: Sides) -> None:
    sides.here.write("flights", '{"n": 1}', '{"n": 2, "b": 1}', '{"n": 3}')
    until(lambda: sides.here.depth("flights")["available"] == 3, "three messages")
    with sides.following("flights"), Consumer(sides.there, "flights", 10) as there:
        until(lambda: there.got, "the first one")
        time.sleep(0.5)
    assert [*there.got] == [b'{"n": 1}']
    assert sides.here.depth("flights")["available"] == 2


@pytest.mark.feature("Q26", "C74", "X7")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--follow", "--all"], "--all and --follow exclude each other"),
        (["--follow", "--id", "t"], "names its transfers itself"),
        (["--follow", "--dry-run"], "names its transfers itself"),
        (["--all", "--max-clock-skew", "1s"], "--max-clock-skew needs --follow"),
        (["--follow", "--max-clock-skew", "soon"], "max_clock_skew"),
    ],
)
def test_what_cannot_be_followed_is_refused(options: list[str], message: str) -> None:
    done = command.run("transfer", "orders", "--to", "localhost:1", *options)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.feature("Q26", "X7")
@pytest.mark.at_length  # it takes ten seconds; test_retries.py has the rule
def test_it_ends_when_the_queue_there_was_deleted_and_stays_away(sides: Sides) -> None:
    log = sides.here.directory / "ended.log"
    with log.open("ab") as output:
        follower = fork_server.start(
            ["-m", "lapse", "transfer", *sides.command("short", "--follow")], output, os.environ
        )
    try:
        with Consumer(sides.there, "short", 5):
            sides.here.write("short", "1")
            until(lambda: sides.here.depth("short")["depth"] == 0, "it works", 60)
        logged = len(log.read_text("utf-8"))
        name = sides.there.name("short")
        done = command.run("queue", "delete", name, "-b", sides.there.servers, "--force", "--yes")
        assert done.returncode == 0, done.stderr
        sides.here.write("short", "2")
        assert follower.wait(60) == 1
    finally:
        follower.kill()
    log_line = log.read_text("utf-8")[logged:]
    assert log_line.count("WARNING") <= 3, log_line
    assert f"Error: {sides.there.servers}: there is no queue '{name}'" in log_line
    until(lambda: sides.here.depth("short")["available"] == 1, "it is back")
