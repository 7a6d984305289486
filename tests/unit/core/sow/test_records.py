"""Updates, deltas, deletes and their lifetimes, by example."""

import json

import pytest

from lapse.core.lifetime import NEVER
from lapse.core.reason import SOW_DEAD_LETTER_REASONS, Reason
from lapse.core.shard.event import EventKind
from lapse.core.sow.keys.field_path import parse as path
from lapse.core.sow.records.record import facts_of, headers_of, payload_of
from lapse.core.sow.step import OutOfFocus, StateDelete, Step
from lapse.core.sow.updates.delta import difference
from unit.core.sow.make import Arrived, Desk, T, shard_of, state_records


def records(desk):
    return {name[1:].decode(): json.loads(payload_of(entry)) for name, entry in desk.shard.state.entries.items()}


def deadline(desk, key):
    instant = facts_of(desk.shard.state.entries[b"r" + key.encode()]).deadline_ms
    return instant if instant == NEVER else instant - T


def emitted_events(step):
    return [(item.kind, item.key, item.reasons, item.at_ms - T) for item in step.events]


@pytest.mark.feature("S2", "S4", "L1")
def test_a_record_of_45_seconds_updated_at_15_lives_to_60():
    desk = Desk(shard_of(45_000))
    desk.put("order", {"n": 1}, 0)
    desk.put("order", {"n": 2}, 15_000)
    assert not desk.advance(45_000).events
    assert records(desk) == {"order": {"n": 2}}
    assert not desk.advance(59_999).events
    step = desk.advance(60_000)
    assert emitted_events(step) == [(EventKind.EXPIRED, b"order", (Reason.TIME_LIMIT,), 60_000)]
    assert records(desk) == desk.compacted == desk.journal.get(b"rorder", {}) == {}


@pytest.mark.feature("L7", "L2")
def test_a_large_order_published_with_0_outlives_the_topics_five_minutes():
    desk = Desk(shard_of(300_000))
    desk.put("small", {}, 0)
    desk.put("large", {}, 0, lapse_ttl_ms=0)
    desk.advance(300_000)
    assert records(desk) == {"large": {}}
    assert deadline(desk, "large") == NEVER


@pytest.mark.feature("S2")
def test_the_updates_own_lifetime_restarts_else_the_default():
    desk = Desk(shard_of(1000))
    desk.put("k", {"a": 1}, 0, lapse_ttl_ms=60_000)
    assert deadline(desk, "k") == 60_000
    desk.put("k", {"b": 1}, 10, lapse_command="delta")
    assert deadline(desk, "k") == 1010
    desk.put("k", {"c": 1}, 20, lapse_command="delta", lapse_ttl_ms=7)
    assert deadline(desk, "k") == 27
    assert records(desk) == {"k": {"a": 1, "b": 1, "c": 1}}


@pytest.mark.feature("S2")
def test_a_delta_merges_objects_replaces_the_rest_and_sets_null():
    desk = Desk(shard_of())
    desk.put("k", {"o": {"a": 1, "b": {"c": 2}}, "l": [1, 2], "s": "x"}, 0)
    desk.put("k", {"o": {"b": {"d": 3}}, "l": [], "s": None, "new": {"y": 1}}, 1, lapse_command="delta")
    assert records(desk) == {"k": {"o": {"a": 1, "b": {"c": 2, "d": 3}}, "l": [], "s": None, "new": {"y": 1}}}


@pytest.mark.feature("S2", "S6")
@pytest.mark.parametrize(
    ("stored", "delta"),
    [({"o": {"a": 1}}, {"o": [2]}), ({"o": {"p": [1]}}, {"o": {"p": {"a": 1}}}), ({"o": {"a": 1}}, {"o": 5})],
)
def test_an_array_replaces_an_object_and_the_other_way_round(stored, delta):
    """Only objects merge with objects; who follows changed fields is told of it by them."""
    desk = Desk(shard_of())
    desk.put("k", stored, 0)
    desk.put("k", delta, 1, lapse_command="delta")
    assert records(desk) == {"k": delta}
    assert difference(stored, delta) == delta


