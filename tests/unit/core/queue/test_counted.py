"""What rates have counted, taken over after a take-over that was cut short (Q25, C71)."""

import orjson
import pytest

from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.journal.journal_record import KEY
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.rates.counted import EVERYTHING
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
