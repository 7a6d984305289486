"""`lapse explain`: the life of one message, told from the topics."""

import json
import subprocess
import time

import pytest
from confluent_kafka import TopicPartition

from lapse.protocol import event, header, topic
from lapse.protocol.bookmark import BookmarkRange
from lapse.transfer.mover import Choice, Mover
from lapse_client import Queue, SowClient
from lapse_client.error import LapseError, UnknownEntity
from lapse_client.letters.dead_letter import read
from lapse_client.reading.history import history
from support.kafka.created_topic import stamp_by_producers
from support.kafka.log import until, write
from support.processes.deployment import Deploy, Deployment
from support.suite import command

QUEUES = {
    "life": {"max_cancels": 1, "expiration": "enabled"},
    "other": {"topics": ["life{}"], "dead_letter": False},
    "quiet": {},
    "ended": {"expiration": "enabled"},
    "begin": {"forward_to": "target{}"},
    "target": {"max_cancels": 1, "expiration": "enabled"},
    "last": {},
    "mourned": {},
    "dlq.mourned": {},
    "sent": {"forward_to": "received{}"},
    "received": {"expiration": "enabled"},
    "dlq.received": {"expiration": "enabled"},
    "unstamped": {},
    "hasty": {},
    "anew": {},
    "anew.once": {"topics": ["anew{}"], "semantics": "at-most-once"},
    "anew.dead": {"topics": ["anew{}"]},
    "once": {"semantics": "at-most-once", "forward_to": "handed{}"},
    "again": {"topics": ["once{}"], "forward_to": "handed{}"},
    "handed": {},
    "moved": {},
}

pytestmark = pytest.mark.feature("D6")


