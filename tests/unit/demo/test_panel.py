"""The panel of the running demo keeps each rate on one line, however narrow the terminal is."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from lapse.demo.panel import Picture, Rate, Show


@pytest.mark.parametrize("width", [20, 40, 60])
def test_a_rate_shows_the_latest_of_its_course(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as shown:
        console.print(Rate([8.0] * 30 + [0.0] * 8 + [4.0], "red"))
    (line,) = shown.get().splitlines()
    assert len(line) <= width
    assert line.startswith("     4/s ")
    assert line.endswith("▄")


@pytest.mark.parametrize("width", [50, 80])
def test_the_panel_has_a_line_for_each_figure(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    seconds = iter(range(1_000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(seconds)))
    console = Console(file=io.StringIO(), width=width, height=60, color_system=None, force_terminal=True)
    show = Show(console)
    for served in range(100):
        now = Picture(
            calendar=datetime(2013, 2, 20, tzinfo=UTC),
            progress=0.5,
            published=served * 3,
            acknowledged=served * (served % 3),
            letters={"time_limit": served},
            depth=4,
            in_sight=None,
            alive=(3, 4),
            workers=(2, 2),
            kills=1,
            last="",
        )
        show.picture(now)
    with console.capture() as drawn:
        console.print(show._draw(now))
    lines = drawn.get().splitlines()
    assert {len(line) for line in lines} == {width}
    assert len([line for line in lines if "/s" in line or set(line) & set("▁▂▃▄▅▆▇█")]) == 3
