"""Random lives of a SOW topic, through the client and over crashes of the worker, beside a plain model of the records.

`LAPSE_SOAK=500 pytest tests/unit/testing/test_sow_lives.py` lives through that many.
"""

import json
import os
from random import Random

import pytest

from lapse.testing import Lapse
from lapse_client import SowSubscription
from support.suite.at_length import QUICK

LIVES = range(int(os.environ.get("LAPSE_SOAK", "1" if QUICK else "12")))
STEPS = 80
FILTERS = {
    None: lambda record: True,
    "/f = 1": lambda record: record.get("f") == 1,
    "/n/x > 3": lambda record: isinstance(record.get("n"), dict) and (record["n"].get("x") or 0) > 3,
    "/g IS NULL": lambda record: record.get("g") is None,
}
DEFAULT_MS = 20_000


def merged(stored: object, delta: object) -> object:
    if not isinstance(stored, dict) or not isinstance(delta, dict):
        return delta
    return stored | {name: merged(stored[name], value) if name in stored else value for name, value in delta.items()}


class Model:
    """What the records are, by key, each with its deadline; scheduled updates by instant."""

    def __init__(self, expiration: str, ceiling: bool) -> None:
        self.acts = expiration != "disabled"
        self.default_ms = DEFAULT_MS if expiration == "20s" else None
        self.ceiling = ceiling
        self.records: dict[str, tuple[dict, int | None]] = {}
        self.scheduled: dict[int, tuple] = {}

    def advance(self, now_ms: int) -> None:
        for at_ms in sorted(at_ms for at_ms in self.scheduled if at_ms <= now_ms):
            self._expire(at_ms)
            self.update(at_ms, *self.scheduled.pop(at_ms))
        self._expire(now_ms)

    def update(self, at_ms: int, key: str, value: dict, delta: bool, ttl_ms: int | None) -> None:
        if delta and key in self.records:
            value = merged(self.records[key][0], value)
        deadline_ms = None if self.default_ms is None else at_ms + self.default_ms
        if ttl_ms is not None:
            own_ms = None if ttl_ms == 0 else at_ms + ttl_ms
            deadline_ms = min(own_ms or deadline_ms, deadline_ms) if self.ceiling else own_ms
        self.records[key] = value, deadline_ms

    def matching(self, text: str | None) -> dict[str, tuple[dict, int | None]]:
        return {key: kept for key, kept in self.records.items() if FILTERS[text](kept[0])}

    def _expire(self, now_ms: int) -> None:
        late = [key for key, (_, until_ms) in self.records.items() if until_ms is not None and until_ms <= now_ms]
        for key in late if self.acts else ():
            del self.records[key]


class Follower:
    """What a subscriber knows of the records."""

    def __init__(self, updates: SowSubscription, text: str | None) -> None:
        self.updates = updates
        self.text = text
        self.known: dict[str, tuple[int, dict]] = {}

    def listen(self) -> dict[str, dict]:
        for update in self.updates.updates(timeout=1):
            key = (update.key or b"").decode()
            match update.kind:
                case "sow" | "publish":
                    self.known[key] = update.partition, json.loads(update.value)
                case "delta" if (
                    key in self.known
                ):  # one that comes twice after a crash may follow the end of its record
                    self.known[key] = update.partition, merged(self.known[key][1], json.loads(update.value))
                case "oof":
                    self.known.pop(key, None)
                case "resubscribed":
                    self.known = {name: one for name, one in self.known.items() if one[0] != update.partition}
        return {key: value for key, (_, value) in self.known.items()}


