"""What rates have counted, taken over after a take-over that was cut short (Q25, C71)."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.journal.journal_record import KEY
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.rates.counted import EVERYTHING, Batch, Counted, Of, parse_batch
from lapse.core.queue.rates.rate import Rate


def counted(epoch: int, number: int) -> tuple[bytes, bytes]:
    return KEY.pack(b"r", epoch, number), orjson.dumps({"at_ms": 1_000 + number, "counts": [[*EVERYTHING, 1]]})


@pytest.mark.feature("Q25", "C71", "Q16")
@pytest.mark.parametrize("old", [(3, 4, 5), (5,), (4, 5)], ids=["all", "the last", "some"])
def test_what_two_epochs_have_put_down_counts_once_and_is_forgotten_in_turn(old: tuple[int, ...]) -> None:
    items = [counted(1, number) for number in old] + [counted(2, number) for number in (3, 4, 5)]
    found = restore(items).state.counted
    rate = Rate(count=10, per_ms=60_000)
    for left, number in ((7, 3), (8, 4), (9, 5)):
        assert found.room_for(EVERYTHING, rate, 2_000) == left
        assert list(found.batches) == list(range(number, 6))
        found.apply(Change(ChangeKind.UNCOUNTED, offset=number))
    assert found.room_for(EVERYTHING, rate, 2_000) == 10


@pytest.mark.feature("Q25", "C71", "Q16")
def test_a_journal_of_an_older_version_counts_the_same() -> None:
    batch = Batch(1_000, 7, [11, -12], [3, 2], [40, 41], before_ms=900)
    older = {
        "at_ms": 1_000,
        "counts": [[*EVERYTHING, 7], [11, -1, 3], [0, 40, 1], [-12, -1, 2], [0, 41, 1]],
        "before_ms": 900,
    }
    assert parse_batch(older) == parse_batch(orjson.loads(orjson.dumps(batch.facts()))) == batch
    assert parse_batch({"at_ms": 5, "counts": [[*EVERYTHING, 2]]}) == parse_batch(Batch(5, 2).facts())


GROUPS = (11, -12, 13)
PLACES = (40, 41)
BATCHES = st.lists(
    st.tuples(
        st.integers(0, 50),
        st.dictionaries(st.sampled_from(GROUPS), st.integers(1, 4), max_size=3),
        st.lists(st.sampled_from(PLACES), unique=True),
        st.sets(st.sampled_from([EVERYTHING, *((one, -1) for one in GROUPS), *((0, one) for one in PLACES)])),
        st.integers(0, 3),
    ).filter(lambda one: bool(one[1] or one[2])),
    max_size=12,
)


@pytest.mark.feature("Q25", "C71")
@given(BATCHES, st.integers(1, 12), st.integers(1, 120))
def test_room_is_what_the_window_leaves_whenever_it_is_asked_for(batches: list, count: int, per_ms: int) -> None:
    """Between two questions batches are counted and forgotten, so lines are entered late and in parts."""
    rate, counted, now_ms, known = Rate(count, per_ms), Counted(), 1_000, list[tuple[int, int, dict[Of, int]]]()
    for number, (later_ms, groups, places, asked, gone) in enumerate(batches):
        now_ms += later_ms
        total = sum(groups.values()) + len(places)
        counted.add(number, Batch(now_ms, total, list(groups), list(groups.values()), places))
        of_all = {EVERYTHING: total, **{(one, -1): some for one, some in groups.items()}}
        known.append((number, now_ms, of_all | dict.fromkeys(((0, one) for one in places), 1)))
        for old, at_ms, _ in known[:gone]:
            if at_ms <= now_ms - per_ms:
                counted.apply(Change(ChangeKind.UNCOUNTED, offset=old))
                known = [one for one in known if one[0] != old]
        for of in asked:
            inside = [(at_ms, each.get(of, 0)) for _, at_ms, each in known if at_ms > now_ms - per_ms]
            given_ = sum(some for _, some in inside)
            assert counted.room_for(of, rate, now_ms) == max(0, count - given_)
            if given_ >= count:
                frees = next(at_ms for at, (at_ms, _) in enumerate(inside) if given_ - sums(inside, at) < count)
                assert counted.frees_ms(of, rate) == frees + per_ms < NEVER
        for enough in (1, 3):
            rooms = dict(counted.rooms_for(GROUPS, rate, now_ms, enough))
            for at, group in enumerate(GROUPS):
                room = counted.room_for((group, -1), rate, now_ms)
                assert rooms[at] == room if room < enough else rooms.get(at, enough) >= enough


def sums(inside: list[tuple[int, int]], at: int) -> int:
    """Return the deliveries of the first batches, the one at an index included."""
    return sum(some for _, some in inside[: at + 1])
