"""Queries, deletes and subscriptions, by example."""

import json

import pytest

from lapse.core.shard.event import EventKind
from lapse.core.sow.step import Kind, OutOfFocus, Step
from unit.core.sow.make import Desk, T, shard_of


def filled(**more):
    desk = Desk(shard_of(1000, **more))
    for n in range(6):
        desk.put(f"k{n}", {"n": n, "odd": n % 2 == 1, "name": f"name-{n}"}, n)
    return desk


def error(step):
    (answer,) = step.answers
    return answer.error


def seen(messages):
    return [(item.kind, item.key, item.payload and json.loads(item.payload), item.reason) for item in messages]


@pytest.mark.feature("S5")
def test_a_query_stands_between_begin_and_end_with_key_deadline_and_bookmark():
    desk = filled()
    step = desk.ask("sow", 10, id="q", filter="/n = 3", subscription="me")
    begin, record, end = desk.answer(step, 10)
    assert (begin.kind, end.kind) == (Kind.GROUP_BEGIN, Kind.GROUP_END)
    assert {item.command_id for item in (begin, record, end)} == {"q"}
    assert (record.kind, record.key, str(record.bookmark)) == (Kind.SOW, b"k3", "t:0:3")
    assert (record.timestamp_ms, record.deadline_ms) == (T + 3, T + 1003)
    (answer,) = step.answers
    assert (answer.id, answer.command, answer.subscription, answer.counts) == ("q", "sow", "me", (("records", 1),))


@pytest.mark.feature("S5", "X1")
def test_filter_order_top_and_skip():
    desk = filled()
    numbers = [doc["n"] for doc in desk.select(10, order_by="/n DESC", top_n=2, skip=1)]
    assert numbers == [4, 3]
    assert [doc["n"] for doc in desk.select(10, order_by="/n", filter="/odd = true")] == [1, 3, 5]
    assert [doc["n"] for doc in desk.select(10, order_by="/name asc", top_n=1)] == [0]
    assert [doc["n"] for doc in desk.select(10, keys=(b"k2", b"k5", b"none", b"k2"), order_by="/n")] == [2, 5]
    assert desk.select(10, top_n=0) == []
    assert len(desk.select(10)) == 6


@pytest.mark.feature("S5")
def test_null_nan_and_what_cannot_be_compared_come_last_either_way():
    desk = Desk(shard_of())
    for key, value in {"a": 2, "b": None, "c": "x", "d": 1.5, "e": [1]}.items():
        desk.put(key, {"v": value}, 0)
    assert [doc["v"] for doc in desk.select(1, order_by="/v")][:3] == [1.5, 2, "x"]
    assert [doc["v"] for doc in desk.select(1, order_by="/v DESC")][:3] == ["x", 2, 1.5]


@pytest.mark.feature("C45", "S5", "L10")
def test_the_deadline_is_looked_at_when_a_batch_is_sent():
    desk = Desk(shard_of(batch_size=1))
    for n, ttl in enumerate([100, 20, 100]):
        desk.put(f"k{n}", {"n": n}, 0, lapse_ttl_ms=ttl)
    step = desk.ask("sow", 1, order_by="/n", top_n=2)
    (query,) = step.queries
    first = desk.pull(query, 2)
    assert [json.loads(item.payload)["n"] for item in first.deliveries] == [0]
    second = desk.pull(query, 20)
    assert [json.loads(item.payload)["n"] for item in second.deliveries[:-1]] == [2]
    assert second.deliveries[-1].kind is Kind.GROUP_END
    assert query.finished
    assert not desk.pull(query, 21)


@pytest.mark.feature("S5")
def test_a_plain_query_shows_the_records_as_they_stood_at_the_command():
    desk = Desk(shard_of(batch_size=1))
    desk.put("a", {"n": 1}, 0)
    desk.put("b", {"n": 1}, 0)
    (query,) = desk.ask("sow", 1).queries
    desk.put("a", {"n": 2}, 2)
    desk.put("b", None, 2)
    desk.put("c", {"n": 2}, 2)
    found = []
    while not query.finished:
        found += [json.loads(item.payload)["n"] for item in desk.pull(query, 3).deliveries if item.payload]
    assert found == [1, 1]


def test_a_query_that_finds_little_lets_others_go_on():
    desk = Desk(shard_of(max_scan=2))
    for n in range(5):
        desk.put(f"k{n}", {"n": n}, 0)
    (query,) = desk.ask("sow", 1, filter="/n = 0").queries
    pulls = []
    while not query.finished:
        pulls.append(len(desk.pull(query, 1).deliveries))
    assert len(pulls) == 3
    assert sum(pulls) == 2


