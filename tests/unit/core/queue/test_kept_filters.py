"""What is known under filters that are asked for again: of the latest ones, of messages that are there (C60, C82)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lapse.core.queue.inquiry.matching import MOST_PAGED, MOST_TRAVELLING, Matching

pytestmark = pytest.mark.feature("C60", "C82")


class Asked:
    """A matching whose filters take even offsets; what it judges is noted."""

    def __init__(self) -> None:
        self.matching = Matching(lambda text: lambda message: message.offset % 2 == 0)

    def ask(self, text: str, *offsets: int, most_kept: int = MOST_PAGED) -> tuple[list[int], list[int]]:
        """Ask for messages without a place: those that had to be judged, and those that match."""
        self.matching.begin_selection(text, most_kept)
        judged = self.matching.untried_offsets(text, "t", 0, list(offsets))
        views = [SimpleNamespace(topic="t", partition=0, offset=at, position=at) for at in judged]
        self.matching.judge_bookmarks(text, views)
        matching = sorted(self.matching.matched_offsets(text, "t", 0))
        self.matching.end_selection(text)
        return judged, matching


def test_what_was_judged_is_known_and_what_is_new_is_judged() -> None:
    asked = Asked()
    assert asked.ask("f", 1, 2, 4) == ([1, 2, 4], [2, 4])
    assert asked.ask("f", 1, 2, 4, 5, 6) == ([5, 6], [2, 4, 6])
    assert asked.ask("g", 1, 2) == ([1, 2], [2]), "under another filter nothing is known"
    assert asked.ask("f", 1, 2, 4, 5, 6) == ([], [2, 4, 6])


def test_what_is_gone_is_forgotten() -> None:
    asked = Asked()
    asked.ask("f", 1, 2, 4)
    assert asked.ask("f", 4) == ([], [4])
    assert asked.ask("f", 1, 2, 4) == ([1, 2], [2, 4])


def test_a_selection_that_is_not_kept_knows_nothing_and_leaves_nothing() -> None:
    asked = Asked()
    asked.ask("f", 2)
    assert asked.ask("f", 2, 4, most_kept=0) == ([2, 4], [2, 4])
    assert asked.ask("f", 2, 4) == ([4], [2, 4])


def test_the_latest_filters_are_kept_by_when_they_were_asked_for_last() -> None:
    asked = Asked()
    assert MOST_PAGED == 2
    for text in ("f", "g", "f", "h"):
        asked.ask(text, 2)
    assert asked.ask("f", 2)[0] == []
    assert asked.ask("g", 2)[0] == [2], "the others were asked for later"
    assert asked.ask("h", 2)[0] == [2], "and now it was the oldest"


def test_a_filter_that_is_kept_for_two_reasons_stays_for_the_other_one() -> None:
    asked = Asked()
    asked.ask("f", 2, most_kept=MOST_TRAVELLING)
    for text in ("f", "g", "h"):
        asked.ask(text, 2)
    assert asked.ask("f", 2)[0] == []