@pytest.mark.feature("S2", "X7")
@pytest.mark.parametrize(
    ("stored", "delta", "text"),
    [
        ({}, [1], "the delta is an array"),
        ([1], {}, "the stored record is an array"),
    ],
)
def test_a_delta_that_does_not_fit_is_a_dead_letter_and_changes_nothing(stored, delta, text):
    desk = Desk(shard_of())
    desk.put("k", stored, 0)
    step = desk.put("k", delta, 1, lapse_command="delta", trace="1")
    (letter,) = step.letters
    assert letter.reasons == (Reason.UNDECODABLE,)
    assert text in letter.detail
    assert json.loads(letter.value) == delta
    assert dict(letter.headers) == {"lapse-command": b"delta", "trace": b"1"}
    assert (letter.bookmark.topic, letter.bookmark.partition, letter.bookmark.offset) == ("t", 0, 1)
    assert [item.kind for item in step.events] == [EventKind.DEAD_LETTERED]
    assert records(desk) == {"k": stored}


@pytest.mark.feature("S2", "X7")
def test_an_unreadable_delta_or_an_unknown_command_is_a_dead_letter():
    desk = Desk(shard_of())
    desk.put("k", {}, 0)
    assert "cannot be merged" in desk.put("k", b"{", 1, raw=True, lapse_command="delta").letters[0].detail
    assert "expected publish or delta" in desk.put("k", {}, 1, lapse_command="upsert").letters[0].detail
    desk.put("raw", b"\xff", 2, raw=True)
    assert "stored" not in (detail := desk.put("raw", {}, 3, lapse_command="delta").letters[0].detail)
    assert "payload cannot be read" in detail


@pytest.mark.feature("X7", "S2")
def test_payloads_nested_beyond_all_limits_stop_nothing():
    desk = Desk(shard_of())
    deep = b'{"a":' * 5000 + b"1" + b"}" * 5000
    desk.put("k", deep, 0, raw=True)
    assert desk.put("k", deep, 1, raw=True, lapse_command="delta").letters
    assert desk.select(2, filter="/a = 1") == []


@pytest.mark.feature("C44", "S2")
def test_a_delta_without_a_record_is_stored_whole():
    desk = Desk(shard_of(10))
    desk.put("never", {"a": None}, 0, lapse_command="delta")
    desk.put("gone", {"b": 1}, 0)
    desk.put("gone", {"a": 1}, 10, lapse_command="delta")
    assert records(desk) == {"never": {"a": None}, "gone": {"a": 1}}


@pytest.mark.feature("C1", "C2", "S4")
def test_a_delta_stamped_at_or_after_the_deadline_meets_an_expired_record_before_any_timer():
    desk = Desk(shard_of(10))
    desk.put("k", {"a": 1}, 0)
    step = desk.put("k", {"b": 1}, 10, lapse_command="delta")
    assert emitted_events(step) == [(EventKind.EXPIRED, b"k", (Reason.TIME_LIMIT,), 10)]
    assert records(desk) == {"k": {"b": 1}}
    desk.put("k", {"c": 1}, 19, lapse_command="delta")
    assert records(desk) == {"k": {"b": 1, "c": 1}}


@pytest.mark.feature("S3")
def test_a_null_value_deletes_and_deletes_nothing_twice():
    desk = Desk(shard_of())
    desk.put("k", {}, 0)
    assert emitted_events(desk.put("k", None, 1)) == [(EventKind.DELETED, b"k", (), 1)]
    assert not desk.put("k", None, 2).events
    assert desk.compacted == {}
    assert set(desk.journal) == {b"t\0\0\0\0", b"gk"}


@pytest.mark.feature("L12", "S3")
def test_a_delete_with_a_bad_lifetime_is_a_dead_letter_and_deletes_nothing():
    desk = Desk(shard_of())
    desk.put("k", {}, 0)
    step = desk.put("k", None, 1, lapse_ttl_ms="soon")
    assert step.letters[0].reasons == (Reason.INVALID_LIFETIME,)
    assert records(desk) == {"k": {}}