@pytest.mark.feature("S11", "S5")
def test_an_equality_is_looked_up_and_the_rest_of_the_filter_decides():
    desk = Desk(shard_of(hash_index=("/o/symbol", "/venue"), max_scan=1, batch_size=1))
    for n in range(40):
        desk.put(f"k{n}", {"o": {"symbol": f"S{n % 4}"}, "venue": n % 20, "n": n}, 0)
    desk.put("k1", {"o": {"symbol": "S9"}, "n": 1}, 1)
    desk.put("k5", None, 1)
    desk.put("odd", {"o": 3, "venue": [1]}, 1)
    for _ in range(2):
        step = desk.ask("sow", 2, filter="/o/symbol = 'S1' AND /n > 9 AND /venue = 13")
        found = [json.loads(item.payload)["n"] for item in desk.answer(step, 2) if item.payload]
        assert sorted(found) == [13, 33]
        assert len(desk.select(2, filter="/o/symbol = 'S1'")) == 8
        assert len(desk.select(2, filter="'S9' = /o/symbol")) == 1
        assert desk.select(2, filter="/o/symbol = 'S7'") == []
        assert len(desk.select(2, filter="/o/symbol = 'S1' OR /n = 0")) == 9
        assert dict(desk.ask("sow_delete", 1, filter="/o/symbol = 'S3'").answers[0].counts)["removed"] in (10, 0)
        desk.crash(2)


class Looks:
    """Reads payloads, and counts them."""

    def __init__(self):
        self.count = 0

    def __call__(self, payload):
        self.count += 1
        return json.loads(payload)

    def since(self):
        count, self.count = self.count, 0
        return count


@pytest.mark.feature("S11")
def test_records_that_the_index_does_not_name_are_not_looked_at():
    looks = Looks()
    desk = Desk(shard_of(hash_index=("/symbol",), parse=looks))
    for n in range(200):
        desk.put(f"k{n}", {"symbol": f"S{n % 100}", "n": n}, 0)
    looks.since()
    assert sorted(doc["n"] for doc in desk.select(1, filter="/symbol = 'S7' AND /n > 0")) == [7, 107]
    assert looks.since() == 2
    assert len(desk.select(1, filter="/symbol = 'S7' AND /n > 0", order_by="/n", top_n=1)) == 1
    assert looks.since() <= 4
    assert len(desk.select(1, filter="/n = 7")) == 1
    assert looks.since() == 200


@pytest.mark.feature("S5", "C45")
@pytest.mark.parametrize("order_by", [None, "/n", "/n DESC"])
@pytest.mark.parametrize("top_n", [None, 30])
def test_a_query_looks_at_so_many_records_at_a_time_and_no_more(order_by, top_n):
    looks = Looks()
    desk = Desk(shard_of(parse=looks, max_scan=50, batch_size=20))
    for n in range(1_000):
        desk.put(f"k{n}", {"n": n * 7919 % 1_000}, 0)
    step = desk.ask("sow", 1, filter="/n >= 900", order_by=order_by, top_n=top_n)
    assert looks.since() == 0
    (query,) = step.queries
    found, pulls = [], 0
    while not query.finished:
        pulled = desk.pull(query, 1)
        assert looks.since() <= 50
        numbers = [json.loads(message.payload)["n"] for message in pulled.deliveries if message.kind is Kind.SOW]
        assert len(numbers) <= 20
        found += numbers
        pulls += 1
    expected = sorted(range(900, 1_000), reverse=order_by == "/n DESC")
    if order_by is None:
        assert len(set(found)) == len(found) == (top_n or 100)
        assert set(found) <= set(expected)
    else:
        assert found == expected[:top_n]
        assert pulls >= 1_000 // 50


@pytest.mark.feature("X7", "X1")
@pytest.mark.parametrize(
    "name", ["sow", "sow_delete", "subscribe", "sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"]
)
def test_a_bad_filter_is_answered_and_nothing_is_done(name):
    desk = filled()
    before = dict(desk.journal)
    step = desk.ask(name, 10, filter="/n = ", subscription="s")
    assert "line 1" in error(step) or "column" in error(step) or "expected" in error(step)
    assert not step.changes
    assert not step.queries
    assert desk.journal == before


@pytest.mark.feature("X7")
def test_what_does_not_fit_together_is_answered_with_what_to_do():
    desk = filled()
    assert "is no command of a SOW topic; there are sow," in error(desk.ask("acknowledge", 1))
    assert "exactly one of keys, data, filter and bookmarks; 0 are given" in error(desk.ask("sow_delete", 1))
    assert "2 are given" in error(desk.ask("sow_delete", 1, keys=(b"k",), filter="TRUE"))
    assert "expected topic:partition:offset" in error(desk.ask("sow_delete", 1, bookmarks=("t:0",)))
    assert "name them by keys" in error(desk.ask("sow_delete", 1, data=(b"{}",)))
    assert "name them by keys" in error(desk.ask("sow", 1, data=(b"{}",)))
    assert "data neither with keys" in error(desk.ask("sow", 1, data=(b"{}",), keys=(b"k",)))
    assert "bookmarks or data" in error(desk.ask("subscribe", 1, subscription="s", data=(b"{}",)))
    assert "no bookmarks" in error(desk.ask("sow", 1, bookmarks=("t:0:1",)))
    assert "needs a name" in error(desk.ask("subscribe", 1))
    assert "takes no order_by" in error(desk.ask("sow_and_subscribe", 1, subscription="s", top_n=3))
    assert "takes a filter" in error(desk.ask("subscribe", 1, subscription="s", keys=(b"k",)))
    assert "subscribe again" in error(desk.ask("heartbeat", 1, subscription="s"))
    assert "subscribe again" in error(desk.ask("unsubscribe", 1, subscription="s"))
    assert len(desk.shard.state.entries) == 6


