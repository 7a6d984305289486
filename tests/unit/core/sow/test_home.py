"""Keys from the payload over several partitions: each shard reads all of them and keeps its own keys (C46)."""

import json

import pytest
from aiokafka.partitioner import murmur2 as kafkas
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.reason import Reason
from lapse.core.sow.keys.field_path import parse as path
from lapse.core.sow.keys.home import Home, murmur2
from lapse.core.sow.records.record import payload_of
from lapse.core.sow.step import Step
from unit.core.sow.make import Arrived, Desk, T, shard_of


@given(st.binary(max_size=64))
def test_the_hash_is_that_of_kafkas_partitioner(key: bytes) -> None:
    assert murmur2(key) == kafkas(key) & 0xFFFFFFFF
    homes = [Home(shard, 5).holds(key) for shard in range(5)]
    assert sum(homes) == 1


def shards(count: int) -> list[Desk]:
    return [Desk(shard_of(60_000, key=(path("/id"),), home=Home(number, count))) for number in range(count)]


def everywhere(desks: list[Desk], payload: object, at: int, partition: int, **headers: object) -> None:
    for desk in desks:
        desk.put(None, payload, at, partition=partition, **headers)


@pytest.mark.feature("C46", "S1")
def test_a_key_lives_at_one_shard_wherever_its_updates_stand() -> None:
    desks = shards(3)
    for number in range(30):
        everywhere(desks, {"id": number, "n": 1}, number, partition=number % 3)
        everywhere(desks, {"id": number, "n": 2}, 100 + number, partition=(number + 1) % 3)
    held = [desk.select(500) for desk in desks]
    assert sorted(row["id"] for rows in held for row in rows) == list(range(30))
    assert all(row["n"] == 2 for rows in held for row in rows)
    assert all(held)
    for number, desk in enumerate(desks):
        assert all(Home(number, 3).holds(key) for key in desk.compacted)


@pytest.mark.feature("C46")
def test_the_later_stamp_is_the_latest_then_the_partition_then_the_offset() -> None:
    (desk,) = shards(1)
    everywhere([desk], {"id": 1, "n": "p1@50"}, 50, partition=1)
    everywhere([desk], {"id": 1, "n": "p0@40"}, 40, partition=0)
    assert desk.select(60) == [{"id": 1, "n": "p1@50"}]
    everywhere([desk], {"id": 1, "n": "p0@50"}, 50, partition=0)
    assert desk.select(60) == [{"id": 1, "n": "p1@50"}]
    everywhere([desk], {"id": 1, "n": "p2@50"}, 50, partition=2)
    everywhere([desk], {"id": 1, "n": "p2@50+"}, 50, partition=2)
    assert desk.select(60) == [{"id": 1, "n": "p2@50+"}]


@pytest.mark.feature("C46", "S1", "L12")
def test_a_faulty_record_is_lettered_once_by_the_shard_of_its_partition() -> None:
    desks = shards(3)
    letters = []
    for partition in range(3):
        for desk in desks:
            letters += desk.put(None, b"{", 1, partition=partition, raw=True).letters
            letters += desk.put(None, {"id": 7}, 1, partition=partition, lapse_ttl_ms="soon").letters
    assert sorted((letter.bookmark.partition, letter.bookmark.offset) for letter in letters) == [
        (partition, offset) for partition in range(3) for offset in range(2)
    ]


@pytest.mark.feature("C46", "S3")
def test_a_delete_by_key_is_done_and_counted_at_home_only() -> None:
    desks = shards(3)
    everywhere(desks, {"id": "a"}, 1, partition=0)
    key = b'["a"]'
    counts = [dict(desk.ask("sow_delete", 10, keys=(key, b'["b"]')).answers[0].counts) for desk in desks]
    assert sum(count["removed"] for count in counts) == 1
    assert sum(count["skipped"] for count in counts) == 1
    everywhere(desks, {"id": "a", "late": True}, 9, partition=1)
    assert [desk.select(20) for desk in desks] == [[], [], []]
    for desk in desks:
        desk.put(json.dumps(["a"]), None, 30, partition=2)
        desk.put(None, {"id": "a", "late": True}, 29, partition=0)
        assert desk.select(40) == []


