"""A queue that gets more shards: who reads what from when on, over any order of take-overs and crashes (C81)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lapse.core.shard.growth import Growth, adopted_shard_note, first_offsets, new_shard_note
from support.suite.at_length import examples


@pytest.mark.feature("C81")
def test_what_is_noted_is_read_again() -> None:
    for note in (new_shard_note(0, 4), new_shard_note(3, 4), Growth(4, read={"orders:2": 7}, until=12, grown=True)):
        assert Growth.decode(note.encode()) == note


@pytest.mark.feature("C81")
def test_a_queue_whose_shards_are_all_new_waits_for_nobody() -> None:
    assert first_offsets(4, [new_shard_note(0, 4), new_shard_note(1, 4)], ["orders:2"], {}) == {}
    assert first_offsets(4, [], ["orders:2"], {}) == {}


@pytest.mark.feature("C81")
def test_a_new_shard_goes_on_where_an_older_one_has_stopped_and_has_nothing_left() -> None:
    running = adopted_shard_note(None, 4, {"orders:0": 20, "orders:2": 7}, {}, first_occupied=3, next_place=12)
    assert first_offsets(4, [running], ["orders:2"], {}) is None
    assert adopted_shard_note(running, 4, {"orders:0": 90}, {}, first_occupied=11, next_place=80) == running, (
        "a crash changes nothing"
    )
    done = adopted_shard_note(running, 4, {"orders:0": 90}, {}, first_occupied=12, next_place=80)
    assert first_offsets(4, [done], ["orders:2"], {}) == {"orders:2": 7}
    assert first_offsets(4, [done], ["orders:6"], {}) == {"orders:6": 0}
    assert first_offsets(4, [done, None], ["orders:2"], {}) is None
    assert first_offsets(8, [done], ["orders:6"], {}) is None, "it does not know yet that there are more"


@pytest.mark.feature("C81")
def test_what_was_read_is_known_still_when_there_are_more_shards_before_the_first_ones_opened() -> None:
    once = adopted_shard_note(None, 2, {"orders:0": 5, "orders:1": 3}, {}, first_occupied=0, next_place=8)
    twice = adopted_shard_note(once, 4, {"orders:0": 9}, {}, first_occupied=None, next_place=12)
    assert first_offsets(4, [twice], ["orders:1"], {}) == {"orders:1": 3}


@pytest.mark.feature("C81", "C42")
def test_a_topic_that_was_created_anew_meanwhile_is_read_from_its_beginning() -> None:
    known = {"orders": "old", "others": "same"}
    first = adopted_shard_note(None, 2, {"orders:1": 7, "others:1": 5}, known, first_occupied=None, next_place=12)
    assert first_offsets(2, [first], ["orders:1", "others:1"], known) == {"orders:1": 7, "others:1": 5}
    now = {"orders": "new", "others": "same"}
    assert first_offsets(2, [first], ["orders:1", "others:1"], now) == {"orders:1": 0, "others:1": 5}
    more = adopted_shard_note(first, 4, {"orders:0": 3}, {"orders": "new"}, first_occupied=None, next_place=20)
    assert more.read == {"orders:0": 3, "others:1": 5}
    assert first_offsets(4, [more], ["orders:1", "others:1"], now) == {"orders:1": 0, "others:1": 5}
    assert Growth.decode(more.encode()) == more


@dataclass
class Shard:
    """A shard, as it would come back after a crash: what is in its journal."""

    note: Growth | None = None
    read: dict[str, int] = field(default_factory=dict)
    held: list[tuple[int, int]] = field(default_factory=list)
    """Numbers of the partition and the message, in the order of their places."""
    places: int = 0
    under: int = 0
    """With how many shards it runs; 0 = nobody runs it."""


class Growing(RuleBasedStateMachine):
    """Keys are partitions of the largest number: a key's partition is its number modulo how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions = self.shards = 1
        self.logs: list[list[tuple[int, int]]] = [[]]
        self.sent = [0] * 8
        self.seen: list[list[int]] = [[] for _ in range(8)]
        self.all = [Shard(note=new_shard_note(0, 1))]

    @rule(key=st.integers(0, 7))
    def publish(self, key: int) -> None:
        self.logs[key % self.partitions].append((key, self.sent[key]))
        self.sent[key] += 1

    @precondition(lambda self: self.partitions < 8)
    @rule()
    def add_partitions(self) -> None:
        """Producers know it at once; older shards that run merge what they read by time, so they have read the rest."""
        for shard in range(self.shards):
            if not self.all[shard].under:
                self.take_over(shard)
            self.take_in(shard, 1_000)
        self.logs += [[] for _ in range(self.partitions)]
        self.partitions *= 2

    @precondition(lambda self: self.shards < self.partitions)
    @rule()
    def enlarge(self) -> None:
        self.all += [Shard() for _ in range(self.partitions - self.shards)]
        self.shards = self.partitions

    @rule(shard=st.integers(0, 7))
    def take_over(self, shard: int) -> None:
        """By a worker that knows how many there are, after a crash or without one."""
        if shard >= self.shards:
            return
        one = self.all[shard]
        if one.note is None and not one.read:
            one.note = new_shard_note(shard, self.shards)
        places = self.places(shard, self.shards)
        if one.note is not None and one.note.waits:
            older = [other.note for other in self.all[:shard] if other.note is not None or other.read]
            found = first_offsets(self.shards, older, places, {})
            if found is not None:
                one.note = Growth(self.shards, read=found)
        if one.note is not None:
            one.read = {**{p: o for p, o in one.note.read.items() if p in places}, **one.read}
        first_occupied = one.places - len(one.held) if one.held else None
        one.note = adopted_shard_note(one.note, self.shards, one.read, {}, first_occupied, one.places)
        one.read = {place: offset for place, offset in one.read.items() if place in places}
        one.under = self.shards

    @rule(shard=st.integers(0, 7), most=st.integers(1, 5))
    def take_in(self, shard: int, most: int) -> None:
        if shard >= self.shards or not (one := self.all[shard]).under or (one.note is not None and one.note.waits):
            return
        for place in self.places(shard, one.under):
            partition = int(place.partition(":")[2])
            begin = one.read.get(place, 0)
            new = self.logs[partition][begin : begin + most]
            one.read[place] = begin + len(new)
            one.held += new
            one.places += len(new)

    @rule(shard=st.integers(0, 7), most=st.integers(1, 5))
    def settle(self, shard: int, most: int) -> None:
        """In the order of places, which is that of each group."""
        if shard < self.shards and self.all[shard].under:
            one = self.all[shard]
            for key, number in one.held[:most]:
                self.seen[key].append(number)
            del one.held[:most]

    def places(self, shard: int, shards: int) -> list[str]:
        return [f"t:{partition}" for partition in range(shard, self.partitions, shards)]

    @invariant()
    def each_key_is_settled_in_its_order_and_once(self) -> None:
        for numbers in self.seen:
            assert numbers == list(range(len(numbers)))

    def teardown(self) -> None:
        """Once all work again, nothing is left, and nothing is lost."""
        for _ in range(4):
            for shard in range(self.shards):
                self.take_over(shard)
                self.take_in(shard, 1_000)
                self.settle(shard, 1_000)
        for _ in range(2):
            for shard in range(self.shards):
                self.take_over(shard)
                self.take_in(shard, 1_000)
                self.settle(shard, 1_000)
        assert self.seen == [list(range(count)) for count in self.sent]


TestGrowing = Growing.TestCase
TestGrowing.settings = settings(max_examples=examples(600), stateful_step_count=60, deadline=None)
TestGrowing = pytest.mark.feature("C81")(TestGrowing)