@pytest.mark.feature("X2")
def test_answers_are_given_as_wanted():
    desk = filled()
    for wanted, good, bad in [("all", 1, 1), ("errors", 0, 1), ("none", 0, 0)]:
        assert len(desk.ask("depth", 10, answer=wanted).answers) == good
        assert len(desk.ask("nothing", 10, answer=wanted).answers) == bad
        step = desk.ask("sow", 10, answer=wanted)
        assert len(desk.answer(step, 10)) == 8
        assert len(step.answers) == good


@pytest.mark.feature("S3")
def test_sow_delete_by_keys_by_filter_and_by_bookmarks():
    desk = filled()
    step = desk.ask("sow_delete", 10, keys=(b"k0", b"nobody"))
    assert dict(step.answers[0].counts) == {"removed": 1, "skipped": 1}
    assert [(item.kind, item.key, str(item.bookmark)) for item in step.events] == [(EventKind.DELETED, b"k0", "t:0:0")]
    step = desk.ask("sow_delete", 11, filter="/odd = true")
    assert dict(step.answers[0].counts)["removed"] == 3
    step = desk.ask("sow_delete", 12, bookmarks=("t:0:1-3", "u:0:4", "t:1:4"))
    assert dict(step.answers[0].counts)["removed"] == 1
    assert [doc["n"] for doc in desk.select(13)] == [4]


@pytest.mark.feature("C1", "S3")
def test_a_delete_stamped_before_the_last_update_does_not_delete_it():
    desk = filled()
    step = desk.ask("sow_delete", 3, filter="TRUE")
    assert dict(step.answers[0].counts) == {"removed": 4, "skipped": 2}
    assert sorted(doc["n"] for doc in desk.select(10)) == [4, 5]


@pytest.mark.feature("S3", "S11")
@pytest.mark.parametrize("index", [(), ("/odd",)])
def test_a_delete_by_filter_counts_as_skipped_only_what_it_names(index):
    """Records that do not match are not named, whether an index leaves them out or the filter does."""
    desk = Desk(shard_of(hash_index=index))
    for n in range(6):
        desk.put(f"k{n}", {"odd": n % 2 == 1}, n)
    step = desk.ask("sow_delete", 3, filter="/odd = true")
    assert dict(step.answers[0].counts) == {"removed": 2, "skipped": 1}, "k5 is later"


@pytest.mark.feature("S3", "X7")
@pytest.mark.parametrize("field", [{"top_n": 1}, {"skip": 1}, {"order_by": "/n"}, {"dry_run": True}])
def test_a_delete_with_a_field_that_would_limit_it_deletes_nothing(field):
    desk = filled()
    assert next(iter(field)) in error(desk.ask("sow_delete", 10, filter="TRUE", **field))
    assert "keys" in error(desk.ask("depth", 10, keys=(b"k1",)))
    assert len(desk.select(10)) == 6


@pytest.mark.feature("X7", "X1")
@pytest.mark.parametrize("row_filter", [None, "/n < 5"])
def test_a_depth_counts_what_matches_its_filter(row_filter):
    desk = filled()
    desk.put("later", {"odd": True, "n": 1}, 6, lapse_enqueue_at_ms=T + 500)
    desk.put("never", {"odd": True, "n": 7}, 7, lapse_enqueue_at_ms=T + 500)
    step = desk.ask("depth", 10, filter="/odd = true", row_filter=row_filter)
    while not step.answers:
        desk.shard.pull(step.queries[0], T + 10, step)
    counted = (3, 2) if row_filter is None else (2, 1)
    assert dict(step.answers[0].counts) == dict(zip(("records", "scheduled"), counted, strict=True))
    assert "line 1, column 7" in error(desk.ask("depth", 10, filter="/odd ="))


@pytest.mark.feature("C1", "S3", "C46")
def test_an_update_stamped_before_the_delete_does_not_undo_it():
    desk = filled()
    desk.ask("sow_delete", 20, keys=(b"k1",))
    desk.put("k1", {"n": 9}, 15, partition=0)
    assert len(desk.select(21)) == 5
    desk.put("k1", {"n": 10}, 21)
    assert len(desk.select(21)) == 6


@pytest.mark.feature("X4")
def test_a_row_filter_bounds_what_is_seen_and_touched():
    desk = filled()
    messages = desk.answer(desk.ask("sow", 10, filter="/n > 1", row_filter="/odd = true"), 10)
    assert sorted(item.key for item in messages if item.key) == [b"k3", b"k5"]
    desk.ask("subscribe", 10, subscription="s", row_filter="/odd = true")
    desk.crash(11)
    assert not desk.put("k0", {"n": 0, "odd": False}, 12).deliveries
    assert len(desk.put("k0", {"n": 0, "odd": True}, 13).deliveries) == 1
    # Out of focus shows what was seen, not what is hidden now.
    (message,) = desk.put("k0", {"secret": 1, "odd": False}, 14).deliveries
    assert json.loads(message.payload) == {"n": 0, "odd": True}
    counts = desk.ask("sow_delete", 15, filter="TRUE", row_filter="/odd = true").answers[0].counts
    assert dict(counts)["removed"] == 3


