"""Whatever comes in, its sender is told what is wrong and where, and the shard goes on (X7)."""

from pathlib import Path

import pytest

from unit.runtime.bad_input import ARRIVAL_MS, CHAPTERS, Input, finish, page, queue, response_to, sow

PAGE = Path(__file__).parents[3] / "docs/bad-input.md"
CASES = [
    pytest.param(chapter, case, id=f"{chapter.title}: {case.shown}"[:100])
    for chapter in CHAPTERS
    for case in chapter.cases
]


@pytest.mark.feature("X7", "L12", "S1", "S2", "X1", "X2")
@pytest.mark.parametrize(("chapter", "case"), CASES)
def test_its_sender_is_informed_once_in_words(chapter, case):
    text = response_to(chapter, case)
    assert text
    assert "Traceback" not in text
    assert "recursion" not in text, "a word of Python's, not of the sender's"


@pytest.mark.feature("X7")
@pytest.mark.parametrize(("chapter", "case"), CASES)
def test_what_comes_next_is_as_if_nothing_had_been(chapter, case):
    machine = (queue if chapter.entity == "queue" else sow)(**dict(case.settings))
    if case.commands:
        for record in case.given:
            machine.command(record)
    else:
        machine.arrive("prices", 0, list(case.given))
    finish(machine)
    machine.arrive("prices", 0, [Input(9, b"next", case.good)])
    machine.advance(ARRIVAL_MS)
    effects = finish(machine)
    assert effects.journal
    if chapter.entity == "queue":
        assert machine.shard.depth()["depth"] == 1
    else:
        assert (b"rnext" in machine.shard.state.entries) or (b'r["A"]' in machine.shard.state.entries)


@pytest.mark.slow
def test_the_page_shows_the_messages():
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/unit/runtime/bad_input.py > docs/bad-input.md"
