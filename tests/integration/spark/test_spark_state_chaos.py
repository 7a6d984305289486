"""What a queue and a SOW topic had at random instants of a run with killed workers, by the topics alone (D7).

Each look takes down what the worker showed, and between which two instants of the broker. `lapse spark state` has to
tell the same of an instant between them. `LAPSE_LOOKS=100 pytest tests/integration/spark/test_spark_state_chaos.py`
takes so many looks; `make chaos` does.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from confluent_kafka import Message
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, unix_millis

from lapse.core.shard.changelog import EPOCH_HEADER, PROGRESS
from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark
from lapse.recorded.shard_history import ShardHistory
from lapse_client import Publisher, SowClient
from lapse_client.error import LapseError
from lapse_spark import Connection, quarantine, read
from lapse_spark.instant import as_of
from support.flow.turmoil import Turmoil
from support.processes.deployment import Deploy, Deployment, broker_now_ms
from support.programs import spark_state
from support.programs.spark_state import Row, row
from support.suite.at_length import AT_LENGTH

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.spark, pytest.mark.feature("D7")]

LOOKS = int(os.environ.get("LAPSE_LOOKS", "15"))
SEED = int(os.environ.get("LAPSE_SEED", "7"))
BY_COMMAND = 2
"""So many looks are held against the command itself, which starts a job of Spark for each."""

SHARDS = 2
QUEUE = {
    "partitions": SHARDS,
    "expiration": "2s",
    "lease_period": "600ms",
    "max_deliveries": 4,
    "max_cancels": 3,
    "retry": {"delay": "200ms", "jitter": 0.5},
}
SOW = {"partitions": 2, "expiration": "enabled"}

Records = dict[str, str]


class Written(NamedTuple):
    """An update of the SOW topic; None is a tombstone."""

    at_ms: int
    key: str
    value: str | None


@dataclass
class Look:
    """What a worker showed between two instants, both in ms since the epoch.

    Attributes:
        begin_ms: before it was asked.
        end_ms: when its answer was there.
        messages: of the queue, by shard; empty where the SOW topic was looked at.
        records: of the SOW topic.
        agrees_at_ms: instants at which the journal says the same, by shard.
    """

    begin_ms: int
    end_ms: int = 0
    messages: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    records: Records = field(default_factory=dict)
    agrees_at_ms: dict[int, int] = field(default_factory=dict)

    def kept(self, rows: Sequence[Row]) -> list[Row]:
        """Without messages whose lifetime, or the lease that outlasted it, ended while the worker was asked."""
        return [row for row in rows if not self.begin_ms <= _ends_ms(row) <= self.end_ms]


def _ends_ms(row: Row) -> float:
    """When a message ends if nobody settles it; a lease protects it beyond its deadline."""
    until_ms, deadline_ms = row[-2:]
    if not isinstance(deadline_ms, int):
        return math.inf
    return max(deadline_ms, until_ms) if row[1] == "leased" and isinstance(until_ms, int) else deadline_ms


@contextmanager
def prices(deployment: Deployment) -> Iterator[None]:
    """Updates, deadlines and deletions of a SOW topic, until it is left."""
    over, chance = threading.Event(), random.Random(SEED)

    def publish() -> None:
        with Publisher(deployment.connection) as publisher:
            number = 0
            while not over.wait(0.05):
                value = None if chance.random() < 0.2 else f'{{"n": {number}}}'
                ttl_ms = chance.choice([None, None, 300, 60_000])
                publisher.submit(deployment.name("prices"), value, f"k{chance.randrange(40)}", ttl_ms=ttl_ms)
                publisher.flush()
                number += 1

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)


def looks(deployment: Deployment) -> tuple[list[Look], list[Look]]:
    """Look at the queue and the SOW topic at random instants, while the worker is killed now and then."""
    chance = random.Random(SEED)
    queued: list[Look] = []
    recorded: list[Look] = []
    worker = deployment.worker().wait_for_shards(SHARDS)
    with Turmoil(deployment, ["torn"], 0.1).at_work(), prices(deployment):
        time.sleep(1)
        while len(queued) < LOOKS:
            time.sleep(chance.uniform(0.05, 0.5))
            if len(queued) % 8 == 5:
                worker.kill()
                worker = deployment.worker()
            try:
                with deployment.queue("torn") as queue:
                    look = Look(broker_now_ms())
                    for one in queue.peek():
                        look.messages[Bookmark.parse(one.bookmark).partition].append(row(one))
                    look.end_ms = broker_now_ms()
                with SowClient(deployment.name("prices"), connection=deployment.connection) as client:
                    other = Look(broker_now_ms())
                    for record in client.query():
                        other.records[(record.key or b"").decode()] = (record.value or b"").decode()
                    other.end_ms = broker_now_ms()
            except LapseError:
                continue  # the worker was killed meanwhile
            queued.append(look)
            recorded.append(other)
    worker.stop()
    return queued, recorded


def take(history: ShardHistory, one: Message) -> None:
    """Have a history take in a record of the journal."""
    history.take(one.offset(), one.timestamp()[1], one.key(), one.value(), dict(one.headers() or [])[EPOCH_HEADER])


def history_at(name: str, journal: Sequence[Message], at_ms: int) -> ShardHistory:
    """What the journal of a shard tells of an instant."""
    history = ShardHistory(name, at_ms)
    for one in journal:
        take(history, one)
    assert history.exact
    return history


def hold_against_journal(name: str, journal: Sequence[Message], shard: int, look: Look) -> None:
    """Find an instant between the look's two at which the journal says the same, or the step that the look was in.

    A worker answers in the middle of a step, between its arrivals and its deliveries, and journals only its end. So
    messages that the step changed may have been shown on their way. All others have to agree.
    """
    shown, before, found = look.kept(look.messages[shard]), None, False
    history = ShardHistory(name, look.end_ms)
    for at, one in enumerate(journal):
        stored_ms = one.timestamp()[1]
        if stored_ms > look.end_ms:
            break
        take(history, one)
        next_ms = journal[at + 1].timestamp()[1] if at + 1 < len(journal) else look.end_ms + 1
        if next_ms < look.begin_ms or not (one.key() or b"").startswith(PROGRESS):
            continue
        expected = look.kept([row(message) for message in history.messages()])
        agrees_ms = max(stored_ms, look.begin_ms)
        if expected == shown and next_ms > agrees_ms:  # all of that millisecond is in what agrees
            look.agrees_at_ms[shard] = agrees_ms
            return
        found = found or expected == shown or (before is not None and on_the_way(shown, before, expected))
        before = expected
    assert found, f"shard {shard} between {look.begin_ms} and {look.end_ms}: {shown}"


def on_the_way(shown: Sequence[Row], before: Sequence[Row], after: Sequence[Row]) -> bool:
    """Whether messages were shown in the middle of a step: only those that it changed differ from what was before."""
    was, seen, becomes = ({one[0]: one for one in rows} for rows in (before, shown, after))
    for bookmark in {*was, *seen, *becomes}:
        first, one, last = was.get(bookmark), seen.get(bookmark), becomes.get(bookmark)
        if one in (first, last):
            continue
        if first == last or one is None:
            return False
        known = [each for each in (first, last) if each is not None]
        if one[-1] != known[0][-1] or one[2] not in {0, *(each[2] for each in known)}:
            return False
    return True


def state_at(updates: DataFrame, at_ms: int) -> Records:
    """What the SOW topic had at an instant, as the command reads it."""
    found = as_of.records(updates, at_ms).select("key", "value").collect()
    return {bytes(one["key"]).decode(): bytes(one["value"]).decode() for one in found}


def hold_against_state(updates: DataFrame, written: Sequence[Written], look: Look) -> int:
    """Hold a query against the states before and behind it; returns how many keys had not changed meanwhile."""
    before, after = state_at(updates, look.begin_ms), state_at(updates, look.end_ms)
    same = 0
    for key in {*before, *after, *look.records}:
        shown = look.records.get(key)
        meanwhile = [one.value for one in written if one.key == key and look.begin_ms < one.at_ms <= look.end_ms]
        assert shown in (before.get(key), after.get(key), *meanwhile), (key, look.begin_ms, look.end_ms)
        same += not meanwhile and before.get(key) == after.get(key)
    return same


def test_states_of_random_instants_of_a_torn_run_are_what_was_shown(spark, kafka: str, deploy: Deploy) -> None:
    print(f"LAPSE_SEED={SEED} LAPSE_LOOKS={LOOKS}")
    deployment = deploy({})
    deployment.configure({"torn": QUEUE}, {"prices": SOW})
    deployment.apply()
    queued, recorded = looks(deployment)

    name = deployment.name("torn")
    journals = deployment.tail(topic.changelog(deployment.app_id, name)).drain()
    exactly = 0
    for shard in range(SHARDS):
        journal = [one for one in journals if one.partition() == shard]
        for look in queued:
            hold_against_journal(name, journal, shard, look)
            if shard in look.agrees_at_ms:
                exactly += 1
                then = history_at(name, journal, look.agrees_at_ms[shard])
                assert look.kept([row(one) for one in then.messages()]) == look.kept(look.messages[shard])
    assert exactly >= LOOKS * SHARDS / 3, "too few looks fell between two steps"
    assert {one[1] for look in queued for rows in look.messages.values() for one in rows} >= {
        "available",
        "leased",
        "delayed",
        "scheduled",
    }

    by_command = [(shard, look) for look in queued for shard in look.agrees_at_ms if look.messages[shard]]
    for shard, look in random.Random(SEED).sample(by_command, BY_COMMAND):
        answer = spark_state.state_at(kafka, name, look.agrees_at_ms[shard], "messages")
        answered = [row(SimpleNamespace(**one)) for one in answer]
        of_shard = [one for one in answered if Bookmark.parse(str(one[0])).partition == shard]
        assert look.kept(of_shard) == look.kept(look.messages[shard])

    raw = quarantine.split(read.sow_updates(spark, Connection(kafka), deployment.name("prices")))[0].persist()
    try:
        rows = raw.select(unix_millis("updated_at"), col("key").cast("string"), col("value").cast("string"))
        written = [Written(*one) for one in rows.collect()]
        held = recorded[:: 1 if AT_LENGTH else 3]  # two queries of Spark for each
        same = [hold_against_state(raw, written, look) for look in held]
    finally:
        raw.unpersist()
    assert sum(same) > 10 * len(held), same
