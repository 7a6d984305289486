"""A queue whose expressions look at each message does the same with records in columns and with objects (Q11, Q20)."""

from dataclasses import replace
from json import loads as loads_json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.config import loads
from lapse.core.queue.inquiry.view import RowViews
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from lapse.runtime.kafka import batch_rows
from support.kafka.record_batches import both, encoded
from support.suite.compiled import NEEDS_COLUMNS

pytestmark = NEEDS_COLUMNS

_NOW_MS = 1_000_000

_SCALARS = st.sampled_from(
    [b"1", b"1.0", b"-2.5", b'"a"', b'"b"', b'"\\u0061"', b"null", b"true", b'{"a":1}', b'"\xff"']
)
_PAYLOADS = st.one_of(
    st.none(),
    st.sampled_from(
        [b"", b"{", b"7", b'"a"', b'{"g":"a"} x', b'{"g":"a","g":"b"}', b'{"h":[1,{"g":"b"}],"g":"a"}', b'{"h":"a"}']
    ),
    st.builds(lambda group, rank: b'{"g":%s,"rank":%s}' % (group, rank), _SCALARS, _SCALARS),
)
_HEADERS = st.lists(
    st.tuples(st.sampled_from(["lapse-ttl-ms", "lapse-expires-at-ms", "lapse-retry-delay-ms", "side"]), _SCALARS),
    max_size=1,
)
_RECORDS = st.lists(
    st.tuples(st.integers(0, 2), st.just(_NOW_MS), st.sampled_from([None, b"k"]), _PAYLOADS, _HEADERS, st.booleans()),
    min_size=1,
    max_size=30,
)
_OPTIONS = [
    'group_by = "/g"',
    'group_by = "KEY()"\ngroup_limit = 3',
    'priority = "/rank"\ngroup_by = "/g"',
    'ordering = "total"\nbarrier = "/rank = 1"\ngroup_by = "/g"',
]


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_rows, "_FEW", 1)


@pytest.mark.feature("Q11", "Q12", "Q14", "Q20", "C31", "C32")
@given(_RECORDS, st.sampled_from(_OPTIONS), st.sampled_from(["", "/g = 'a'", "/rank > 0 AND OFFSET() >= 42"]))
def test_traits_and_filters_are_those_of_the_records(records: list[Any], options: str, text: str) -> None:
    objects, rows = both(encoded(records))
    assert _changes(rows, options, text) == _changes(objects, options, text)


@pytest.mark.feature("Q14", "Q25")
def test_a_payload_is_parsed_once_for_all_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    settings = loads('[queue.q]\ngroup_by = "/g"\npriority = "/rank"\n').queue["q"].settings("q", 0)
    shard = QueueShard(replace(settings, parse=lambda value: parsed.append(value) or loads_json(value)), QueueState())
    for name, text in (("s", "/g = 'a'"), ("t", "/rank > 0 AND OFFSET() >= 0")):
        shard.subscribing.subscribe(name, "c", 20, 3_600_000, text, _NOW_MS, Step())
    _, rows = both(encoded([(0, _NOW_MS, None, b'{"g":"a","rank":%d}' % at, [], False) for at in range(20)]))
    shard.arrive("q", 0, rows, Step(), _NOW_MS)
    assert len(parsed) == 20


@pytest.mark.feature("Q20", "Q25")
@pytest.mark.parametrize(("group", "together"), [(b'"a"', False), (b"7", True), ('"é"'.encode(), True)])
def test_payloads_are_parsed_together_if_most_of_them_must_be(group: bytes, together: bool) -> None:
    """A queue whose groups are numbers, or whose payloads have texts beyond ASCII, parsed each for itself."""
    settings = loads('[queue.q]\ngroup_by = "/g"\n').queue["q"].settings("q", 0)
    _, rows = both(encoded([(0, _NOW_MS, None, b'{"g":%s}' % group, [], False) for _ in range(20)]))
    views = RowViews("q", 0, rows, settings.parse)
    settings.traits.read(views)
    assert (views._payloads is not None) == together


def _changes(records: Any, options: str, text: str) -> list[str]:
    document = f'[queue.q]\nexpiration = "enabled"\nlease_period = "60s"\n{options}\n'
    shard, step = QueueShard(loads(document).queue["q"].settings("q", 0), QueueState()), Step()
    shard.subscribing.subscribe("s", "c", 20, 3_600_000, text, _NOW_MS, step)
    shard.arrive("q", 0, records, step, _NOW_MS)
    shard.deliver(_NOW_MS, step)
    columns = [str((one.traits.encode(), one.deadlines_ms)) for one in step.changes]
    return [str(one) for one in step.changes] + columns + [str(one) for one in step.deliveries]
