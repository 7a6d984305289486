"""The tutorials, followed as a reader follows them: every file and every command, and what each command prints."""

from pathlib import Path

import pytest

from support.page_run import PageRun, fits

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_does_what_it_shows(kafka: str, page: Path, tmp_path: Path) -> None:
    run = PageRun(page, tmp_path, kafka)
    run.follow()
    assert run.commands > 7


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a:0:1", "a:0:1\n", True),
        ("a:0:1", "a:0:2\n", False),
        ("a:0:1", "a:0:1\nmore\n", False),
        ("│ … │ 1 │", "│ 2026-01-01    │      1 │", True),
        ("│ … │ 1 │", "│ 2026-01-01    │      2 │", False),
        ("one\n…\nthree", "one\n2\n2\nthree", True),
        ("one … two", "one\ntwo", False),
    ],
)
def test_what_is_shown_is_compared(shown: str, printed: str, same: bool) -> None:
    assert fits(shown, printed) is same
