"""Every two features of the core live in one queue together, and the shard does what the contract's naive reading does.

`LAPSE_SOAK=5000 pytest tests/unit/core/queue/test_interactions.py` lives through more lives of each pair.
"""

import os
from itertools import combinations
from random import Random

import pytest

from support.suite.at_length import AT_LENGTH, QUICK
from support.suite.interaction import table
from unit.core.queue.life_of_both import Life
from unit.core.queue.switch import SWITCHES

STEPS = 60 if AT_LENGTH else 10 if QUICK else 30
MOST = 400
LIVES = max(1, int(os.environ.get("LAPSE_SOAK", "0")) // 250)
WITHOUT_EFFECT = {("at_most_once", "limits")}
"""Pairs whose rule is that the second feature does nothing where the first one is."""

ALL = [pair for pair in combinations(SWITCHES, 2) if pair not in table().apart()]
PAIRS = ALL[1::8] if QUICK else ALL


@pytest.mark.feature("C49", "C50", "C54", "C77", "C79", "C80")
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_two_features_live_together(pair: tuple[str, str]) -> None:
    never, met = {0, 1}, False
    for number in range(LIVES):
        life = Life([SWITCHES[name] for name in pair], Random(f"{pair} {number}"))
        try:
            for _ in range(STEPS):
                life.step()
            for _ in range(MOST - STEPS):  # the rest, if chance has left something out
                if pair in WITHOUT_EFFECT or (life.met and not life.unseen):
                    break
                life.step()
            never, met = never & set(life.unseen), met or life.met
        finally:
            life.end()
    if pair in WITHOUT_EFFECT:
        assert never == {1}, f"{pair[1]} had an effect"
        return
    assert not never, [pair[at] for at in never]
    assert met, "the two were never at work at once"
