"""Everything that is due at one and the same millisecond, in the contract's order (C2), as the log has it (C1).

No worker runs while the log is written. The commands topic takes the producer's timestamps meanwhile, so commands are
stamped with chosen instants: a renewal and a delay end exactly when messages expire and materialise, and commands are
stamped with that instant, or with the one before it. The worker that comes then has to act as of those instants.
"""

from typing import Any

import orjson
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from lapse.protocol import topic
from support.consumers.kcat import Kcat
from support.kafka.log import header, texts, until, write
from support.processes.deployment import Deploy, Deployment, broker_now_ms

_DUE_IN_MS = 1_500
_LEASED_WITHIN_MS = 20_000


class Scribe:
    """Writes commands with timestamps of its own choice."""

    def __init__(self, deployment: Deployment, queue: str) -> None:
        self._servers = deployment.servers
        self._topic = topic.commands(deployment.name(queue))
        self.ids: list[str] = []

    def __enter__(self) -> "Scribe":
        self._stamped_by("CreateTime")
        past_ms = broker_now_ms() - 1
        until(lambda: self.say(past_ms, "depth") == past_ms, "the producer's timestamps are taken")
        return self

    def __exit__(self, *_: object) -> None:
        self._stamped_by("LogAppendTime")

    def _stamped_by(self, kind: str) -> None:
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        entry = ConfigEntry("message.timestamp.type", kind, incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
        admin = AdminClient({"bootstrap.servers": self._servers})
        admin.incremental_alter_configs([resource])[resource].result(15)

    def say(self, at_ms: int, command: str, ident: str = "", **fields: Any) -> int:
        """Write a command; the timestamp that it has."""
        value = orjson.dumps({"command": command, "id": ident or f"probe-{at_ms}", **fields})
        (written,) = write(self._servers, self._topic, [value], timestamp_ms=at_ms)
        return written.timestamp_ms


@pytest.mark.feature("C2", "C1", "Q10", "L5", "C15", "C16", "C27", "C53")
def test_what_is_due_at_the_same_millisecond_happens_in_the_contracts_order(deploy: Deploy) -> None:
    """Expiry of what is unleased, ends of leases and the expiry of what they return, materialising, commands."""
    one = deploy({"tied": {"lease_period": "10m", "expiration": "enabled"}}).apply()
    worker = one.worker().wait_for_shards(1)
    kcat = Kcat(one, "tied")
    kcat.ask("subscribe", subscription="s", max_backlog=5, heartbeat_timeout_ms=600_000)
    # Offset 2 is past its deadline when its lease ends.
    ttls_ms = [0, 0, _LEASED_WITHIN_MS, 0, 0]
    leased = [one.write("tied", f"leased {at}", headers=_ttl(ttl_ms))[0] for at, ttl_ms in enumerate(ttls_ms)]
    assert [written.offset for written in leased] == [0, 1, 2, 3, 4]
    kcat.deliveries(5, "s")
    due_ms = leased[2].timestamp_ms + _LEASED_WITHIN_MS + _DUE_IN_MS
    one.write("tied", "expires", "settled before", headers=[("lapse-expires-at-ms", b"%d" % due_ms)])
    one.write("tied", "comes", "comes and goes", headers=[("lapse-enqueue-at-ms", b"%d" % due_ms)])
    # Read before the worker dies: which of two topics it reads first when it comes back is not said.
    until(lambda: len(kcat.ask("sow")["messages"]) == 9, "all are read")
    worker.kill()

    before_ms = broker_now_ms()
    assert before_ms < due_ms - 2, "the machine is too slow for this test"
    _write_commands(one, before_ms, due_ms)
    until(lambda: broker_now_ms() > due_ms, "the instant is over", 60)
    restarted_ms = broker_now_ms()
    worker.start().wait_for_shards(1)

    _check_answers(kcat, due_ms)
    # What was unleased expires first, though what a lease's end returns and expires stands before it.
    letters = one.letters("tied", 2)
    assert [int(texts(letter)["__dlq.errors.offset"]) for letter in letters] == [5, 2]
    # The order is that of the log; the instant of a letter is that of its decision, by the worker that came then (C53).
    assert all(int(texts(letter)["lapse-expired-at-ms"]) >= restarted_ms for letter in letters)
    expires_at_ms = leased[2].timestamp_ms + _LEASED_WITHIN_MS
    assert [int(texts(letter)["lapse-expires-at-ms"]) for letter in letters] == [due_ms, expires_at_ms]
    assert {texts(letter)["lapse-reasons"] for letter in letters} == {"time_limit"}

    # Deliveries come last: what a command of that instant settled is none, the others follow in order.
    again = kcat.deliveries(5 + 4, "s")[5:]
    offsets = [int((header(delivery, "lapse-bookmark") or b"").rpartition(b":")[2]) for delivery in again]
    assert offsets == [1, 3, 4, 7]


def _write_commands(one: Deployment, before_ms: int, due_ms: int) -> None:
    """Write commands that end leases and a delay at one instant, and others just before it and at it."""
    name = one.name("tied")
    with Scribe(one, "tied") as scribe:

        def say(at_ms: int, ident: str, command: str, *offsets: str, **fields: Any) -> None:
            bookmarks = [f"{name}:0:{offset}" for offset in offsets]
            assert scribe.say(at_ms, command, ident, bookmarks=bookmarks, subscription="s", **fields) == at_ms

        say(before_ms, "renewed", "renew", "0-3#1", lease_ms=due_ms - before_ms)
        say(before_ms + 1, "delayed", "cancel", "4#1", delay_ms=due_ms - before_ms - 1)
        say(due_ms - 1, "seen before", "sow")
        say(due_ms - 1, "in time", "acknowledge", "0#1", "6", "8")
        say(due_ms, "seen then", "sow")
        say(due_ms, "too late", "renew", "1#1")
        say(due_ms, "then", "acknowledge", "2#1", "5", "8")
        say(due_ms, "cancelled", "cancel", "3#1")


def _check_answers(kcat: Kcat, due_ms: int) -> None:
    """Check what the commands came to."""
    answered = {
        ident: kcat.answer(ident) for ident in ("renewed", "delayed", "in time", "too late", "then", "cancelled")
    }
    results = {
        ident: [(item["bookmarks"].rpartition(":")[2], item["result"]) for item in answer["settlements"]]
        for ident, answer in answered.items()
    }
    assert results == {
        "renewed": [("0-3", "settled")],
        "delayed": [("4", "settled")],
        # One millisecond before, a lease holds, nothing has expired, and what is scheduled is out of sight.
        "in time": [("0", "settled"), ("6", "settled"), ("8", "scheduled")],
        # At the instant itself all of that is over before a command counts.
        "too late": [("1", "not_leased")],
        "then": [("2", "time_limit"), ("5", "time_limit"), ("8", "settled")],
        "cancelled": [("3", "not_leased")],
    }
    assert answered["renewed"]["lease_until_ms"] == due_ms
    assert _states(kcat.answer("seen before")) == {
        **dict.fromkeys((0, 1, 2, 3), "leased"),
        4: "delayed",
        **dict.fromkeys((5, 6), "available"),
        **dict.fromkeys((7, 8), "scheduled"),
    }
    assert _states(kcat.answer("seen then")) == dict.fromkeys((1, 3, 4, 7, 8), "available")


def _ttl(ms: int) -> list[tuple[str, bytes | None]]:
    return [("lapse-ttl-ms", b"%d" % ms)]


def _states(answer: dict[str, Any]) -> dict[int, str]:
    """States in a peek, by offset."""
    return {int(one["bookmark"].rpartition(":")[2]): one["state"] for one in answer["messages"]}