class Life:
    """One SOW topic, its client, its followers, and the model."""

    def __init__(self, lapse: Lapse, random: Random) -> None:
        self.lapse, self.random = lapse, random
        expiration = random.choice(["disabled", "enabled", "20s", "20s"])
        ceiling = expiration == "20s" and random.random() < 0.4
        settings = {"expiration": expiration, "partitions": random.choice([1, 1, 2, 3])}
        settings |= {"expiration_model": "ceiling"} if ceiling else {}
        settings |= {"hash_index": ["/f"]} if random.random() < 0.4 else {}
        lapse.sow("prices", **settings)
        self.partitions = settings["partitions"]
        self.model = Model(expiration, ceiling)
        self.followers: list[Follower] = []
        self.runs = True
        self.publisher = lapse.publisher()
        self.client = lapse.sow_client("prices")

    def step(self) -> None:
        self.pass_time(self.random.choice([1, 1, 1, 7, 500, 3_000, 11_000]))
        running = [self.delete, self.delete_matching, self.follow, self.crash, self.stop, self.look, self.look]
        choices = running if self.runs else [self.start]
        self.random.choice([self.publish, self.publish, self.publish, self.publish, *choices])()

    def pass_time(self, ms: int) -> None:
        self.lapse.clock.advance(ms / 1000)
        self.model.advance(self.lapse.clock.now_ms)

    def publish(self) -> None:
        random, now_ms = self.random, self.lapse.clock.now_ms
        key, delta = random.choice("abcde"), random.random() < 0.4
        value = {"f": random.choice([0, 1]), "n": random.choice([{"x": 1}, {"x": 5}, {"y": {"z": 2}}, 7, None])}
        value |= {"g": random.choice([None, "t", [1, 2]])} if random.random() < 0.5 else {}
        ttl_ms = random.choice([None, None, None, 0, 1, 700, 40_000])
        # The instants differ, also from those of other updates, because order at one instant is not the subject.
        due_ms = now_ms + random.randrange(10_000) if random.random() < 0.2 else now_ms
        if due_ms in self.model.scheduled:
            return
        self.publisher.publish(
            "prices",
            json.dumps(value).encode(),
            key=key,
            delta=delta,
            ttl_ms=ttl_ms,
            enqueue_at_ms=due_ms if due_ms > now_ms else None,
        )
        self.lapse.settle()
        if due_ms > now_ms:
            self.model.scheduled[due_ms] = key, value, delta, ttl_ms
        else:
            self.model.update(now_ms, key, value, delta, ttl_ms)
        self.pass_time(1)

    def delete(self) -> None:
        key = self.random.choice("abcde")
        assert self.client.delete(keys=[key]) == (key in self.model.records)
        self.model.records.pop(key, None)

    def delete_matching(self) -> None:
        text = self.random.choice([one for one in FILTERS if one])
        gone = self.model.matching(text)
        assert self.client.delete(filter=text) == len(gone)
        for key in gone:
            del self.model.records[key]

    def follow(self) -> None:
        if len(self.followers) < 4:
            text = self.random.choice([*FILTERS])
            ask = self.random.choice([self.client.sow_and_subscribe, self.client.sow_and_delta_subscribe])
            self.followers.append(Follower(ask(text).__enter__(), text))

    def crash(self) -> None:
        self.lapse.crash(before=self.random.choice([None, "events", "journal", "deliveries"]))

    def stop(self) -> None:
        self.lapse.stop_worker()
        self.runs = False

    def start(self) -> None:
        self.lapse.start_worker()
        self.runs = True

    def look(self) -> None:
        self.lapse.settle()
        text = self.random.choice([*FILTERS])
        found = {one.key.decode(): (json.loads(one.value), one.expires_at_ms) for one in self.client.query(text)}
        assert found == self.model.matching(text)
        assert self.client.depth()["records"] == len(self.model.records)
        for one in self.followers:
            assert one.listen() == {key: value for key, (value, _) in self.model.matching(one.text).items()}

    def compacted(self) -> dict[str, dict]:
        latest = {}
        for partition in range(self.partitions):
            latest |= {record.key: record.value for record in self.lapse.records("lapse.sow.prices", partition)}
        return {key.decode(): json.loads(value) for key, value in latest.items() if value is not None}


@pytest.mark.feature("S2", "S3", "S4", "S5", "S6", "S7", "S8", "L5", "X8")
@pytest.mark.parametrize("seed", LIVES)
def test_queries_followers_and_the_compacted_topic_agree_over_crashes(seed: int) -> None:
    with Lapse() as lapse:
        life = Life(lapse, Random(seed))
        with life.publisher, life.client:
            for _ in range(STEPS):
                life.step()
            life.start()
            for wait_ms in (5_000, 60_000):  # the first lets clients subscribe again that a worker has forgotten
                life.pass_time(wait_ms)
                life.look()
            assert life.compacted() == {key: value for key, (value, _) in life.model.records.items()}
            for one in life.followers:
                one.updates.close()