@pytest.mark.feature("C88", "C46")
def test_within_one_partition_the_offset_decides_whatever_the_stamps_say() -> None:
    (desk,) = shards(1)
    everywhere([desk], {"id": 1, "n": "ahead"}, 3_000, partition=0)
    everywhere([desk], {"id": 1, "n": "behind"}, 50, partition=0)
    assert desk.select(60) == [{"id": 1, "n": "behind"}]
    desk.put("[1]", None, 40, partition=0)
    assert desk.select(60) == []
    everywhere([desk], {"id": 1, "n": "again"}, 30, partition=0)
    assert desk.select(60) == [{"id": 1, "n": "again"}]


@pytest.mark.feature("C88", "D4")
def test_an_update_that_is_ignored_as_older_is_an_event_with_its_place() -> None:
    (desk,) = shards(1)
    everywhere([desk], {"id": 1, "n": "later"}, 50, partition=1)
    step = desk.put(None, {"id": 1, "n": "older"}, 40, partition=0)
    (event,) = step.events
    assert (event.kind, event.key, event.bookmark.partition) == ("ignored", b"[1]", 0)
    assert desk.select(60) == [{"id": 1, "n": "later"}]


@pytest.mark.feature("C88", "C46")
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.booleans()), max_size=8),
    st.randoms(use_true_random=False),
)
def test_the_latest_is_the_same_however_partitions_take_turns(updates, random) -> None:
    found = []
    for _ in range(2):
        (desk,) = shards(1)
        left = {partition: [one for one in enumerate(updates) if one[1][0] == partition] for partition in range(3)}
        while any(left.values()):
            partition = random.choice([partition for partition, some in left.items() if some])
            number, (_, at, deletes) = left[partition].pop(0)
            desk.put("[1]" if deletes else None, None if deletes else {"id": 1, "n": number}, at, partition=partition)
        found.append(desk.select(40))
    assert found[0] == found[1]


@pytest.mark.feature("C88")
def test_a_stamp_ahead_of_the_clock_counts_as_the_clock_between_partitions() -> None:
    shard = shard_of(60_000, key=(path("/id"),))
    step = Step()
    for partition, at_ms, clock_ms, text in [(0, 3_600_000, 10, "ahead"), (1, 11, 11, "next")]:
        record = Arrived(0, T + at_ms, None, json.dumps({"id": 1, "n": text}).encode())
        shard.arrive("orders", partition, [record], step, T + clock_ms)
    (entry,) = shard.state.entries.values()
    assert json.loads(payload_of(entry))["n"] == "next"


@pytest.mark.feature("C46", "S1", "S3", "S5")
def test_a_delete_by_data_takes_the_record_with_the_same_key_fields() -> None:
    """A query by data returns it."""
    desks = shards(3)
    everywhere(desks, {"id": "a", "n": 1}, 1, partition=0)
    everywhere(desks, {"id": 7, "n": 1}, 1, partition=1)
    everywhere(desks, {"id": "b", "n": 1}, 1, partition=2)
    data = (b'{"id": "a"}', b'{"n": 9, "id": 7.0}', b'{"id": "nobody"}')
    assert sorted(str(record["id"]) for desk in desks for record in desk.select(9, data=data)) == ["7", "a"]
    counts = [dict(desk.ask("sow_delete", 10, data=data).answers[0].counts) for desk in desks]
    assert sum(count["removed"] for count in counts) == 2
    assert sum(count["skipped"] for count in counts) == 1
    assert [record["id"] for desk in desks for record in desk.select(20)] == ["b"]


