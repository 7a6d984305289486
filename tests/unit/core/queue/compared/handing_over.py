"""Messages handed over to, and taken over from, another deployment (Q17)."""

from __future__ import annotations

import numpy as np

from lapse.core.queue.inquiry.matching import MOST_TRAVELLING, NO, UNKNOWN, YES
from lapse.core.queue.segments import segment as segments
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.transfer.transfers import HandOver
from unit.core.queue.compared.compared_shard import ComparedShard, bookmarks, pairs, singly
from unit.core.queue.expected.message import Bookmark


class HandingOver(ComparedShard):
    """Both sides of transfers, and what followers take."""

    def hold(self, transfer: str, *claims: Claim, most: int = 100) -> bool:
        """Hold messages for a transfer on both; whether there are more."""
        step, now_ms = self._open(), self.now_ms
        outcomes, more = self.shard.transfer_source.hold(transfer, "there", claims, most, now_ms, step)
        expected, more_expected = self.oracle.hold(transfer, [bookmarks(claim) for claim in claims], most, now_ms)
        actual = dict(singly(outcomes))
        assert more == more_expected
        assert more or actual.keys() == expected.keys()
        for bookmark, result in actual.items():
            self._agree(bookmark, result, expected[bookmark])
        self._compare_outputs()
        self.check()
        return more

    def spare(self, most: int, least_life_ms: int, came: bool, text: str = "") -> list[Bookmark]:
        """What nobody takes here now; of what no filter was tried on yet, nobody knows (Q26, C73, C74)."""
        source, subscriptions = self.shard.transfer_source.spare, self.shard.state.subscriptions.values()
        expected = self.oracle.spare(least_life_ms, self.now_ms, came, text)
        at = {}
        for place in range(self.shard.state.next_place):
            index, slot = divmod(place, segments.SIZE)
            at[self.shard.bookmark_of(place)] = index, np.array([slot])
        if text:  # the payloads are read as far as that takes
            self.shard.matching.begin_selection(text, MOST_TRAVELLING)
            while places := source.places_to_judge(most, least_life_ms, self.now_ms, came, text, 2):
                self.judge(places)
        else:
            for other in {one.filter for one in subscriptions if one.filter and (came or one.space)}:
                codes = {bookmark: self.shard.matching.codes(other, *at[bookmark]) for bookmark in expected}
                expected = [bookmark for bookmark in expected if codes[bookmark] != UNKNOWN]
        claims, unseen = source.claims(most, least_life_ms, self.now_ms, came, text)
        if text:
            self.shard.matching.end_selection(text)
        assert not unseen
        found = [bookmark for one in claims for bookmark in bookmarks(one)]
        assert len(found) == len(set(found))
        assert set(found) == set(expected[:most])
        assert source.unfiltered_demand() == self.oracle.wanted()

        def not_matched(other: str, bookmark: Bookmark) -> bool:
            code = int(self.shard.matching.codes(other, *at[bookmark])[0])
            assert code == UNKNOWN or (code == YES) is self.oracle.matches(other, bookmark)
            return code == NO

        assert {one.filter: one.wanted for one in source.demands()} == self.oracle.demands(not_matched)
        self.check()
        return found

    def confirm(self, transfer: str, *given: HandOver) -> list[str]:
        step, now_ms = self._open(), self.now_ms
        outcomes = self.shard.transfer_source.confirm(transfer, given, now_ms, step)
        handed_over = [pair for one in given for pair in pairs(one)]
        expected = self.oracle.confirm(transfer, handed_over, now_ms)
        actual = dict(singly(outcomes))
        for bookmark, result in expected:
            self._agree(bookmark, actual[bookmark], result)
        self._compare_outputs()
        self.check()
        return [result for _, result in expected]

    def finish_transfer(self, transfer: str) -> None:
        self._both(lambda step: self.shard.transfer_source.finish(transfer, step), lambda: self.oracle.finish(transfer))

    def hand_back(self, transfer: str) -> int:
        return self._both(
            lambda step: self.shard.transfer_source.give_back(transfer, self.now_ms, step),
            lambda: self.oracle.hand_back(transfer, self.now_ms),
        )

    def accept(self, transfer: str, *claims: Claim) -> list[str]:
        step, now_ms = self._open(), self.now_ms
        outcomes = singly(self.shard.transfer_target.accept(transfer, claims, now_ms, step))
        expected = self.oracle.accept(transfer, [b for claim in claims for b in bookmarks(claim)], now_ms)
        assert outcomes == expected
        self._compare_outputs()
        self.check()
        return [result for _, result in expected]

    def discard(self, transfer: str) -> int:
        return self._both(
            lambda step: self.shard.transfer_target.discard(transfer, self.now_ms, step),
            lambda: self.oracle.discard(transfer, self.now_ms),
        )

    def _agree(self, bookmark: Bookmark, actual: str, expected: str) -> None:
        forgotten = bookmark in self.forgotten and actual == "already_settled" and expected == "time_limit"
        assert forgotten or actual == expected, (bookmark, actual, expected)
