"""What has left a queue comes back from Kafka's log, whatever is killed meanwhile (Q22, C61 to C63)."""

from __future__ import annotations

import orjson
import pytest

from lapse.protocol.event import EventKind
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment


def consumed(here: Deployment, stem: str, count: int, **options: object) -> list[str]:
    """Receive and acknowledge so many messages; their bookmarks without the topic, in order."""
    found: list[str] = []
    with here.subscriber(stem, 100, **options) as subscriber:
        for delivery in subscriber.messages(timeout=10):
            found.append(str(delivery.bookmark).partition(":")[2])
            delivery.acknowledge()
            if len(found) == count:
                break
    return found


def bookmarks_of(here: Deployment, stem: str, kind: EventKind) -> set[str]:
    ranges = [one for event in here.events(stem) if event.event == kind for one in event.messages]
    return {str(bookmark).partition(":")[2] for some in ranges for bookmark in some}


def moments(here: Deployment, bookmark: str) -> list[dict[str, str]]:
    """What `lapse explain` tells of a message."""
    return [orjson.loads(line) for line in here.lapse("explain", bookmark, "--json").stdout.splitlines()]


@pytest.mark.feature("Q22", "C61", "C62")
def test_what_was_acknowledged_expired_and_purged_comes_back_in_every_form(deploy: Deploy) -> None:
    here = deploy({"q": {"partitions": 1}, "late": {"topics": ["q{}"], "recovery_point": "end"}}).apply()
    for number in range(6):
        here.write("q", f'{{"n": {number}}}')
    worker = here.worker().wait_for_shards(2)
    until(lambda: here.depth("q")["depth"] == 6, "all six")
    with here.queue("q") as client:
        client.expire([f"{here.name('q')}:0:4"])
        client.purge(filter="/n = 5")
        assert consumed(here, "q", 4) == ["0:0", "0:1", "0:2", "0:3"]
        assert client.rewind("beginning", dry_run=True)["rewound"] == 6
        assert client.depth()["depth"] == 0
        counts = client.rewind(f"{here.name('q')}:0:1", filter="/n <> 2", command_id="first")
        assert (counts["rewound"], counts["no_match"]) == (4, 1)
        assert client.rewind(f"{here.name('q')}:0:1", command_id="first") == counts, "the same id does it once"
        names = [f"0:{at}~1" for at in (1, 3, 4, 5)]
        assert [one.bookmark.partition(":")[2] for one in client.peek()] == names
        with here.subscriber("q", 100) as subscriber:
            delivery = subscriber.receive(10)
            assert delivery is not None
            assert (str(delivery.bookmark), delivery.value) == (f"{here.name('q')}:0:1~1", b'{"n": 1}')
            (stale,) = client.acknowledge([f"{here.name('q')}:0:1"])
            assert stale.result == "stale"
            delivery.expire()
        for payload, name in (("inline", "0:3~1"), ("packed", "0:4~1"), ("reference", "0:5~1")):
            assert consumed(here, "q", 1, payload=payload) == [name]
        (letter, again) = here.letters("q", 2)
    assert dict(letter.headers())["lapse-id"].decode() == f"{here.name('q')}/{here.name('q')}:0:4/0"
    headers = dict(again.headers())
    assert headers["lapse-id"].decode() == f"{here.name('q')}/{here.name('q')}:0:1~1/0"
    assert headers["__dlq.errors.offset"] == b"1"
    assert bookmarks_of(here, "q", EventKind.REWOUND) == set(names)
    assert bookmarks_of(here, "q", EventKind.ACKNOWLEDGED) >= {"0:3~1", "0:4~1", "0:5~1"}
    lived = moments(here, f"{here.name('q')}:0:1~1")
    assert [one["what"] for one in lived if one["entity"] == here.name("q")] == [
        "rewound",
        "delivered",
        "dead_lettered",
        "dead letter",
    ]
    ends = [one["message"] for one in moments(here, f"{here.name('q')}:0:3") if one["what"] == "acknowledged"]
    assert ends == [f"{here.name('q')}:0:3", f"{here.name('q')}:0:3~1"]
    # From before the queue's start, by the command.
    ran = here.lapse("queue", "rewind", here.name("late"), "--to", "beginning", "--json")
    assert orjson.loads(ran.stdout)["rewound"] == 6
    assert consumed(here, "late", 6) == [f"0:{at}~1" for at in range(6)]
    assert worker.running


@pytest.mark.feature("C63", "C60")
def test_a_rewind_that_is_killed_in_the_middle_is_brought_to_its_end(deploy: Deploy) -> None:
    """The worker is killed while parts of the rewind are durable; what comes meanwhile stands behind all of it."""
    here = deploy({"q": {"partitions": 1}}).apply()
    count = 80_000
    here.write("q", *("x" for _ in range(count)))
    worker = here.worker().wait_for_shards(1)
    until(lambda: here.depth("q")["depth"] == count, "all of them")
    with here.queue("q") as client:
        client.purge()
        waiting = here.run(
            ["-m", "lapse", "queue", "rewind", here.name("q"), "--to", "beginning", "--id", "one", "--json"]
        )
        until(lambda: bookmarks_of(here, "q", EventKind.REWOUND), "the first part")
        worker.kill()
        assert len(bookmarks_of(here, "q", EventKind.REWOUND)) < count, "it was not in the middle"
        here.write("q", "later")
        worker = here.worker().wait_for_shards(1)
        assert waiting.wait(60) == 0
        assert client.rewind("beginning", command_id="one")["rewound"] == count
        assert client.depth()["depth"] == count + 1
        last = client.peek(top_n=2, skip=count - 1)
        assert [one.bookmark.partition(":")[2] for one in last] == [f"0:{count - 1}~1", f"0:{count}"]
    assert len(bookmarks_of(here, "q", EventKind.REWOUND)) == count


@pytest.mark.feature("Q22", "Q16", "Q23")
def test_a_changed_recovery_point_is_shown_as_a_rewind_and_done_when_confirmed(deploy: Deploy) -> None:
    here = deploy({"q": {}}, definitions="topic").apply()
    here.worker().wait_for_shards(1)
    here.write("q", "a", "b", "c")
    assert consumed(here, "q", 3) == ["0:0", "0:1", "0:2"]
    here.configure({"q": {"recovery_point": "q{}:0:1"}}, definitions="topic")
    asked = here.lapse("apply")  # nobody answers
    assert asked.returncode == 1
    assert f"lapse queue rewind {here.name('q')} --to {here.name('q')}:0:1" in asked.stdout
    assert here.depth("q")["depth"] == 0
    done = here.lapse("apply", "--yes")
    assert f"{here.name('q')}: 2 messages came back." in done.stdout, done.stderr
    assert consumed(here, "q", 2) == ["0:1~1", "0:2~1"]
    assert "came back" not in here.lapse("apply", "--yes").stdout