@pytest.mark.feature("X4", "S3")
@pytest.mark.parametrize("how", ["key", "filter", "bookmark", "state"])
def test_a_deletion_answers_about_hidden_records_as_about_none(how):
    """With them and without them: the figures are the same."""
    found = []
    for hidden in (True, False):
        desk = Desk(shard_of(hash_index=("/odd",) if how == "state" else ()))
        desk.put("seen", {"odd": True}, 0)
        desk.put("hidden", {"odd": False} if hidden else None, 1)
        asked = {
            "key": {"keys": (b"seen", b"hidden")},
            "filter": {"filter": "TRUE"},
            "bookmark": {"bookmarks": ("t:0:0-9",)},
            "state": {"filter": "/odd = false"},
        }[how]
        found.append(dict(desk.ask("sow_delete", 10, row_filter="/odd = true", **asked).answers[0].counts))
        assert dict(desk.ask("depth", 11).answers[0].counts)["records"] == hidden + (how == "state")
    assert found[0] == found[1]


@pytest.mark.feature("L11", "S5")
def test_depth_counts_what_has_not_expired():
    desk = filled()
    desk.put("later", {}, 10, lapse_enqueue_at_ms=T + 5000)
    assert dict(desk.ask("depth", 1002).answers[0].counts) == {
        "records": 3,
        "dying": 0,
        "scheduled": 1,
        "subscriptions": 0,
    }
    assert len(desk.shard.state.entries) == 3


@pytest.mark.feature("S6")
def test_subscribe_shows_updates_from_now_on():
    desk = filled()
    desk.ask("subscribe", 10, subscription="s", filter="/n > 2")
    assert seen(desk.put("k3", {"n": 9}, 11).deliveries) == [(Kind.PUBLISH, b"k3", {"n": 9}, None)]
    assert not desk.put("k0", {"n": 1}, 12).deliveries
    assert seen(desk.put("k0", {"n": 7}, 13).deliveries) == [(Kind.PUBLISH, b"k0", {"n": 7}, None)]


@pytest.mark.feature("S7")
def test_out_of_focus_tells_why_and_only_of_what_was_seen():
    desk = filled()
    desk.ask("subscribe", 10, subscription="s", filter="/n > 2", heartbeat_timeout_ms=10**6)
    assert not desk.put("k3", None, 11).deliveries, "k3 was never seen"
    for key in ("k4", "k5", "k2"):
        desk.put(key, {"n": 5, "key": key}, 12)
    assert seen(desk.put("k4", {"n": 0}, 13).deliveries) == [
        (Kind.OUT_OF_FOCUS, b"k4", {"n": 5, "key": "k4"}, OutOfFocus.NO_LONGER_MATCHES)
    ]
    assert not desk.put("k4", {"n": 1}, 14).deliveries
    assert seen(desk.put("k5", None, 15).deliveries) == [
        (Kind.OUT_OF_FOCUS, b"k5", {"n": 5, "key": "k5"}, OutOfFocus.DELETED)
    ]
    assert seen(desk.advance(1012).deliveries) == [
        (Kind.OUT_OF_FOCUS, b"k2", {"n": 5, "key": "k2"}, OutOfFocus.EXPIRED)
    ]


@pytest.mark.feature("S6")
def test_sow_and_subscribe_has_no_gap_and_no_duplicate_while_its_batches_are_on_the_way():
    desk = Desk(shard_of(batch_size=1))
    for n in range(4):
        desk.put(f"k{n}", {"n": n}, n)
    step = desk.ask("sow_and_subscribe", 10, id="q", subscription="s")
    (query,) = step.queries
    assert [item.kind for item in step.deliveries] == [Kind.GROUP_BEGIN]
    sent = desk.pull(query, 11).deliveries[0].key
    unsent = [f"k{n}" for n in range(4) if f"k{n}".encode() != sent]
    assert not desk.put(unsent[0], None, 12).deliveries, "gone before it was shown"
    assert [item.kind for item in desk.put(unsent[1], {"n": 9}, 12).deliveries] == [Kind.PUBLISH]
    assert [item.kind for item in desk.put(sent, None, 12).deliveries] == [Kind.OUT_OF_FOCUS]
    rest = []
    while not query.finished:
        rest += desk.pull(query, 13).deliveries
    assert [item.key for item in rest] == [unsent[2].encode(), None]