@pytest.mark.feature("S3", "X7")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "data.1: its key is in its payload, which cannot be read"),
        (b'{"n": 1}', "data.1: the key field /id is missing or null"),
        (b'{"id": []}', "data.1: the key field /id is an array"),
    ],
)
def test_data_without_a_key_deletes_nothing(data: bytes, message: str) -> None:
    desks = shards(1)
    everywhere(desks, {"id": "a"}, 1, partition=0)
    (answer,) = desks[0].ask("sow_delete", 10, data=(b'{"id": "a"}', data)).answers
    assert message in answer.error
    assert message in desks[0].ask("sow", 10, data=(b'{"id": "a"}', data)).answers[0].error
    assert "at most 1,000 payloads" in desks[0].ask("sow", 10, data=(data,) * 1_001).answers[0].error
    assert len(desks[0].select(20)) == 1


@pytest.mark.feature("S1", "S3", "S5", "C46")
@pytest.mark.parametrize("written", ["a", '"a"', '[ "a" ]', '["\\u0061"]'])
def test_a_key_is_found_at_home_however_it_is_written(written: str) -> None:
    desks = shards(3)
    everywhere(desks, {"id": "a"}, 1, partition=0)
    named = [written.encode(), b'["b"]']
    assert sum(len(desk.select(5, keys=named)) for desk in desks) == 1
    for desk in desks:
        desk.put(written, None, 10, partition=2)
    assert [desk.select(20) for desk in desks] == [[], [], []]
    everywhere(desks, {"id": "a"}, 30, partition=0)
    counts = [dict(desk.ask("sow_delete", 40, keys=named).answers[0].counts) for desk in desks]
    assert sum(count["removed"] for count in counts) == 1


@pytest.mark.feature("S3", "S5", "X7")
def test_what_names_no_key_is_refused_and_deletes_nothing() -> None:
    desks = shards(2)
    everywhere(desks, {"id": 5}, 1, partition=0)
    fault = """'5' may be a text or not: write ["5"] or [5]"""
    for command in ("sow", "sow_delete"):
        (answer,) = desks[0].ask(command, 10, keys=(b"[5]", b"5")).answers
        assert (answer.code, "keys.1" in answer.error, fault in answer.error) == ("invalid_argument", True, True)
    letters = [letter for desk in desks for letter in desk.put("5", None, 20, partition=1).letters]
    assert [fault in letter.detail for letter in letters] == [True]
    assert sum(len(desk.select(30)) for desk in desks) == 1


@pytest.mark.feature("D2", "S1", "C84")
def test_letters_of_stored_records_have_the_kafka_records_own_key() -> None:
    """After a restart, too. Filters see none of it, and a producer cannot state it."""
    reasons = frozenset({Reason.TIME_LIMIT, Reason.WITHDRAWN})
    desk = Desk(shard_of(key=(path("/id"),), dead_letter_reasons=reasons))
    desk.put(b"\xff", {"id": 1}, 1, lapse_ttl_ms=9, trace="x", lapse_own_key="forged")
    desk.put(None, {"id": 2}, 1, lapse_ttl_ms=9, lapse_own_key="forged")
    desk.put(b"", {"id": 3, "n": 1}, 1)
    desk.put(b"delta", {"id": 3, "n": 2}, 2, lapse_command="delta", lapse_ttl_ms=8)
    desk.put("own", {"id": 4}, 2, lapse_enqueue_at_ms=T + 50, lapse_expires_at_ms=T + 10)
    desk.put("[5.0]", None, 2, lapse_enqueue_at_ms=T + 50)
    assert desk.select(3, filter="HEADER('lapse-own-key') IS NOT NULL") == []
    again = Desk(shard_of(key=(path("/id"),), dead_letter_reasons=reasons))
    again.shard.restore(list(desk.journal.items()))
    letters = [
        *again.advance(10).letters,
        *again.ask("sow_delete", 11, state="scheduled", bookmarks=("t:0:5",)).letters,
    ]
    assert {letter.bookmark.offset: (letter.key, letter.record_key) for letter in letters} == {
        0: (b"\xff", b"[1]"),
        1: (None, b"[2]"),
        3: (b"delta", b"[3]"),
        4: (b"own", b"[4]"),
        5: (b"[5.0]", b"[5]"),
    }
    assert all(letter.headers[0] == ("lapse-ttl-ms", b"9") for letter in letters[:2])
    assert not {name for letter in letters for name, _ in letter.headers} & {"lapse-own-key"}
