"""What `lapse dev` prints of its children."""

import pytest

from lapse.cli import dev
from lapse.cli.child import Child


def test_lines_that_show_nothing_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("", "\b", "\x1b[?25h\b", "\x1b[0m\b", "told"):
        dev._print_child_line("worker", line)
    assert capsys.readouterr().err == "worker  | told\n"


@pytest.mark.feature("X7")
def test_only_the_first_line_of_a_process_is_kept() -> None:
    """A worker may log for weeks."""
    said: list[str] = []
    child = Child("help", ["--help"], {}, lambda _, line: said.append(line))
    assert child.wait() == 0
    assert len(said) > 10
    assert child._first.qsize() == 2, "the first line, and the end"
    assert child.first_line(0) == said[0]
