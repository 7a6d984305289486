"""The README and the tutorials, followed as a reader follows them: every file, every command and what it prints."""

from pathlib import Path

import pytest

from support.pages.page_run import PageRun, fits

ROOT = Path(__file__).parents[2]
PAGES = {
    ROOT / "README.md": 5,
    **dict.fromkeys(sorted((ROOT / "docs" / "tutorials").glob("*.md")), 8),
}
"""Each page, and how many commands it has at least."""


@pytest.mark.slow
@pytest.mark.parametrize(("page", "least"), PAGES.items(), ids=[page.stem for page in PAGES])
def test_a_page_does_what_it_shows(kafka: str, page: Path, least: int, tmp_path: Path) -> None:
    run = PageRun(page, tmp_path, kafka)
    run.follow()
    assert run.commands >= least


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