@pytest.mark.feature("L12", "C25")
@pytest.mark.parametrize("enabled", [True, False])
def test_an_invalid_lifetime_is_a_dead_letter_and_the_rest_flows_on(enabled):
    desk = Desk(shard_of(enabled=enabled))
    step = Step()
    rows = [
        Arrived(0, T, b"a", b"{}"),
        Arrived(1, T, b"b", b"{}", [("lapse-ttl-ms", b"-1")]),
        Arrived(2, T, b"c", b"{}"),
    ]
    assert desk.shard.arrive("t", 0, rows, step) == 3
    desk.keep(step)
    assert records(desk) == {"a": {}, "c": {}}
    assert step.letters[0].detail.startswith("lapse-ttl-ms = '-1': expected")
    assert emitted_events(step) == [(EventKind.DEAD_LETTERED, None, (Reason.INVALID_LIFETIME,), 0)]


@pytest.mark.feature("C6", "L12")
def test_timestamps_of_minus_1_and_of_the_far_future_stop_nothing():
    desk = Desk(shard_of(5))
    desk.put("k", {}, -1 - T)
    desk.put("k", {}, -1 - T, lapse_ttl_ms=0)
    desk.put("far", {}, (1 << 63) - 2 - T)
    desk.put("far", {"n": 1}, (1 << 63) - 2 - T, lapse_ttl_ms=0)
    desk.ask("sow_delete", (1 << 63) - 2 - T, keys=(b"far",))
    assert records(desk) == {"k": {}}
    assert deadline(desk, "k") == NEVER
    desk = Desk(shard_of(enabled=False))
    desk.put("last", {}, NEVER - T)
    desk.put("last", None, 0)  # a delete is later than what it deletes, and there is no later instant
    assert records(desk) == {}


@pytest.mark.feature("L3", "L11", "S4")
def test_a_past_deadline_replaces_the_record_and_takes_it_along():
    desk = Desk(shard_of())
    desk.put("k", {"a": 1}, 0)
    step = desk.put("k", {"a": 2}, 5, lapse_expires_at_ms=T + 5)
    assert emitted_events(step) == [(EventKind.EXPIRED, b"k", (Reason.TIME_LIMIT,), 5)]
    assert step.events[0].bookmark.offset == 1
    assert records(desk) == desk.compacted == {}


@pytest.mark.feature("L6", "L9")
def test_switched_off_nothing_expires_and_switched_on_again_all_that_passed_does_at_once():
    desk = Desk(shard_of(10))
    desk.put("old", {}, 0)
    off = shard_of(10, enabled=False).settings
    on = desk.shard.settings
    desk.crash(5, off)
    desk.put("meanwhile", {}, 20)
    assert not desk.advance(10**6).events
    assert len(desk.select(10**6)) == 2
    assert desk.shard.next_due_ms() == NEVER
    assert (deadline(desk, "old"), deadline(desk, "meanwhile")) == (10, 30)
    desk.crash(10**6, on)
    assert {item.key for item in desk.advance(10**6).events} == {b"old", b"meanwhile"}


@pytest.mark.feature("L9")
def test_a_new_default_changes_no_stored_deadline():
    desk = Desk(shard_of(10))
    desk.put("k", {}, 0)
    desk.crash(1, shard_of(99_999).settings)
    assert deadline(desk, "k") == 10
    desk.put("k", {}, 2)
    assert deadline(desk, "k") == 100_001


@pytest.mark.feature("S9", "L11")
def test_what_expired_while_nothing_ran_leaves_before_the_first_query_answers():
    desk = Desk(shard_of(10))
    desk.put("k", {}, 0)
    desk.put("l", {}, 0, lapse_ttl_ms=0)
    desk.crash(1000)
    step = desk.ask("sow", 1000)
    assert emitted_events(step) == [(EventKind.EXPIRED, b"k", (Reason.TIME_LIMIT,), 1000)]
    assert [message.key for message in desk.answer(step, 1000)] == [None, b"l", None]
    assert desk.compacted == {b"l": b"{}"}


@pytest.mark.feature("L10")
def test_a_record_lives_through_the_last_millisecond_before_its_deadline():
    desk = Desk(shard_of(10))
    desk.put("k", {}, 0)
    assert desk.select(9) == [{}]
    assert desk.select(10) == []