@pytest.mark.feature("S6")
def test_deltas_behind_a_query_are_informed_of_what_it_has_shown_only():
    desk = Desk(shard_of(batch_size=1))
    for n in range(3):
        desk.put(f"k{n}", {"n": n, "m": 0}, n)
    step = desk.ask("sow_and_delta_subscribe", 10, id="q", subscription="s")
    (query,) = step.queries
    shown = desk.pull(query, 11).deliveries[0].key
    first, second = (f"k{n}" for n in range(3) if f"k{n}".encode() != shown)
    assert seen(desk.put(shown, {"n": 7, "m": 0}, 12).deliveries) == [(Kind.DELTA, shown, {"n": 7}, None)]
    ((kind, _, whole, _),) = seen(desk.put(first, {"n": 8, "m": 0}, 12).deliveries)
    assert (kind, whole) == (Kind.PUBLISH, {"n": 8, "m": 0}), "it was not shown before"
    step = desk.crash(13)
    assert step.queries, "the query was cut short, and begins again"
    answered = desk.answer(step, 14)
    assert {message.key for message in answered if message.kind is Kind.SOW} == {b"k0", b"k1", b"k2"}
    (answer,) = step.answers
    assert (answer.command, dict(answer.counts)["records"]) == ("sow_and_delta_subscribe", 3)
    assert seen(desk.put(second, {"n": 9, "m": 0}, 15).deliveries) == [(Kind.DELTA, second.encode(), {"n": 9}, None)]


@pytest.mark.feature("S6", "C5")
def test_a_query_that_a_crash_cut_short_begins_again_and_a_finished_one_does_not():
    desk = filled()
    step = desk.ask("sow_and_subscribe", 10, id="q", subscription="s", filter="/n > 2")
    assert desk.crash(11).queries
    step = desk.crash(12)
    assert [item.kind for item in step.deliveries] == [Kind.GROUP_BEGIN]
    assert len(desk.answer(step, 12)) == 5
    assert step.answers[0].id == "q"
    assert not desk.crash(13)


@pytest.mark.feature("S6", "S9", "L9", "C45")
def test_a_query_that_left_out_an_expired_record_begins_again_where_lifetimes_are_off_before_its_removal():
    desk = Desk(shard_of())
    desk.put("a", {}, 0, lapse_ttl_ms=5)
    desk.put("b", {}, 1)
    step = desk.ask("sow_and_subscribe", 1, id="q", subscription="s")
    assert [message.key for message in desk.answer(step, 6) if message.kind is Kind.SOW] == [b"b"]
    step = desk.crash(7, shard_of(enabled=False).settings)
    shown = desk.answer(step, 8)
    assert [message.key for message in shown if message.kind is Kind.SOW] == [b"a", b"b"], "it stays after all"
    assert not desk.crash(9)


@pytest.mark.feature("S6", "S7", "L9")
def test_a_query_that_left_out_an_expired_record_is_done_once_that_is_removed():
    desk = Desk(shard_of())
    desk.put("a", {}, 0, lapse_ttl_ms=5)
    step = desk.ask("sow_and_subscribe", 1, id="q", subscription="s")
    desk.answer(step, 6)
    assert desk.advance(7).deliveries == [], "it was never shown"
    assert not desk.crash(8, shard_of(enabled=False).settings)


@pytest.mark.feature("S6")
def test_delta_subscribe_shows_changed_fields_of_what_it_has_seen():
    desk = Desk(shard_of())
    desk.put("k", {"a": 1}, 0)
    desk.ask("delta_subscribe", 1, subscription="s")

    def delivered(payload, **headers):
        ((kind, _, shown, _),) = seen(desk.put("k", payload, 2, **headers).deliveries)
        return kind, shown

    assert delivered({"a": 1, "o": {"x": 1, "y": 1}}) == (Kind.PUBLISH, {"a": 1, "o": {"x": 1, "y": 1}})
    assert delivered({"a": 2}, lapse_command="delta") == (Kind.DELTA, {"a": 2})
    assert delivered({"a": 2, "o": {"x": 1, "y": 2}}) == (Kind.DELTA, {"o": {"y": 2}})
    assert delivered({"a": 2, "o": {"x": 1, "y": 2}}) == (Kind.DELTA, {})
    assert delivered({"a": 2, "o": {"x": 1, "y": 2}, "n": None}) == (Kind.DELTA, {"n": None})
    assert delivered({"a": True, "o": {"x": 1, "y": 2}, "n": None}) == (Kind.DELTA, {"a": True})
    assert delivered({"a": 2}) == (Kind.PUBLISH, {"a": 2}), "fields are gone"
    assert delivered([1]) == (Kind.PUBLISH, [1])


@pytest.mark.feature("S7", "L3")
def test_an_update_that_is_dead_on_arrival_takes_the_record_out_of_focus():
    desk = Desk(shard_of())
    desk.ask("subscribe", 0, subscription="s")
    desk.put("k", {"n": 1}, 1)
    assert seen(desk.put("k", {"n": 2}, 9, lapse_expires_at_ms=T + 9).deliveries) == [
        (Kind.OUT_OF_FOCUS, b"k", {"n": 1}, OutOfFocus.EXPIRED)
    ]
    assert not desk.put("new", {"n": 2}, 9, lapse_expires_at_ms=T + 9).deliveries


