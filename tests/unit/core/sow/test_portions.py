"""Whoever goes through all records does it in portions, and the records may change meanwhile (S3, S5, C45)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.sow.keys.field_path import parse as path
from lapse.core.sow.query.view import View
from lapse.core.sow.records import record_names
from lapse.core.sow.records.record_names import RecordNames
from lapse.core.sow.removal.deletion import Bookmarks
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Step
from lapse.core.sow.updates.version import Version
from lapse.protocol.command import Command
from support.suite.at_length import alike
from unit.core.sow.make import Desk, T, shard_of

COUNT = 1_300


def filled(**settings: object) -> Desk:
    desk = Desk(shard_of(**settings))
    for number in range(COUNT):
        desk.put(f"k{number}", {"n": number}, 0)
    return desk


@pytest.mark.feature("S3", "C1")
def test_a_deletion_goes_on_in_portions_and_touches_nothing_that_is_later() -> None:
    desk = filled()
    step = Step()
    desk.shard.commands.handle(Command(command="sow_delete", id="d", filter="/n >= 100"), T + 10, step, None)
    desk.keep(step)
    (deletion,) = step.deletions
    assert not step.answers
    assert 0 < deletion.removed < COUNT - 100
    desk.put(f"k{COUNT - 1}", {"n": 5_000}, 11)  # not reached yet, and later
    desk.put("k200", {"n": 200}, 12)  # deleted before, and new
    desk.put("fresh", {"n": 300}, 12)
    answers = []
    while not deletion.finished:
        part = desk.step(lambda step: desk.shard.continue_deletion(deletion, step))
        assert len(part.events) <= 500
        answers += part.answers
    assert [(answer.id, dict(answer.counts)) for answer in answers] == [("d", {"removed": COUNT - 101, "skipped": 1})]
    assert {row["n"] for row in desk.select(20)} == {*range(100), 200, 300, 5_000}
    # What a crash left undone is done when the command is read again.
    again = desk.ask("sow_delete", 10, id="d", filter="/n >= 100")
    assert dict(again.answers[0].counts)["removed"] == 0


@pytest.mark.feature("S3", "C1", "C60")
def test_a_deletion_of_many_keys_goes_on_in_portions() -> None:
    desk = filled()
    keys = (*(f"k{number}".encode() for number in range(100, COUNT)), b"k100", b"nobody")
    step = Step()
    desk.shard.commands.handle(Command(command="sow_delete", id="d", keys=keys), T + 10, step, None)
    desk.keep(step)
    assert len(step.events) == 500
    assert not step.answers
    (deletion,) = step.deletions
    desk.put(f"k{COUNT - 1}", {"n": 5_000}, 11)  # not reached yet, and later
    answers = []
    while not deletion.finished:
        part = desk.step(lambda step: desk.shard.continue_deletion(deletion, step))
        assert len(part.events) <= 500
        answers += part.answers
    assert [dict(answer.counts) for answer in answers] == [{"removed": COUNT - 101, "skipped": 2}]
    assert {row["n"] for row in desk.select(20)} == {*range(100), 5_000}
    desk.put("nobody", {"n": 1}, 5)
    assert {row["n"] for row in desk.select(21)} == {*range(100), 5_000}, "it was deleted later than it was written"


@pytest.mark.feature("S2", "S3", "C1", "C44")
@pytest.mark.parametrize(
    "named", [{"filter": "/n >= 100"}, {"keys": tuple(f"k{number}".encode() for number in range(100, COUNT))}]
)
def test_a_delta_finds_no_record_that_a_deletion_under_way_has_not_reached_yet(named: dict[str, Any]) -> None:
    """The deletion is earlier, however far it has come: so it is after a crash, when it is done before the delta."""
    desk = filled()
    desk.ask("subscribe", 0, subscription="s")
    step = Step()
    desk.shard.commands.handle(Command(command="sow_delete", id="d", **named), T + 10, step, None)
    desk.keep(step)
    (deletion,) = step.deletions
    last = f"k{COUNT - 1}"
    assert not desk.put(last, {"m": 1}, 10, lapse_command="delta").events, "at its instant it still is there"
    deleted = desk.put("k1298", {"m": 1}, 11, lapse_command="delta")
    assert [event.kind for event in deleted.events] == ["deleted"]
    desk.put("k99", {"m": 1}, 11, lapse_command="delta")
    answers = []
    while not deletion.finished:
        answers += desk.step(lambda step: desk.shard.continue_deletion(deletion, step)).answers
    assert [dict(answer.counts) for answer in answers] == [{"removed": COUNT - 100, "skipped": 0}]
    rows = desk.select(20)
    assert {"m": 1} in rows
    assert {"n": 99, "m": 1} in rows
    assert len(rows) == 101
    assert desk.put("k98", {"m": 2}, 21, lapse_command="delta").deliveries


@pytest.mark.slow
@pytest.mark.feature("S3", "C60")
@pytest.mark.parametrize(("answer", "refused"), [("all", True), ("errors", True), ("none", False)])
def test_of_many_payloads_all_are_read_before_a_record_leaves(answer: str, refused: bool) -> None:
    desk = Desk(shard_of(key=(path("/n"),)))
    for number in range(COUNT):
        desk.put(None, {"n": number}, 0)
    payloads = tuple(f'{{"n": {number}}}'.encode() for number in range(COUNT))
    step = desk.ask("sow_delete", 10, data=(*payloads, b"{}"), answer=answer)
    assert not step.events
    assert [one.refusal is not None and "data.1300" in one.refusal.text for one in step.answers] == [True] * refused
    step = Step()
    desk.shard.commands.handle(Command(command="sow_delete", id="d", data=payloads, answer=answer), T + 11, step, None)
    assert not step.events, "the first portion only reads"
    (deletion,) = step.deletions
    while not deletion.finished:
        part = desk.step(lambda step: desk.shard.continue_deletion(deletion, step))
        assert len(part.events) <= 500
    assert bool(part.answers) is (answer == "all")
    assert deletion.removed == COUNT


@pytest.mark.feature("S3")
def test_a_deletion_by_bookmarks_looks_in_portions_too() -> None:
    desk = filled()
    ranges = ("t:0:0-99", "t:0:50-149", "t:0:1299", "u:0:5")
    step = desk.ask("sow_delete", 10, bookmarks=ranges)
    assert dict(step.answers[0].counts) == {"removed": 151, "skipped": 0}
    assert {row["n"] for row in desk.select(20)} == set(range(150, 1_299))


def scheduled() -> Desk:
    """A topic with scheduled updates only; those that came last take effect first."""
    desk = Desk(shard_of())
    for number in range(COUNT):
        desk.put(f"k{number}", {"n": number}, 0, lapse_enqueue_at_ms=T + 90_000 - number)
    return desk


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """On how many scheduled updates filters were tried since it was called last."""
    count, view_of = [0], SowState.view_of_version

    def counted(state: SowState, version: Version) -> View:
        count[0] += 1
        return view_of(state, version)

    def since() -> int:
        some, count[0] = count[0], 0
        return some

    monkeypatch.setattr(SowState, "view_of_version", counted)
    return since


@pytest.mark.feature("L5", "C60")
def test_scheduled_updates_are_listed_in_portions_as_they_stood(tried: Callable[[], int]) -> None:
    desk = scheduled()
    step = desk.ask("sow", 10, state="scheduled", filter="/n >= 100", skip=50)
    assert not step.answers
    assert 0 < tried() <= 250
    (listing,) = step.queries
    desk.ask("sow_delete", 11, state="scheduled", filter="/n >= 1000")
    desk.put("later", {"n": 2_000}, 12, lapse_enqueue_at_ms=T + 50)
    answers = []
    tried()
    while not listing.finished:
        answers += desk.step(lambda step: desk.shard.pull(listing, T + 13, step, 100)).answers
        assert tried() <= 100
    (answer,) = answers
    assert dict(answer.counts) == {"scheduled": COUNT - 100}
    (_, updates) = answer.facts[0]
    assert [one.key for one in updates] == [f"k{number}" for number in range(COUNT - 51, COUNT - 51 - 1_000, -1)]


@pytest.mark.feature("L5", "C60", "C82")
@pytest.mark.parametrize(
    ("asked", "row_filter"), [({"filter": "/n >= 100"}, None), ({"bookmarks": ("t:0:100-1299",)}, "/n >= 0")]
)
def test_scheduled_updates_are_withdrawn_in_portions(
    asked: dict[str, Any], row_filter: str | None, tried: Callable[[], int]
) -> None:
    desk = scheduled()
    step = Step()
    command = Command(command="sow_delete", id="d", state="scheduled", **asked)
    desk.shard.commands.handle(command, T + 10, step, row_filter)
    desk.keep(step)
    (deletion,) = step.deletions
    assert not step.answers
    assert 0 < tried() <= 500
    desk.put("later", {"n": 2_000}, 11, lapse_enqueue_at_ms=T + 90_000)
    answers = []
    while not deletion.finished:
        part = desk.step(lambda step: desk.shard.continue_deletion(deletion, step, 100))
        assert len(part.events) <= 100
        assert tried() <= 100
        answers += part.answers
    assert [dict(answer.counts) for answer in answers] == [{"removed": COUNT - 100}]
    assert {version.key for _, version in desk.shard.state.schedule} == {b"later", *(b"k%d" % n for n in range(100))}


@pytest.mark.feature("L5", "C60", "C82")
def test_bookmarks_and_a_users_depth_look_at_scheduled_updates_in_portions(tried: Callable[[], int]) -> None:
    desk = scheduled()
    desk.put("k1", {"n": 1}, 5)
    step = desk.ask("depth", 10, row_filter="/n < 700")
    (query,) = step.queries
    answers = []
    while not query.finished:
        answers += desk.step(lambda step: desk.shard.pull(query, T + 13, step, 100)).answers
        assert tried() <= 100
    assert [dict(answer.counts) for answer in answers] == [{"records": 1, "scheduled": 700}]
    step = Step()
    desk.shard.commands.handle(
        Command(command="sow_delete", id="d", bookmarks=("t:0:0-1400",)), T + 20, step, "/n < 700"
    )
    desk.keep(step)
    assert 0 < tried() <= 500
    (deletion,) = step.deletions
    while not deletion.finished:
        part = desk.step(lambda step: desk.shard.continue_deletion(deletion, step, 100))
        assert tried() <= 100
        answers += part.answers
    assert dict(answers[-1].counts) == {"removed": 701, "skipped": 0}
    assert len(desk.shard.state.schedule) == COUNT - 700


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=6), st.integers(0, 40))
@pytest.mark.feature("S3")
def test_ranges_have_what_any_of_them_has(ranges: list[tuple[int, int]], offset: int) -> None:
    bookmarks = Bookmarks({7: [(first, first + more) for first, more in ranges]})
    assert bookmarks.contains(7, offset) == any(first <= offset <= first + more for first, more in ranges)
    assert not bookmarks.contains(8, offset)


@pytest.mark.feature("S5", "S6")
@pytest.mark.parametrize("order", alike("/n DESC", None))
def test_a_query_shows_the_records_as_they_stood(order: str | None) -> None:
    desk = filled()
    step = desk.ask("sow", 5, order_by=order, filter="/n < 5000")
    (query,) = step.queries
    desk.put("k0", {"n": 9_000}, 6)
    desk.put("k1", None, 6)
    desk.put("k1", {"n": 9_001}, 7)
    desk.put("fresh", {"n": 1}, 7)
    desk.ask("sow_delete", 8, filter="/n = 1299 OR /n = 2")
    found: list[object] = []
    while not query.finished:
        part = desk.pull(query, 9)
        found += [message.payload for message in part.deliveries if message.kind == "sow"]
    expected = [b'{"n": %d}' % number for number in range(COUNT)]
    assert found == expected[::-1] if order else sorted(found) == sorted(expected)
    assert not desk.shard.state.snapshots, "nobody keeps anything any more"


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.booleans()), max_size=40), st.integers(0, 3))
@pytest.mark.feature("S5")
def test_each_record_is_among_the_names_once(changes: list[tuple[bytes, bool]], slack: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_names, "_SLACK", slack)
        entries: dict[bytes, bytes] = {}
        names = RecordNames(entries)
        walk, there = names.walk(), set[bytes]()
        for at, (name, put) in enumerate(changes):
            if put:
                if name not in entries:
                    names.add(name)
                entries[name] = b""
            elif name in entries:
                del entries[name]
                names.discard((name,))
            if at == 5:
                walk, there = names.walk(), set(entries)
        seen: list[bytes] = []
        while not walk.is_over:
            seen += walk.take(2)
        assert len(seen) == len(set(seen))
        assert there <= set(seen)
        now = list(names.walk().take(100))
        assert len(now) == len(set(now))
        assert set(entries) <= set(now)