def explain(deployment: Deployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command.run("explain", *arguments, environment=deployment.environment())


def lived(deployment: Deployment) -> str:
    """A message that is cancelled twice, among neighbours that are not; returns its bookmark."""
    written = deployment.write("life", "a", "b", "c", headers=[("lapse-ttl-ms", b"600000")])
    bookmark = deployment.bookmark("life", written[1])
    with deployment.subscriber("life", 3, payload="reference") as subscriber:
        for _ in range(3):
            delivery = subscriber.receive(10)
            assert delivery is not None
            subscriber.settle("cancel" if delivery.value == b"b" else "acknowledge", [delivery], wait=True)
        again = subscriber.receive(10)
        assert again is not None
        assert str(again.bookmark) == bookmark
        subscriber.settle("cancel", [again], wait=True)
    with deployment.subscriber("other", 3) as subscriber:
        for _ in range(3):
            delivery = subscriber.receive(10)
            assert delivery is not None
            subscriber.settle("acknowledge", [delivery], wait=True)
    deployment.letters("life", 1)
    return bookmark


def test_every_step_of_a_life_is_reported_in_order(served: Deployment) -> None:
    bookmark = lived(served)
    life, other = served.name("life"), served.name("other")
    until(lambda: any(one.what == "dead letter" for one in history(bookmark, connection=served.connection).moments), "")
    moments = history(bookmark, connection=served.connection).moments
    assert moments[0].what == "arrived"
    assert moments[0].facts == {"lapse-ttl-ms": "600000"}
    mine = [moment for moment in moments if moment.entity == life]
    assert [moment.what for moment in mine] == [
        "delivered",
        "cancelled",
        "delivered",
        "cancelled",
        "dead_lettered",
        "dead letter",
    ]
    assert [moment.facts.get("delivery_count") for moment in mine[:4]] == [1, 1, 2, 2]
    assert mine[4].facts["reasons"] == ["max_cancels"]
    assert mine[5].facts["lapse_id"] == f"{life}/{bookmark}/0"
    assert [moment.what for moment in moments if moment.entity == other] == ["delivered", "acknowledged"]
    assert {moment.entity for moment in moments} == {"", life, other}

    shown = explain(served, bookmark)
    assert shown.returncode == 0, shown.stderr
    for words in ("arrived", "delivered", "max_cancels", "dead letter", life, other):
        assert words in shown.stdout
    explained = explain(served, bookmark, "--entity", life, "--json")
    lines = [json.loads(line) for line in explained.stdout.splitlines()]
    assert [line["what"] for line in lines] == ["arrived", *(moment.what for moment in mine)]
    assert lines[-1]["shown_by"].startswith(f"dlq.{life}:0:")
    assert (lines[-1]["message"], lines[-1]["fault"]) == (bookmark, "cancelled more often than allowed")


def test_a_life_in_a_deleted_queue_is_reported_from_its_events_and_letters(served: Deployment) -> None:
    bookmark = served.bookmark("ended", served.write("ended", "x", headers=[("lapse-ttl-ms", b"1")])[0])
    (letter,) = served.letters("ended", 1)
    with Queue(served.name("ended"), connection=served.connection) as queue:
        queue.delete(force=True)
    until(lambda: topic.commands(served.name("ended")) not in served.connection.partitions(), "its topics are removed")
    for entity in (None, served.name("ended")):
        moments = history(bookmark, entity=entity, connection=served.connection).moments
        assert [moment.what for moment in moments] == ["arrived", "dead_lettered", "dead letter"]
        assert str(moments[-1].shown_by) == f"{letter.topic()}:{letter.partition()}:{letter.offset()}"


@pytest.mark.feature("C6", "Q15")
def test_a_life_that_began_without_a_timestamp_or_in_1970_is_reported(served: Deployment) -> None:
    stamp_by_producers(served.servers, served.name("unstamped"))
    written = [served.write("unstamped", "x", timestamp_ms=stamp_ms)[0] for stamp_ms in (-1, 1)]
    unstamped, early = (served.bookmark("unstamped", one) for one in written)
    until(lambda: served.depth("unstamped")["depth"] == 2, "both messages")
    assert served.depth("unstamped")["oldest_age_ms"] is None
    with served.queue("unstamped") as queue:
        queue.acknowledge([unstamped, early])
    for bookmark, at_ms in ((unstamped, -1), (early, 1)):
        moments = history(bookmark, connection=served.connection).moments
        assert [(one.what, one.at_ms) for one in moments[:1]] == [("arrived", at_ms)]
        assert [one.what for one in moments] == ["arrived", "acknowledged"]
    assert "no timestamp" in explain(served, unstamped).stdout


@pytest.mark.feature("C6")
def test_a_life_before_the_timestamp_of_a_producer_is_reported(served: Deployment) -> None:
    """The producer's clock is fifty minutes ahead. Later records with the right time, or none, tell of the arrival."""
    stamp_by_producers(served.servers, served.name("hasty"))
    ahead_ms = int(time.time() * 1000) + 3_000_000
    hasty = served.bookmark("hasty", served.write("hasty", "x", timestamp_ms=ahead_ms)[0])
    with served.subscriber("hasty", 1) as subscriber:
        delivery = subscriber.receive(10)
        assert delivery is not None
        subscriber.settle("acknowledge", [delivery], wait=True)
    for following_ms in (0, ahead_ms, ahead_ms - 2_900_000):
        if following_ms:
            served.write("hasty", "y", timestamp_ms=following_ms)
        moments = history(hasty, connection=served.connection).moments
        assert [one.what for one in moments] == ["arrived", "delivered", "acknowledged"]
        assert moments[0].at_ms == ahead_ms


@pytest.mark.feature("C42", "C6")
def test_what_happened_to_an_earlier_message_of_the_bookmark_is_left_out(served: Deployment) -> None:
    """Producers stamp the records, so that a life may begin before its record's timestamp."""
    name = served.name("anew")
    ends = {"anew": "acknowledge", "anew.once": "acknowledge", "anew.dead": "expire"}
    lives = {
        served.name("anew"): ["delivered", "acknowledged"],
        served.name("anew.once"): ["delivered_at_most_once", "delivered"],
        served.name("anew.dead"): ["delivered", "dead_lettered", "dead letter"],
    }

    def found() -> dict[str, list[str]]:
        moments = history(bookmark, connection=served.connection).moments
        assert moments[0].what == "arrived"
        return {entity: [one.what for one in moments if one.entity == entity] for entity in lives}

    for _ in range(2):
        stamp_by_producers(served.servers, name)
        bookmark = served.bookmark("anew", served.write("anew", "x")[0])
        for stem in ends:
            until(lambda stem=stem: served.depth(stem)["depth"] == 1, "the message of this topic", 40)
        assert found() == {entity: [] for entity in lives}
        for stem, how in ends.items():
            with served.subscriber(stem, 1) as subscriber:
                delivery = subscriber.receive(20)
                assert delivery is not None
                subscriber.settle(how, [delivery], wait=True)
        until(lambda: found() == lives, "the life of the message of this topic")
        served.recreate(name)


def test_what_cannot_be_explained_is_said(served: Deployment) -> None:
    served.write("quiet", "x")
    name = served.name("quiet")
    with pytest.raises(LapseError, match="does not exist: its partition ends before offset 1. Correct the bookmark"):
        history(f"{name}:0:1", connection=served.connection)
    with pytest.raises(UnknownEntity, match=f"there is no partition '{name}:7' .*did you mean '{name}:0'"):
        history(f"{name}:7:1", connection=served.connection)
    with pytest.raises(UnknownEntity, match=f"there is no topic '{name}x' .*did you mean '{name}'") as refused:
        history(f"{name}x:0:1", connection=served.connection)
    assert not {one for one in refused.value.known if one.startswith("__") or one.endswith("-changelog")}
    with pytest.raises(UnknownEntity, match="nobody"):
        history(f"{name}:0:0", entity="nobody", connection=served.connection)
    done = explain(served, f"{name}:0:0~5")
    assert done.returncode == 1
    assert f"nothing is known of {name}:0:0~5: no rewind 5 brought it back" in done.stderr
    done = explain(served, "not a bookmark")
    assert done.returncode == 1
    assert "expected topic:partition:offset" in done.stderr


def chain(deployment: Deployment, bookmark: str) -> set[tuple[str, str, str]]:
    """The steps that are told: what, from where, to where."""
    moments = history(bookmark, connection=deployment.connection).moments
    return {(one.what, one.facts["from"], one.facts["to"]) for one in moments if "from" in one.facts}


@pytest.mark.feature("C59")
def test_a_message_is_followed_through_forward_death_redrive_and_transfer_from_each_end(served: Deployment) -> None:
    """Four records are one life, whichever of them is asked for."""
    queue, last = served.name("target"), served.name("last")
    origin = served.bookmark("begin", served.write("begin", "x", key=b"k")[0])
    served.write("begin", "another", key=b"k")
    with served.subscriber("target") as subscriber:
        first = next(iter(subscriber.messages(20)))
        forwarded = str(first.bookmark)
        subscriber.settle("cancel", [first], wait=True)
        again = next(iter(subscriber.messages(20)))
        assert str(again.bookmark) == forwarded
        subscriber.settle("cancel", [again], wait=True)
    served.letters("target", 1)
    with served.queue("target") as client:
        client.pause()
        sent = served.lapse("dlq", "redrive", queue, "--yes")
        assert "1 letter sent" in sent.stdout, sent.stdout + sent.stderr
        until(lambda: client.depth()["available"] == 2, "the other one, and the redriven message")
        _, redriven = (one.bookmark for one in client.peek())
    with Mover(served.connection, queue, served.connection, last, None, "explained") as mover:
        assert mover.run(Choice()).transferred == 2
    with served.queue("last") as client:
        moved = client.peek()[-1].bookmark
    steps = {
        ("forwarded", origin, forwarded),
        ("redriven", forwarded, redriven),
        ("transferred", redriven, moved),
    }
    for bookmark in (origin, redriven):
        assert chain(served, bookmark) == steps, bookmark
    shown = explain(served, moved)
    assert shown.returncode == 0, shown.stderr
    printed = [json.loads(line) for line in explain(served, moved, "--json").stdout.splitlines()]
    assert {one["message"] for one in printed} == {origin, forwarded, redriven, moved}
    (arrived,) = (one for one in printed if one["what"] == "arrived" and one["message"] == moved)
    assert arrived[header.TRANSFER_FROM].startswith(f"{queue} at ")
    for words in ("forwarded", "redriven", "transferred", "max_cancels"):
        assert words in shown.stdout
    assert {one.what for one in history(origin, entity=last, connection=served.connection).moments} == {"arrived"}


@pytest.mark.feature("C57", "C59", "C61", "C62", "Q6", "Q17")
def test_a_message_that_was_forwarded_at_most_once_or_a_second_time_is_followed(served: Deployment) -> None:
    """A rewind brings it back to both queues over its topic, and both forward it again. A transfer takes all."""
    (written,) = served.write("once", "x")
    origin, tail = served.bookmark("once", written), served.tail(served.name("handed"))
    until(lambda: len(tail.drain()) == 2, "both have forwarded it")
    for stem in ("once", "again"):
        with served.queue(stem) as client:
            client.rewind("beginning", handed_over=True)
    until(lambda: len(tail.drain()) == 4, "both have forwarded it again")
    steps = set()
    for record in tail.drain():
        source = dict(record.headers() or ())[header.MESSAGE_ID].decode().split("/")[2]
        steps.add(("forwarded", source, f"{record.topic()}:0:{record.offset()}"))
    assert {source for _, source, _ in steps} == {origin, f"{origin}~1"}
    assert chain(served, origin) == steps
    again = next(one for one in steps if one[1] != origin)
    assert again in chain(served, again[2])
    listed = list(map(str, history(origin, connection=served.connection).moments))
    assert len(listed) == len(set(listed)), "nothing is shown twice"
    with served.queue("handed") as client:
        client.purge()
        client.rewind("beginning")
    with Mover(served.connection, tail.topic, served.connection, served.name("moved"), None, "rewound") as mover:
        assert mover.run(Choice()).transferred == 4
    (moved,) = (one for one in chain(served, again[2]) if one[:2] == ("transferred", f"{again[2]}~1"))
    assert moved in chain(served, moved[2])


@pytest.mark.feature("C54", "C59")
def test_the_letter_of_a_forwarded_message_is_a_letter_and_was_not_forwarded(served: Deployment) -> None:
    """Its message id is that of the forwarded message, and its deadline that of the dead one."""
    origin = served.bookmark("sent", served.write("sent", "x", headers=[("lapse-ttl-ms", b"1")])[0])
    (letter,) = served.letters("received", 1)
    with served.subscriber("dlq.received") as subscriber:
        first = next(iter(subscriber.messages(20)))
        assert (first.value, first.expires_at_ms) == (b"x", None)
        first.acknowledge()
    dead = f"{letter.topic()}:{letter.partition()}:{letter.offset()}"
    received = str(read(letter).origin)
    steps = {("forwarded", origin, received), ("left_as_letter", received, dead)}
    for bookmark in (origin, dead):
        assert chain(served, bookmark) == steps, bookmark


@pytest.mark.feature("C54", "C59")
def test_the_letter_of_a_letter_keeps_its_first_origin_and_is_that_letter_again_when_it_is_redriven(
    served: Deployment,
) -> None:
    name = served.name("mourned")
    letters = f"dlq.{name}"
    origin = served.bookmark("mourned", served.write("mourned", "x", key=b"k")[0])
    for stem in ("mourned", "dlq.mourned"):
        with served.subscriber(stem) as subscriber:
            delivery = subscriber.receive(20)
            assert delivery is not None
            subscriber.settle("expire", [delivery], wait=True)
    served.letters("dlq.mourned", 1)
    first = ("left_as_letter", origin, f"{letters}:0:0")
    assert chain(served, origin) == {first}, "no queue has the letter's letter"
    assert chain(served, f"dlq.{letters}:0:0") == {first, ("left_as_letter", f"{letters}:0:0", f"dlq.{letters}:0:0")}
    assert "1 letter sent" in served.lapse("dlq", "redrive", f"dlq.{letters}", "--yes").stdout
    one, again = (read(message) for message in served.tail(letters).wait(2))
    shown = {fact: value for fact, value in again.facts().items() if fact not in ("letter", "redriven_count")}
    assert shown.items() <= one.facts().items()
    assert str(again.origin) == origin
    steps = chain(served, str(again.bookmark))
    assert {first, ("redriven", f"{letters}:0:0", str(again.bookmark))} <= steps
    assert "1 letter sent" in served.lapse("dlq", "redrive", name, "--yes").stdout, "it is the same letter"
    assert served.tail(name).wait(2)[1].value() == b"x"


@pytest.mark.feature("C41")
def test_a_record_of_an_aborted_transaction_is_distinguished_from_one_that_is_gone(served: Deployment) -> None:
    name = served.name("quiet")
    producer = served.connection.producer(**{"transactional.id": name})
    producer.init_transactions(20)
    producer.begin_transaction()
    offsets: list[int | None] = []
    producer.produce(name, b"taken back", on_delivery=lambda _, message: offsets.append(message.offset()))
    producer.flush(20)
    producer.abort_transaction(20)
    aborted = f"{name}:0:{offsets[0]}"
    # Kafka answers before the transaction's end is in the topic.
    until(lambda: history(aborted, connection=served.connection).moments[0].what == "aborted", "its end")
    (served_behind,) = served.write("quiet", "x")
    explained = explain(served, aborted)
    assert (explained.returncode, "its transaction was aborted" in explained.stdout) == (0, True), explained.stdout
    (moment,) = history(aborted, connection=served.connection).moments
    assert (moment.what, moment.facts) == ("aborted", {})
    end = explain(served, f"{name}:0:{served_behind.offset - 1}")
    assert (end.returncode, "no record has this offset" in end.stdout) == (1, True), end.stdout


@pytest.mark.feature("C41")
def test_a_record_behind_an_open_transaction_is_distinguished_from_one_that_does_not_exist(served: Deployment) -> None:
    name = served.name("quiet")
    producer = served.connection.producer(**{"transactional.id": name})
    producer.init_transactions(20)
    producer.begin_transaction()
    offsets: list[int | None] = []
    producer.produce(name, b"open", on_delivery=lambda _, message: offsets.append(message.offset()))
    producer.flush(20)
    (behind,) = served.write("quiet", "x")
    explained = explain(served, f"{name}:0:{behind.offset}")
    words = f"behind a transaction that begins at offset {offsets[0]} and is neither committed nor aborted"
    assert (explained.returncode, words in " ".join(explained.stdout.split())) == (0, True), (
        explained.stdout + explained.stderr
    )
    found = history(f"{name}:0:{offsets[0]}", connection=served.connection)
    assert ([moment.what for moment in found.moments], found.found) == (["hidden"], False)
    with pytest.raises(LapseError, match=f"its partition ends before offset {behind.offset + 1}"):
        history(f"{name}:0:{behind.offset + 1}", connection=served.connection)
    committed = served.connection.consumer()
    watched: list[str] = []

    def commit(what: str, *_: int) -> None:
        if not watched:
            producer.commit_transaction(20)
            place = TopicPartition(name, 0)
            until(lambda: committed.get_watermark_offsets(place, 20)[1] > behind.offset, "its end")
        watched.append(what)

    found = history(f"{name}:0:{offsets[0]}", connection=served.connection, watcher=commit)
    committed.close()
    assert watched
    assert (found.moments[0].what, found.found) == ("hidden", False), "it was not aborted: it ended meanwhile"
    assert history(f"{name}:0:{offsets[0]}", connection=served.connection).found


@pytest.mark.feature("C59")
def test_a_record_of_a_sow_topic_names_the_version_before_and_the_one_behind(deploy: Deploy) -> None:
    deployment = deploy({})
    deployment.configure({}, {"prices": {"expiration": "enabled"}})
    deployment.apply().worker().wait_for_shards(1)
    bookmarks = []
    with SowClient(deployment.name("prices"), connection=deployment.connection) as client:
        for number in range(3):
            (written,) = deployment.write("prices", f'{{"n": {number}}}', key=b"k")
            bookmarks.append(deployment.bookmark("prices", written))
            until(lambda: any(str(one.bookmark) == bookmarks[-1] for one in client.query()), "the version")
    first = ("replaced", bookmarks[0], bookmarks[1])
    second = ("replaced", bookmarks[1], bookmarks[2])
    assert chain(deployment, bookmarks[0]) == {first}
    assert chain(deployment, bookmarks[1]) == {first, second}
    assert chain(deployment, bookmarks[2]) == {second}


@pytest.mark.feature("C59")
def test_a_version_that_was_replaced_in_the_step_of_its_arrival_stands_between_its_neighbours(deploy: Deploy) -> None:
    """Only the last of several versions that come in one step is on the state topic; nothing is said of a repeat."""
    here = deploy({})
    here.configure({}, {"many": {}})
    here.apply()
    name = here.name("many")
    written = here.write("many", *(f'{{"n": {number}}}' for number in range(5)), None, key=b"k")
    bookmarks = [here.bookmark("many", one) for one in written]
    for at in (0, 4):
        write(here.servers, topic.sow(name), [b"{}"], key=b"k", headers=[(header.BOOKMARK, bookmarks[at].encode())])
    third = (BookmarkRange(name, 0, 3, 3),)
    repeated = event.Event(entity=name, event=event.EventKind.REPEATED, at_ms=1, partition=0, messages=third)
    write(here.servers, topic.events(name), [event.encode(repeated)])
    first, second = ("replaced", bookmarks[0], bookmarks[2]), ("replaced", bookmarks[2], bookmarks[4])
    assert chain(here, bookmarks[2]) == {first, second}
    assert chain(here, bookmarks[4]) == {("replaced", bookmarks[0], bookmarks[4])}
    assert not chain(here, bookmarks[3]), "it was a repeat"
    assert not chain(here, bookmarks[5]), "it was a delete"


@pytest.mark.feature("C48")
def test_a_queue_that_does_not_answer_is_named(deploy: Deploy) -> None:
    here = deploy({"quiet": {}}).apply()
    worker = here.worker().wait_for_shards(1)
    written = here.write("quiet", b"x")
    with here.subscriber("quiet") as subscriber:
        assert subscriber.receive(20) is not None
        bookmark = here.bookmark("quiet", written[0])
        assert explain(here, bookmark).stderr == ""
        worker.kill()
        done = explain(here, bookmark)
        assert done.returncode == 0
        assert f"no answer from {here.name('quiet')}. " in done.stderr