@pytest.mark.feature("C2", "S6")
def test_a_silent_subscription_is_lost_at_its_timeout_and_heartbeats_put_it_off():
    desk = Desk(shard_of())
    desk.ask("subscribe", 0, subscription="s", client="me", heartbeat_timeout_ms=100)
    assert desk.shard.next_due_ms() == T + 100
    desk.ask("heartbeat", 60, subscription="s")
    assert not desk.advance(159).events
    step = desk.advance(160)
    assert [(item.kind, item.subscription, item.detail) for item in step.events] == [
        (EventKind.UNSUBSCRIBED, "s", "silent for 100 ms")
    ]
    assert not desk.put("k", {}, 161).deliveries
    assert not [key for key in desk.journal if key[:1] == b"c"]


@pytest.mark.feature("C5")
def test_after_a_recovery_a_subscription_has_one_full_timeout():
    desk = Desk(shard_of())
    desk.ask("subscribe", 0, subscription="s", heartbeat_timeout_ms=100)
    desk.crash(10_000)
    assert not desk.advance(10_099).events
    assert desk.advance(10_100).events


@pytest.mark.feature("C20", "S6")
def test_subscribing_again_replaces_the_options():
    desk = filled()
    desk.ask("subscribe", 10, subscription="s", filter="/n = 1")
    desk.ask("subscribe", 11, subscription="s", filter="/n = 2")
    assert not desk.put("a", {"n": 1}, 12).deliveries
    assert desk.put("b", {"n": 2}, 12).deliveries
    desk.ask("sow_and_subscribe", 13, subscription="s", filter="/n = 2")
    step = desk.ask("sow_and_subscribe", 14, subscription="s", filter="/n = 2")
    assert len(desk.answer(step, 14)) == 4
    assert desk.ask("unsubscribe", 15, subscription="s").answers[0].error == ""
    assert not desk.shard.state.subscribers


@pytest.mark.feature("C20", "S6", "S7")
@pytest.mark.parametrize("command", ["sow_and_subscribe", "subscribe"])
def test_subscribing_again_ends_the_query_that_was_not_finished(command):
    """Its records may not match the new filter, so nothing would ever tell that they are out of focus."""
    desk = filled()
    (before,) = desk.ask("sow_and_subscribe", 10, subscription="s", filter="/n < 2", batch_size=1).queries
    desk.pull(before, 11)
    again = desk.ask(command, 12, subscription="s", filter="/n = 4", batch_size=1)
    assert before.finished
    assert not desk.pull(before, 13).deliveries
    shown = [message.key for message in desk.answer(again, 14) if message.kind is Kind.SOW]
    assert shown == ([b"k4"] if again.queries else [])


@pytest.mark.feature("C20", "S7", "X2")
def test_a_query_that_ends_with_its_subscription_is_refused():
    """Every command that wants an answer gets one, but for a `subscribe` that the client sent again under its id."""
    ends = {
        "began once more": lambda desk: desk.ask("subscribe", 12, subscription="s"),
        "ended": lambda desk: desk.ask("unsubscribe", 12, subscription="s"),
        "ended at the silence": lambda desk: desk.advance(1_000_000),
    }
    for what, end in ends.items():
        desk = filled()
        (query,) = desk.ask("sow_and_subscribe", 10, subscription="s", id="first", batch_size=1).queries
        desk.pull(query, 11)
        refused = [one for one in end(desk).answers if one.id == "first"]
        assert [(one.code, one.command) for one in refused] == [("unknown_subscription", "sow_and_subscribe")], what
        assert what.split(" at ")[0] in refused[0].error
    for terms in ({"id": "first"}, {"answer": "none"}):
        desk = filled()
        desk.ask("sow_and_subscribe", 10, subscription="s", batch_size=1, **terms)
        step = desk.ask("sow_and_subscribe", 12, subscription="s", **terms)
        assert not step.answers
        assert len(desk.answer(step, 13)) > 2


@pytest.mark.feature("C55", "S7")
def test_a_subscribe_that_comes_twice_forgets_nothing_that_was_seen():
    """A client whose first one was not answered sends it again after a take-over. Updates may have come in between."""
    desk = filled()
    desk.ask("delta_subscribe", 10, subscription="s", filter="/n > 2")
    desk.put("k3", {"n": 5}, 11)
    desk.crash(12)
    desk.ask("delta_subscribe", 13, subscription="s", filter="/n > 2")
    assert seen(desk.put("k3", {"n": 6}, 14).deliveries) == [(Kind.DELTA, b"k3", {"n": 6}, None)]
    assert [item.kind for item in desk.put("k3", None, 15).deliveries] == [Kind.OUT_OF_FOCUS]
    assert not desk.put("k4", None, 16).deliveries, "it was never seen"
    desk.put("k5", {"n": 5}, 17)
    desk.ask("subscribe", 18, subscription="s", filter="/n > 3")
    assert not desk.put("k5", None, 19).deliveries, "another filter begins anew"


