"""Claims in columns settle what claims as objects do, and outcomes that nobody asks for may be missing (C13, C16)."""

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.generation import FIRST_REWOUND
from lapse.core.lifetime import Expiration
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.alike_bookmarks import parse_alike
from lapse.core.queue.settlement.alike_claims import AlikeClaims, joined
from lapse.core.queue.settlement.settlement import Claim, SettleAction, claims_of
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from lapse.protocol.bookmark import parse_ranges
from lapse.protocol.command import Command

_NOW_MS = 1_000_000
_COUNT = 60
_OFFSETS = st.integers(0, 2 * _COUNT)
_RANGES = st.lists(st.tuples(_OFFSETS, st.integers(0, 3)), min_size=1, max_size=40)
_TOKENS = st.sampled_from(["", "#1", "#2", "#1@7"])


@pytest.mark.feature("C13", "C16", "C60")
@given(
    st.sampled_from(["acknowledge", "cancel", "expire", "renew"]),
    _RANGES,
    _TOKENS,
    st.sets(_OFFSETS, max_size=20),
    st.booleans(),
    st.booleans(),
)
def test_a_command_does_the_same_with_columns_and_objects(
    action: str, ranges: Sequence[tuple[int, int]], token: str, before: set[int], strict: bool, in_order: bool
) -> None:
    named = sorted(ranges) if in_order else ranges
    texts = tuple(f"q:0:{first}-{first + more}{token}" if more else f"q:0:{first}{token}" for first, more in named)
    done = [_carry_out(action, texts, before, strict, answer, few) for answer, few in (("all", 1), ("all", 99))]
    assert done[0] == done[1]
    quiet = [_carry_out(action, texts, before, strict, answer, few) for answer, few in (("errors", 1), ("errors", 99))]
    assert quiet[0] == quiet[1]
    assert quiet[0][0] == done[0][0], "the changes"
    assert quiet[0][2] == done[0][2], "the subscription"
    assert quiet[0][1] == [one for one in done[0][1] if one[1] != "settled"], "all that was refused"


def _carry_out(action: str, texts: tuple[str, ...], before: set[int], strict: bool, answer: Any, few: int) -> Any:
    """Return the changes and results of a command on a shard in which some messages were acknowledged `before`."""
    settings = QueueSettings(name="q", expiration=Expiration(enabled=True), lease_ms=60_000)
    if strict:
        settings = QueueSettings(name="q", lease_ms=60_000, max_cancels=1)
    shard, step = QueueShard(settings, QueueState()), Step()
    for part in range(2):  # with a gap of offsets between them
        first = part * (_COUNT // 2 + 7)
        records = [
            SimpleNamespace(offset=first + at, timestamp=_NOW_MS, key=None, value=b"{}", headers=())
            for at in range(_COUNT // 2)
        ]
        shard.arrive("q", 0, records, step, _NOW_MS)
    shard.subscribing.subscribe("s", "c", _COUNT - 10, 3_600_000, "", _NOW_MS, step)
    shard.deliver(_NOW_MS, step)
    shard.settle(
        SettleAction.ACKNOWLEDGE,
        "s",
        [Claim("q", 0, offset, offset) for offset in sorted(before)],
        _NOW_MS + 1,
        step,
    )
    commands, step = QueueCommands(shard, "q"), Step()
    command = Command(command=action, subscription="s", bookmarks=texts, answer=answer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapse.core.queue.settlement.alike_bookmarks.MANY", few)
        patch.setattr("lapse.core.queue.settlement.named_settlement.WORK_AT_ONCE", 25)
        while commands.carry_out_part(command, _NOW_MS + 2, step, None):
            pass
        commands.handle(command, _NOW_MS + 2, step, None)
    (subscription,) = shard.state.subscriptions.values()
    facts: list[dict[str, Any]] = [dict(made.facts) for made in step.answers]
    results = [(one.bookmarks, one.result) for some in facts for one in some.get("settlements", ())]
    return [str(one) for one in step.changes], results, str(subscription)


@pytest.mark.feature("C16")
@given(st.lists(st.tuples(_OFFSETS, st.integers(0, 3)), min_size=1, max_size=20), st.data())
def test_claims_in_columns_are_the_claims(ranges: list[tuple[int, int]], data: st.DataObject) -> None:
    claims = [Claim("q", 0, first, first + more, 3, 7) for first, more in ranges]
    columns = _columns(claims)
    assert list(columns) == [columns[at] for at in range(len(claims))] == claims
    first, stop = sorted((data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))))
    assert list(columns[first:stop]) == claims[first:stop]
    order = data.draw(st.permutations(range(len(claims))))
    assert list(columns.take(np.array(order, np.intp))) == [claims[at] for at in order]
    both = joined(columns, columns[first:stop])
    assert isinstance(both, AlikeClaims)
    assert list(both) == [*claims, *claims[first:stop]]
    others = [one._replace(delivery_count=4) for one in claims]
    for known, more in ((columns, _columns(others)), (list(claims), columns), (columns, others), ([], columns)):
        expected = [*known, *more]
        assert list(joined(known, more)) == expected


def _columns(claims: Sequence[Claim]) -> AlikeClaims:
    topic, partition, *_, token, epoch, _ = claims[0]
    firsts, lasts = (np.array(some, np.int64) for some in zip(*((one.first, one.last) for one in claims), strict=True))
    return AlikeClaims(topic, partition, firsts, lasts, token, epoch)


_OFFSET_TEXTS = st.one_of(
    st.integers(0, 99).map(str),
    st.tuples(st.integers(0, 50), st.integers(0, 99)).map(lambda ends: f"{ends[0]}-{ends[1]}"),
    st.sampled_from(
        [
            "007",
            "",
            "-",
            "1-",
            "-1",
            "1-2-3",
            "1,2",
            "1\nq:0:2",
            "1#1\nq:0:2",
            "9" * 19,
            f"1-{FIRST_REWOUND}",
            "1~1",
            "٣",
        ]
    ),
)


@pytest.mark.feature("Q8", "C13")
@given(
    st.lists(_OFFSET_TEXTS, min_size=1, max_size=6),
    st.sampled_from(["", "#1", "#2@7"]),
    st.sampled_from(["q:0:", "q:0", "r:0:", "q:1:"]),
    st.integers(0, 8),
)
def test_many_bookmarks_are_parsed_as_each_of_them(offsets: list[str], tail: str, other: str, at: int) -> None:
    """One of them may be of another topic."""
    texts = [f"{other if number == at else 'q:0:'}{offset}{tail}" for number, offset in enumerate(offsets)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapse.core.queue.settlement.alike_bookmarks.MANY", 1)
        found = parse_alike(texts)
    if found is not None:
        assert list(found) == claims_of(parse_ranges(texts))
    elif all(re.fullmatch(r"q:0:[0-9]{1,2}(#.*)?", text) for text in texts):
        pytest.fail("these are plain")
