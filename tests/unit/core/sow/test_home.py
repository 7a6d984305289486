"""Keys from the payload over several partitions: each shard reads all of them and keeps its own keys (C46)."""

import json

import pytest
from aiokafka.partitioner import murmur2 as kafkas
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.sow.field_path import parse as path
from lapse.core.sow.home import Home, murmur2
from unit.core.sow.make import Desk, shard_of


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
    assert sorted((letter.place.partition, letter.place.offset) for letter in letters) == [
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