@pytest.mark.feature("X7")
def test_a_stored_filter_that_cannot_be_compiled_any_more_ends_its_subscription_only():
    desk = Desk(shard_of())
    desk.ask("subscribe", 0, subscription="s", filter="/n = 1")
    desk.journal[b"cs"] = desk.journal[b"cs"].replace(b"/n = 1", b"/n === ")
    step = desk.crash(10)
    assert [(item.kind, item.subscription) for item in step.events] == [(EventKind.UNSUBSCRIBED, "s")]
    assert step.events[0].detail


@pytest.mark.feature("L10", "L11", "C1")
def test_before_its_timer_an_expired_record_is_neither_found_nor_counted_nor_deleted():
    desk = filled()
    assert len([item for item in desk.answer(desk.ask("sow", 1002, timely=False), 1002) if item.key]) == 3
    assert dict(desk.ask("depth", 1002, timely=False).answers[0].counts)["records"] == 3
    step = desk.ask("sow_delete", 1002, keys=(b"k0", b"k4"), timely=False)
    assert dict(step.answers[0].counts) == {"removed": 1, "skipped": 1}
    assert len(desk.shard.state.entries) == 4, "k1 and k2 wait for the timer: an update may be on its way"
    desk.put("k1", {"more": 1}, 999, lapse_command="delta")
    (shown,) = desk.select(1003, keys=(b"k1",))
    assert shown == {"n": 1, "odd": True, "name": "name-1", "more": 1}


@pytest.mark.feature("C1", "S3")
def test_a_delete_of_a_key_counts_against_older_updates_that_are_read_after_it():
    desk = filled()
    desk.ask("sow_delete", 20, keys=(b"k0", b"new"))
    desk.put("new", {}, 19)
    desk.put("k0", {}, 20)
    desk.crash(20)
    assert len(desk.select(20)) == 6
    desk.put("new", {}, 19)
    assert not desk.select(20, keys=(b"new",))
    desk.put("new", {}, 20)
    assert desk.select(20, keys=(b"new",)) == [{}]


@pytest.mark.feature("C5", "C2")
def test_a_heartbeat_after_the_timeout_is_too_late_even_before_the_timer():
    desk = Desk(shard_of())
    desk.ask("subscribe", 0, subscription="s", heartbeat_timeout_ms=100)
    assert "subscribe again" in error(desk.ask("heartbeat", 100, subscription="s", timely=False))
    assert not desk.shard.state.subscribers


@pytest.mark.feature("X4", "X7")
def test_what_a_user_may_see_is_counted_in_portions() -> None:
    desk = Desk(shard_of(max_scan=2))
    for number in range(9):
        desk.put(f"k{number}", {"odd": bool(number % 2)}, number)
    step = desk.ask("depth", 10, row_filter="/odd = true")
    (query,) = step.queries
    assert not step.deliveries
    turns = 0
    answers = list(step.answers)
    while not query.finished:
        later = Step()
        desk.shard.pull(query, T + 10, later)
        assert not later.deliveries
        answers += later.answers
        turns += 1
    assert turns >= 4
    assert [dict(answer.counts) for answer in answers] == [{"records": 4, "scheduled": 0}]


@pytest.mark.feature("C82", "L5", "X4")
def test_a_scheduled_version_is_counted_and_withdrawn_by_who_may_see_it_and_as_never_there_for_others() -> None:
    desk = Desk(shard_of())
    desk.put("seen", {"odd": True}, 0, lapse_enqueue_at_ms=T + 5_000)
    desk.put("hidden", {"odd": False}, 1, lapse_enqueue_at_ms=T + 5_000)
    desk.put("gone", None, 2, lapse_enqueue_at_ms=T + 5_000)

    def counts(step: Step) -> dict[str, int]:
        while not step.answers:
            desk.shard.pull(step.queries[0], T + 10, step)
        return dict(step.answers[0].counts)

    assert counts(desk.ask("depth", 10, row_filter="/odd = true")) == {"records": 0, "scheduled": 1}
    asked = {"bookmarks": ("t:0:0-2",), "row_filter": "/odd = true"}
    step = desk.ask("sow_delete", 11, **asked)
    assert counts(step) == {"removed": 1, "skipped": 0}
    assert counts(desk.ask("sow_delete", 12, **asked)) == counts(desk.ask("sow_delete", 12, bookmarks=("t:0:90-99",)))
    assert [version.key for _, version in desk.shard.state.schedule] == [b"hidden", b"gone"]
    assert counts(desk.ask("depth", 13, row_filter="/odd = true")) == {"records": 0, "scheduled": 0}