@pytest.mark.feature("C29")
def test_a_record_redriven_to_another_entity_is_skipped():
    desk = Desk(shard_of())
    desk.put("k", {"n": 1}, 0)
    assert not desk.put("k", {"n": 2}, 1, lapse_redrive_queue="other", lapse_ttl_ms="bad").letters
    assert records(desk) == {"k": {"n": 1}}
    desk.put("k", {"n": 3}, 2, lapse_redrive_queue="orders")
    assert records(desk) == {"k": {"n": 3}}


@pytest.mark.feature("C46")
def test_of_several_partitions_the_later_stamp_is_the_latest_then_partition_then_offset():
    desk = Desk(shard_of(key=(("id",),)))
    for at, partition, n in [(10, 1, 1), (9, 2, 2), (10, 0, 3)]:
        desk.put(None, {"id": 5, "n": n}, at, partition=partition)
    assert records(desk) == {"[5]": {"id": 5, "n": 1}}
    desk.put(None, {"id": 5, "n": 4}, 10, partition=2)
    assert records(desk) == {"[5]": {"id": 5, "n": 4}}
    desk.put(None, {"id": 5, "n": 5}, 10, partition=2)
    assert records(desk) == {"[5]": {"id": 5, "n": 5}}


@pytest.mark.feature("C46", "S3")
def test_an_older_update_that_comes_late_does_not_revive_what_was_deleted():
    desk = Desk(shard_of(key=(("id",),)))
    desk.put(None, {"id": 5}, 10, partition=0)
    desk.put("[5]", None, 20, partition=1)
    desk.put(None, {"id": 5}, 15, partition=0)
    assert records(desk) == {}
    desk.crash(20)
    desk.put(None, {"id": 5}, 15, partition=0)
    assert records(desk) == {}
    desk.put(None, {"id": 5, "n": 1}, 25, partition=0)
    assert records(desk) == {"[5]": {"id": 5, "n": 1}}
    assert not desk.shard.state.tombstones
    assert not [key for key in desk.journal if key[:1] == b"g"]


@pytest.mark.feature("C46")
def test_tombstones_are_forgotten_after_their_time():
    desk = Desk(shard_of(tombstone_ms=100))
    desk.put("k", {}, 0)
    desk.ask("sow_delete", 10, keys=(b"k",))
    assert desk.shard.next_due_ms() == T + 110
    desk.advance(110)
    assert not desk.shard.state.tombstones
    assert desk.shard.next_due_ms() == NEVER
    assert set(desk.journal) == {b"t\0\0\0\0"}


@pytest.mark.feature("S1")
def test_a_key_from_the_payload_is_canonical_json():
    desk = Desk(shard_of(key=(("symbol",), ("at", "venue"))))
    desk.put("ignored", {"symbol": "IBM", "at": {"venue": 1}}, 0)
    desk.put(None, {"at": {"venue": 1.0}, "symbol": "IBM", "n": 2}, 1)
    assert records(desk) == {'["IBM",1]': {"at": {"venue": 1.0}, "symbol": "IBM", "n": 2}}
    assert desk.put('["IBM",1]', None, 2).events[0].key == b'["IBM",1]'


