"""What `lapse dev` prints of its children."""

import pytest

from lapse.cli import dev


def test_lines_that_show_nothing_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("", "\b", "\x1b[?25h\b", "\x1b[0m\b", "told"):
        dev._print_child_line("worker", line)
    assert capsys.readouterr().err == "worker  | told\n"
