"""What is known of places under the filters of subscriptions, and what is forgotten again (Q14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from lapse.core.queue.inquiry.matching import MOST_PAGED, NO, UNKNOWN, YES, Matching
from lapse.core.queue.segments.segment import SIZE, State

pytestmark = pytest.mark.feature("Q14", "C60")

SECOND = SIZE + 1
"""A place in the second segment."""


class Even:
    """A filter that takes even numbers, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.uses_payload = True

    def __call__(self, message: SimpleNamespace) -> bool:
        self.asked.append(message.payload)
        return bool(message.payload % 2 == 0)


class MeasuredMatching(Matching):
    """A matching whose work is noted, filter by filter."""

    def __init__(self) -> None:
        self.filters: dict[str, Even] = {}
        super().__init__(self._compiled)  # type: ignore[arg-type]
        self.work: list[tuple[str, int]] = []
        self.within = ""
        self.measured = self._measured

    def _compiled(self, text: str) -> Even:
        if text == "wrong":
            raise ValueError("no filter")
        return self.filters.setdefault(text, Even())

    @contextmanager
    def _measured(self, text: str) -> Iterator[Callable[[int], None]]:
        self.within = text
        yield lambda count: self.work.append((text, count))
        self.within = ""

    def tell(self, *numbers: int | None, first: int = 0) -> None:
        """Judge messages that stand one behind the other; None is one whose record is gone."""
        places = list(range(first, first + len(numbers)))
        self.judge(places, [None if one is None else SimpleNamespace(payload=one) for one in numbers])  # type: ignore[misc]

    def known(self, text: str, *slots: int, index: int = 0) -> list[int]:
        there: list[int] = self.codes(text, index, np.array(slots, np.intp)).tolist()
        assert there == [self.code(text, index, slot) for slot in slots]
        return there


@pytest.fixture
def matching() -> MeasuredMatching:
    made = MeasuredMatching()
    made.set_subscribed(["even", ""])
    return made


def test_places_are_judged_once_and_the_work_is_counted(matching: MeasuredMatching) -> None:
    matching.tell(4, 5, None)
    assert matching.known("even", 0, 1, 2, 3) == [YES, NO, NO, UNKNOWN]
    matching.tell(4, 5, None, 6)
    assert matching.known("even", 0, 1, 2, 3) == [YES, NO, NO, YES]
    assert matching.filters["even"].asked == [4, 5, 6]
    assert matching.work == [("even", 3), ("even", 1)]
    assert matching.known("even", 0, index=1) == [UNKNOWN]
    assert matching.known("", 0, 7) == [YES, YES]
    with pytest.raises(ValueError, match="shorter"):
        matching.judge([0, 1], [None])


def test_a_payload_is_read_before_the_work_of_a_filter_begins(matching: MeasuredMatching) -> None:
    read_within: list[str] = []

    class Message:
        @property
        def payload(self) -> int:
            read_within.append(matching.within)
            return 2

    matching.judge([0, 1], [Message(), None])  # type: ignore[list-item]
    assert read_within[0] == ""
    matching.set_subscribed(["even", "constant"])
    matching.filters["constant"].uses_payload = False
    read_within.clear()
    matching.judge([2], [Message()])  # type: ignore[list-item]
    assert read_within[0] == "", "one of the two looks at it"
    matching.set_subscribed(["constant"])
    del matching.filters["constant"].uses_payload
    read_within.clear()
    matching.judge([3], [Message()])  # type: ignore[list-item]
    assert set(read_within) == {"constant"}, "nobody is known to look at it"


def test_a_filter_that_no_subscription_has_any_more_is_forgotten(matching: MeasuredMatching) -> None:
    assert matching.active
    assert matching.subscribed_filters == {"even"}
    matching.tell(4)
    matching.set_subscribed([])
    assert not matching.active
    matching.set_subscribed(["even"])
    assert matching.known("even", 0) == [UNKNOWN]
    assert matching.predicate("even") is matching.filters["even"]