@pytest.mark.feature("S1", "X7")
@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"{", "cannot be read"),
        (b"[]", "/id is missing"),
        (b"{}", "/id is missing"),
        (b'{"id":null}', "/id is missing or null"),
        (b'{"id":{"a":1}}', "is an object"),
        (b'{"id":[1]}', "is an array"),
        (b'{"id":NaN}', "no finite number"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_record_without_its_key_is_a_dead_letter(payload, text):
    desk = Desk(shard_of(key=(("id",),)))
    (letter,) = desk.put("k", payload, 0, raw=True).letters
    assert letter.reasons == (Reason.UNDECODABLE,)
    assert text in letter.detail
    assert (letter.key, letter.value) == (b"k", payload)
    assert not desk.shard.state.entries


@pytest.mark.feature("S1")
def test_a_null_record_key_is_a_dead_letter_an_empty_one_is_a_key():
    desk = Desk(shard_of())
    assert desk.put(None, {}, 0).letters[0].detail == "the record has no key: its record key is null"
    assert desk.put(None, None, 0).letters[0].reasons == (Reason.UNDECODABLE,)
    desk.put("", {}, 0)
    assert records(desk) == {"": {}}


@pytest.mark.feature("L5", "C47")
def test_scheduled_in_5_minutes_with_10_minutes_to_live():
    minute = 60_000
    desk = Desk(shard_of())
    desk.put("k", {"n": 0}, 0)
    step = desk.put("k", {"n": 1}, 0, lapse_enqueue_at_ms=T + 5 * minute, lapse_ttl_ms=10 * minute)
    assert [item.kind for item in step.events] == [EventKind.SCHEDULED]
    assert records(desk) == {"k": {"n": 0}}
    assert desk.shard.next_due_ms() == T + 5 * minute
    desk.crash(1)
    desk.advance(5 * minute)
    assert records(desk) == {"k": {"n": 1}}
    assert deadline(desk, "k") == 15 * minute
    desk.advance(15 * minute)
    assert records(desk) == {}


@pytest.mark.feature("C47")
def test_deleting_a_record_does_not_withdraw_its_scheduled_version():
    desk = Desk(shard_of())
    desk.put("k", {"n": 0}, 0)
    desk.put("k", {"n": 1}, 0, lapse_enqueue_at_ms=T + 50)
    desk.put("k", None, 10)
    desk.ask("sow_delete", 11, keys=(b"k",))
    desk.advance(50)
    assert records(desk) == {"k": {"n": 1}}


@pytest.mark.feature("C11", "C47", "C1")
def test_versions_take_effect_by_instant_then_bookmark_and_before_what_is_stamped_after_them():
    desk = Desk(shard_of())
    desk.put("k", {"n": 1}, 0, lapse_enqueue_at_ms=T + 50)
    desk.put("k", {"a": 1}, 0, lapse_enqueue_at_ms=T + 50, lapse_command="delta")
    desk.put("k", {"b": 1}, 60, lapse_command="delta")
    assert records(desk) == {"k": {"n": 1, "a": 1, "b": 1}}
    assert not desk.shard.state.schedule


@pytest.mark.feature("L5", "L14")
def test_a_scheduled_version_is_withdrawn_by_its_bookmark():
    desk = Desk(shard_of(dead_letter_reasons=frozenset(Reason)))
    desk.put("k", {"n": 1}, 0, lapse_enqueue_at_ms=T + 50, trace="x")
    step = desk.ask("sow_delete", 10, bookmarks=("t:0:0",))
    assert dict(step.answers[0].counts) == {"removed": 1, "skipped": 0}
    assert emitted_events(step) == [(EventKind.DEAD_LETTERED, b"k", (Reason.WITHDRAWN,), 10)]
    assert json.loads(step.letters[0].value) == {"n": 1}
    assert ("trace", b"x") in step.letters[0].headers
    desk.advance(50)
    assert records(desk) == {}


@pytest.mark.feature("L5", "L10")
def test_a_version_whose_deadline_comes_before_its_instant_leaves_without_effect():
    desk = Desk(shard_of())
    desk.put("k", {"n": 0}, 0)
    desk.put("k", {"n": 1}, 0, lapse_enqueue_at_ms=T + 50, lapse_expires_at_ms=T + 20)
    assert desk.shard.next_due_ms() == T + 20
    assert emitted_events(desk.advance(20)) == [(EventKind.EXPIRED, b"k", (Reason.TIME_LIMIT,), 20)]
    desk.advance(60)
    assert records(desk) == {"k": {"n": 0}}


@pytest.mark.feature("C25", "D2")
def test_an_expired_record_gets_a_letter_only_where_it_is_asked_for():
    for reasons, letters in [(SOW_DEAD_LETTER_REASONS, 0), (frozenset({Reason.TIME_LIMIT}), 1), (frozenset(), 0)]:
        desk = Desk(shard_of(dead_letter_reasons=reasons))
        desk.put("k", {"n": 1}, 0, lapse_ttl_ms=5, trace="x")
        step = desk.advance(5)
        assert len(step.letters) == letters
        if letters:
            assert step.letters[0].headers == (("lapse-ttl-ms", b"5"), ("trace", b"x"))
            assert step.letters[0].deadline_ms == T + 5


@pytest.mark.feature("S8")
def test_one_step_tells_the_compacted_topic_the_last_of_each_key_with_deadline_and_bookmark():
    desk = Desk(shard_of(100))
    step = Step()
    rows = [
        Arrived(7, T, b"a", b"1"),
        Arrived(8, T + 1, b"a", b"2", [("trace", b"x")]),
        Arrived(9, T, b"b", b"1"),
        Arrived(10, T, b"b", None),
    ]
    desk.shard.arrive("t", 3, rows, step)
    (key, entry, left), second = state_records(step)
    first = desk.shard.state.view(b"ra", entry)
    assert (key, first.raw, first.headers, left) == (b"a", b"2", {"trace": b"x"}, None)
    assert (first.bookmark, first.timestamp_ms, first.facts.deadline_ms) == (("t", 3, 8), T + 1, T + 101)
    assert second == (b"b", None, StateDelete(OutOfFocus.DELETED, T + 1))


def test_a_batch_is_cut_where_its_changes_exceed_the_limit_and_goes_on_from_there():
    desk = Desk(shard_of(max_step_bytes=1000))
    rows = [Arrived(offset, T, b"%d" % offset, b"x" * 100, [("h", b"")] * (offset % 2)) for offset in range(50)]
    steps = 0
    while rows:
        step = Step()
        rows = rows[desk.shard.arrive("t", 0, rows, step) :]
        steps += 1
        assert step.change_bytes < 1200
    assert 7 < steps < 15
    assert len(desk.shard.state.entries) == 50


def test_headers_survive_with_their_order_repeats_and_nulls():
    desk = Desk(shard_of())
    headers = [("a", b"1"), ("a", None), ("ü", b""), ("", b"\0")]
    desk.shard.arrive("t", 0, [Arrived(0, T, b"k", b"v", headers)], Step())
    assert headers_of(desk.shard.state.entries[b"rk"]) == headers
    assert payload_of(desk.shard.state.entries[b"rk"]) == b"v"


@pytest.mark.feature("X7", "S1", "S2")
def test_what_no_topic_would_take_is_a_dead_letter_and_a_merged_record_stops_growing():
    shard = shard_of(max_record_bytes=10_000)
    desk = Desk(shard)
    step = desk.put("k", b"x" * 10_000, 0, raw=True)
    assert [(one.reasons, one.detail) for one in step.letters] == [
        ((Reason.UNDECODABLE,), "the record has 10,001 bytes; this SOW topic keeps 10,000 at most")
    ]
    assert not desk.put("k", b"x" * 9_999, 0, raw=True).letters
    step = desk.put("l", b"x", 0, raw=True, trace=b"h" * 10_000)
    assert [one.reasons for one in step.letters] == [(Reason.UNDECODABLE,)]
    faults = []
    for number in range(12):
        step = desk.put("grows", {f"field {number}": "x" * 1_000}, 0, lapse_command=b"delta")
        faults += [one.detail for one in step.letters]
    assert len(faults) == 3
    assert "a delta that makes a record of" in faults[0]
    long = Desk(shard_of(key=(path("/k"),)))
    (letter,) = long.put(None, {"k": "x" * 40_000}, 0).letters
    assert "is the most that a key from a payload may have" in letter.detail


@pytest.mark.feature("C42", "D3")
def test_a_removal_says_of_which_of_the_topics_of_one_name_its_record_is():
    """The letters of a topic that was created again have the bookmarks of earlier ones, and are no copies of them."""
    desk = Desk(shard_of(1000, dead_letter_reasons=SOW_DEAD_LETTER_REASONS | {Reason.TIME_LIMIT}))
    desk.put("old", {}, 0)
    assert [one.incarnation for one in desk.put("bad", {}, 1, lapse_ttl_ms=-1).removals] == [0]
    for _ in range(2):
        desk.step(lambda step: desk.shard.replace_topic("t", 5, T, step))
    assert [one.incarnation for one in desk.put("bad", {}, 2, lapse_ttl_ms=-1).removals] == [2]
    desk.put("new", {}, 3)
    assert [(one.key, one.incarnation) for one in desk.advance(2000).removals] == [(b"old", 0), (b"new", 2)]
