"""Select lists: which fields a query or a subscription returns, and what no list can be (S5, S6, X4)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.error_code import ErrorCode
from lapse.core.sow.query.select import MOST_PATHS, Select
from lapse.core.sow.step import Kind
from lapse.protocol import json_payload
from unit.core.sow.make import Desk, shard_of

ORDER = {"id": 1, "price": 2.5, "book": {"bid": 99, "ask": {"price": 101, "size": 7}}, "legs": [{"a": 1}], "no-te": "x"}
NAMES = st.sampled_from(["a", "b", "c"])
DOCS = st.recursive(
    st.integers(0, 2) | st.lists(st.integers(), max_size=1), lambda inner: st.dictionaries(NAMES, inner)
)
PATHS = st.lists(st.lists(NAMES, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3, unique=True)


def cut(payload: object, *paths: str) -> object:
    select = Select.parse(paths)
    assert select is not None
    return select.select_from(payload)


@pytest.mark.feature("S5", "S6")
def test_what_is_named_is_returned_or_left_out() -> None:
    assert cut(ORDER, "/id") == cut(ORDER, "+/id") == cut(ORDER, "-/", "+/id") == {"id": 1}
    assert cut(ORDER, "/book/ask/price", "/id", "/nothing") == {"book": {"ask": {"price": 101}}, "id": 1}
    assert cut(ORDER, "/book", "/book/bid") == {"book": ORDER["book"]}
    assert cut(ORDER, "/book", "-/book/ask") == {"book": {"bid": 99}}
    assert cut(ORDER, "-/book", "-/legs", "-/'no-te'") == {"id": 1, "price": 2.5}
    assert cut(ORDER, "/legs/a", "/book/bid/deep") == {}, "arrays and scalars have no members"
    assert cut(ORDER, "-/legs/a") == ORDER
    assert cut(ORDER, "-/") == {}
    assert cut([1, 2], "/id") == [1, 2]
    assert Select.parse(()) is None


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("",), "an empty text is no path"),
        (("id",), "'id' is no path to a field from character 1 on"),
        (("+",), "an empty text is no path"),
        (("/a b",), "no path to a field from character 3 on"),
        (("/legs[0]",), "names an element of an array"),
        (("/id", "-/id"), "/id is named twice"),
        (("/'id'", "/id"), "/id is named twice"),
        (("/book/bid", "-/book"), "/book/bid is asked for, and /book, of which it is a part, is left out"),
        (tuple(f"/{n}" for n in range(MOST_PATHS + 1)), "257 paths; 256 is the most"),
        (("/a" * 65,), "65 steps; 64 is the most"),
    ],
)
def test_a_list_that_says_nothing_clear_is_refused(paths: tuple[str, ...], message: str) -> None:
    desk = Desk(shard_of())
    for command in ("sow", "subscribe", "sow_and_delta_subscribe"):
        (answer,) = desk.ask(command, 0, subscription="s", select=paths).answers
        assert message in answer.error
        assert answer.error.startswith(f"{command}: select: ")
        assert answer.refusal.code == ErrorCode.INVALID_ARGUMENT
    assert desk.shard.subscriptions() == []
    (answer,) = desk.ask("depth", 0, select=("/id",)).answers
    assert answer.error == "depth takes no select; there is nothing to return fields of"


@pytest.mark.feature("S5", "S6")
@given(DOCS, PATHS)
def test_named_and_left_out_are_the_whole_of_a_record(doc: object, paths: list[tuple[str, ...]]) -> None:
    """Every leaf is in one of the two, as the paths say; both are as small as that allows."""

    def leaves(value: object, at: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
        if not isinstance(value, dict) or not value:
            return {at: value}
        return {path: leaf for name, inner in value.items() for path, leaf in leaves(inner, (*at, name)).items()}

    texts = ["/" + "/".join(path) for path in paths]
    payload = {"a": doc}
    named, others = cut(payload, *texts), cut(payload, *(f"-{text}" for text in texts))
    for path, leaf in leaves(payload).items():
        chosen = any(path[: len(one)] == one for one in paths)
        assert (leaves(named).get(path) == leaf) is chosen or path == ()
        assert (leaves(others).get(path, "gone") == leaf) is not chosen


@pytest.mark.feature("S5", "S6", "S7", "L5")
def test_queries_updates_deltas_and_what_goes_out_of_focus_have_the_selected_fields() -> None:
    desk = Desk(shard_of(1_000))
    desk.put("a", ORDER, 0)
    (found,) = desk.select(1, filter="/price > 2", order_by="/price", select=("/id",))
    assert found == {"id": 1}, "filter and order go by the whole record"
    step = desk.ask("sow_and_subscribe", 2, subscription="s", filter="/price > 2", select=("/id", "/book/bid"))
    messages = desk.answer(step, 2)
    published = [json.loads(one.payload) for one in messages if one.kind is Kind.SOW]
    desk.ask("sow_and_delta_subscribe", 3, subscription="d", select=("-/price", "-/legs"), heartbeat_timeout_ms=10**6)
    for query in [one.query for one in desk.shard.state.subscribers.values() if one.query]:
        desk.pull(query, 3)

    def update(at: int, payload: object) -> dict[str, tuple[Kind, object]]:
        step = desk.put("a", payload, at)
        return {one.subscription: (one.kind, json.loads(one.payload)) for one in step.deliveries}

    assert published == [{"id": 1, "book": {"bid": 99}}]
    assert update(4, {**ORDER, "price": 3, "id": 2}) == {
        "s": (Kind.PUBLISH, {"id": 2, "book": {"bid": 99}}),
        "d": (Kind.DELTA, {"id": 2}),
    }
    assert update(5, {**ORDER, "price": 4, "id": 2})["d"] == (Kind.DELTA, {}), "nothing of what it is told has changed"
    desk.crash(6)
    assert update(7, {"id": 2, "price": 4})["d"] == (Kind.PUBLISH, {"id": 2}), "fields are gone"
    assert update(8, {"id": 2, "price": 1, "book": {"bid": 1}})["s"] == (Kind.OUT_OF_FOCUS, {"id": 2})
    desk.put("a", {"id": 3, "price": 5, "secret": 1}, 9)
    gone = {one.subscription: json.loads(one.payload) for one in desk.advance(1_009).deliveries}
    assert gone == {"s": {"id": 3}, "d": {"id": 3, "secret": 1}}


@pytest.mark.feature("X4", "S5", "S6")
def test_what_a_user_may_see_goes_by_the_whole_record() -> None:
    desk = Desk(shard_of())
    for desk_name, n in (("A", 1), ("B", 2)):
        desk.put(desk_name, {"desk": desk_name, "n": n}, 0)
    assert desk.select(1, row_filter="/desk = 'A'", select=("/n",)) == [{"n": 1}]
    assert desk.select(1, row_filter="/desk = 'A'", select=("-/desk",)) == [{"n": 1}]
    desk.ask("subscribe", 2, subscription="s", row_filter="/desk = 'A'", select=("/n",))
    assert desk.put("B", {"desk": "B", "n": 3}, 3).deliveries == []
    desk.put("A", {"desk": "A", "n": 1}, 3)
    (gone,) = desk.put("A", {"desk": "B", "n": 9}, 4).deliveries
    assert (gone.kind, gone.payload) == (Kind.OUT_OF_FOCUS, b'{"n":1}'), "not what it is now"


@pytest.mark.feature("S5")
def test_a_payload_that_cannot_be_cut_is_reported_whole_and_large_numbers_stay() -> None:
    desk = Desk(shard_of(parse_exactly=json_payload.parse_exactly, serialize_selected=json_payload.serialize))
    desk.put("a", b"no JSON", 0, raw=True)
    desk.put("b", b'{"n": 123456789012345678901234567890, "m": 1}', 0, raw=True)
    messages = desk.answer(desk.ask("sow", 1, select=("/n",)), 1)
    assert [one.payload for one in messages[1:-1]] == [b"no JSON", b'{"n":123456789012345678901234567890}']