@pytest.mark.feature("C82", "L5", "C47")
def test_scheduled_updates_are_listed_and_withdrawn_and_records_are_left_alone() -> None:
    desk = Desk(shard_of())
    desk.put("there", {"n": 9}, 0)
    desk.put("b", {"n": 1}, 1, lapse_enqueue_at_ms=T + 5_001)
    desk.put("a", {"n": 2}, 2, lapse_enqueue_at_ms=T + 5_000, lapse_ttl_ms=10)
    desk.put("there", None, 3, lapse_enqueue_at_ms=T + 5_002)
    desk.put("there", {"n": 3}, 4, lapse_enqueue_at_ms=T + 5_003, lapse_command="delta")

    def listed(**asked: object) -> list[tuple[str, str, str, int, int | None]]:
        (answer,) = desk.ask("sow", 10, state="scheduled", **asked).answers
        (_, updates) = answer.facts[0]
        return [(one.bookmark, one.key, one.change, one.enqueue_at_ms - T, one.expires_at_ms) for one in updates]

    every = [
        ("t:0:2", "a", "publish", 5_000, T + 5_010),
        ("t:0:1", "b", "publish", 5_001, None),
        ("t:0:3", "there", "delete", 5_002, None),
        ("t:0:4", "there", "delta", 5_003, None),
    ]
    assert listed() == every
    assert listed(skip=1, top_n=2) == every[1:3]
    assert listed(filter="/n > 1") == [every[0], every[3]]
    assert listed(row_filter="/n = 1") == [every[1]]

    def withdrawn(**asked: object) -> dict[str, int | None]:
        (answer,) = desk.ask("sow_delete", 11, state="scheduled", **asked).answers
        return dict(answer.counts)

    assert withdrawn(filter="/n > 1", row_filter="/n = 1") == {"removed": 0}
    assert withdrawn(filter="/n > 2") == {"removed": 1}
    assert withdrawn(bookmarks=("t:0:0-3",)) == {"removed": 3}
    assert listed() == []
    assert desk.select(12) == [{"n": 9}]
    for command, asked in (
        ("sow", {"keys": (b"a",)}),
        ("sow", {"order_by": "/n ASC"}),
        ("sow_delete", {"keys": (b"a",)}),
        ("depth", {}),
    ):
        (answer,) = desk.ask(command, 12, state="scheduled", **asked).answers
        assert "scheduled" in answer.error
    (answer,) = desk.ask("sow", 12, state="leased").answers
    assert 'sow and sow_delete take "scheduled"' in answer.error


@pytest.mark.feature("S1", "X2", "X4")
def test_depth_says_where_a_publish_to_the_topics_name_goes_and_counts_nothing_if_only_that_is_asked():
    desk = Desk(shard_of(publish_target="updates"))
    desk.put("a", {"n": 1}, 0)
    (answer,) = desk.ask("depth", 1, top_n=0, row_filter="/n = 2").answers
    assert (answer.counts, answer.facts) == ((), (("publish_target", "updates"),))
    (answer,) = desk.ask("depth", 1).answers
    assert dict(answer.counts)["records"] == 1
    assert answer.facts == (("publish_target", "updates"),)


@pytest.mark.feature("S6", "S7", "C55")
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("command", ["subscribe", "delta_subscribe"])
def test_what_a_subscriber_got_before_a_crash_that_forgot_its_subscription_goes_out_of_focus(command, known):
    """The former owner sent updates beside the journal of the subscription, or before it."""
    desk = filled()
    if known:
        desk.ask("subscribe", 8, subscription="s", filter="/n = 100")
    journaled = dict(desk.journal)
    desk.put("k0", {"n": 10}, 9)
    desk.ask(command, 10, subscription="s", filter="/n > 2")
    sent = seen(desk.put("k1", {"n": 7}, 10).deliveries) + seen(desk.put("k2", {"n": 8}, 11).deliveries)
    assert [(kind, key) for kind, key, *_ in sent] == [(Kind.PUBLISH, b"k1"), (Kind.PUBLISH, b"k2")]
    desk.journal, desk.offsets = journaled, {("t", 0): 6}
    desk.crash(20)
    for again in (("k0", {"n": 10}, 9), ("k1", {"n": 7}, 10), ("k2", {"n": 8}, 11)):
        desk.put(*again)
    desk.ask(command, 10, subscription="s", filter="/n > 2", timely=False)
    assert seen(desk.put("k2", {"n": 9}, 21).deliveries) == [(Kind.PUBLISH, b"k2", {"n": 9}, None)], "no delta"
    for _ in range(2):
        gone = [seen(desk.put(key, {"n": 0}, 22).deliveries) for key in ("k0", "k1", "k2")]
        assert [[key for _, key, *_ in some] for some in gone] == [[], [b"k1"], [b"k2"]]
        desk.put("k1", {"n": 7}, 23)
        desk.put("k2", {"n": 7}, 23)
        desk.crash(24)


@pytest.mark.feature("S6", "C5")
def test_nothing_of_what_came_before_a_subscriber_while_no_worker_ran_goes_out_of_focus():
    desk = Desk(shard_of())
    desk.crash(20)
    desk.put("a", {"n": 1}, 5)
    desk.put("b", {"n": 1}, 7)
    desk.ask("subscribe", 6, subscription="s", filter="/n = 1", timely=False)
    assert seen(desk.put("a", {"n": 2}, 21).deliveries) == []
    assert [item.kind for item in desk.put("b", {"n": 2}, 22).deliveries] == [Kind.OUT_OF_FOCUS]