def test_a_filter_that_is_asked_for_again_knows_its_results_until_others_come() -> None:
    matching = MeasuredMatching()
    assert MOST_PAGED == 2

    def ask(text: str) -> list[int]:
        matching.begin_selection(text, MOST_PAGED)
        before = matching.known(text, 0)
        matching.tell(4)
        matching.end_selection(text)
        return before

    assert (ask("f"), ask("f"), ask("g"), ask("f")) == ([UNKNOWN], [YES], [UNKNOWN], [YES])
    assert ask("h") == [UNKNOWN]
    assert ask("g") == [UNKNOWN], "two others were asked for later"
    assert ask("f") == [UNKNOWN], "and now two were later than this one"
    matching.begin_selection("even")
    matching.tell(4)
    matching.end_selection("even")
    matching.begin_selection("even")
    assert matching.known("even", 0) == [UNKNOWN], "it was not asked for to be kept"


def test_a_selection_that_cannot_be_compiled_leaves_nothing(matching: MeasuredMatching) -> None:
    with pytest.raises(ValueError, match="no filter"):
        matching.begin_selection("wrong")
    matching.set_subscribed([])
    assert not matching.active


def test_how_far_a_selection_was_judged_is_known_while_it_lasts(matching: MeasuredMatching) -> None:
    matching.note_judged("even", 3)
    assert matching.first_unjudged_segment("even") == 0, "it is no selection"
    matching.begin_selection("even")
    assert matching.first_unjudged_segment("even") == 0
    matching.note_judged("even", 3)
    assert matching.first_unjudged_segment("even") == 3
    matching.end_selection("even")
    assert matching.first_unjudged_segment("even") == 0
    matching.begin_selection("even")
    assert matching.first_unjudged_segment("even") == 0


def test_a_segment_is_hopeless_once_no_filter_can_match_in_it(matching: MeasuredMatching) -> None:
    matching.set_subscribed(["even", "other"])
    assert matching.matches_none(["even"], 0, 1) is False, "it was not tried"
    matching.tell(1, 3, 4)
    assert matching.matches_none(["even", "other"], 0, 2)
    assert not matching.matches_none(["even"], 0, 3), "one matches"
    assert matching.matches_none([], 0, 2) is True, "nobody is there"
    assert not matching.matches_none(["even", ""], 0, 2), "who has no filter takes all"
    matching.tell(5, first=SECOND)
    assert not matching.matches_none(["even"], 1, 2), "the first place of the segment was not tried"


def test_whether_a_filter_was_tried_in_a_segment(matching: MeasuredMatching) -> None:
    assert matching.is_untried("even", 0) is True
    assert matching.is_untried("", 0) is False
    matching.tell(1)
    assert matching.is_untried("even", 0) is False
    matching.tell(2, first=SECOND)
    assert matching.known("even", 1, index=1) == [YES]
    matching.drop([1])
    assert (matching.is_untried("even", 0), matching.is_untried("even", 1)) == (False, True)


def test_places_that_are_empty_for_good_match_nothing_under_any_filter() -> None:
    matching = MeasuredMatching()
    matching.begin_selection("kept", MOST_PAGED)
    matching.tell(2, 4, 6, 8)
    matching.end_selection("kept")
    matching.set_subscribed(["even"])
    matching.tell(2, 4, 6)
    state = np.array([State.GONE, State.AVAILABLE, State.EXPIRED, State.GONE], np.uint8)
    matching.mark_empty_slots(SimpleNamespace(index=0, used=3, state=state))  # type: ignore[arg-type]
    assert matching.known("even", 0, 1, 2, 3) == [NO, YES, NO, UNKNOWN]
    matching.begin_selection("kept", MOST_PAGED)
    assert matching.known("kept", 0, 1, 2, 3) == [NO, YES, NO, YES], "the fourth place is not in use"
    matching.mark_empty_slots(SimpleNamespace(index=1, used=1, state=state))  # type: ignore[arg-type]
    assert matching.is_untried("even", 1), "nothing was known of it"
