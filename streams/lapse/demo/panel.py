"""The panel that is shown while the demo runs: a live picture on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_LINE_EVERY_S: Final = 5.0
_HISTORY: Final = 48
_SAMPLE_S: Final = 1.0
_BARS: Final = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The values shown at one moment.

    Attributes:
        calendar: the flights' time.
        progress: how much of it is over, from 0 to 1.
        published: flights that were announced.
        acknowledged: flights that were served.
        letters: flights that left by a dead letter, by reasons.
        depth: flights in the queue; None while it does not answer.
        in_sight: aircraft in the SOW topic; None while it does not answer.
        alive: subscribers that are ready, and how many there should be.
        workers: workers that run, and how many there should be.
        kills: processes killed so far.
        last: the latest accident, in words.
    """

    calendar: datetime
    progress: float
    published: int
    acknowledged: int
    letters: dict[str, int]
    depth: int | None
    in_sight: int | None
    alive: tuple[int, int]
    workers: tuple[int, int]
    kills: int
    last: str


class Show:
    """Shows phases and pictures.

    Args:
        console: the console, which need not be a terminal.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._line_at = 0.0
        self._sampled_at = 0.0
        self._history: deque[tuple[float, int, int, int]] = deque(maxlen=_HISTORY + 1)

    @contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """Show that something is under way, and then how long it took."""
        began = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(f"{what} …"):
                yield
        else:
            yield
        self._console.print(f"[green]✓[/green] {what} [dim]({time.monotonic() - began:.1f} s)[/dim]", highlight=False)

    def note(self, what: str) -> None:
        """Print a line."""
        self._console.print(what, highlight=False)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show pictures until the end of the block."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, refresh_per_second=5, transient=True) as self._live:
            yield
        self._live = None

    def picture(self, now: Picture) -> None:
        """Show a picture, or a line from time to time."""
        at = time.monotonic()
        if at - self._sampled_at >= _SAMPLE_S:
            self._sampled_at = at
            self._history.append((at, now.published, now.acknowledged, sum(now.letters.values())))
        if self._live is not None:
            self._live.update(self._draw(now))
        elif at - self._line_at >= _LINE_EVERY_S:
            self._line_at = at
            self._console.print(_line(now), highlight=False, soft_wrap=True)

    def _draw(self, now: Picture) -> RenderableType:
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(style="dim", width=13, no_wrap=True)
        grid.add_column(justify="right", width=10)
        grid.add_column(ratio=1)
        published, acknowledged, dead_letter_count = (self._rates(place) for place in (1, 2, 3))
        grid.add_row("published", f"{now.published:,}", Rate(published, "cyan"))
        grid.add_row("served", f"{now.acknowledged:,}", Rate(acknowledged, "green"))
        grid.add_row("dead letters", f"{sum(now.letters.values()):,}", Rate(dead_letter_count, "red"))
        for reasons, count in sorted(now.letters.items()):
            grid.add_row("", f"{count:,}", Text(reasons, style="dim"))
        grid.add_row("in the queue", _count_text(now.depth), Text("flights waiting or being served", style="dim"))
        grid.add_row("in sight", _count_text(now.in_sight), Text("aircraft that left lately (SOW topic)", style="dim"))
        alive, wanted = now.alive
        lamps = Text("● " * alive, style="green") + Text("✗ " * (wanted - alive), style="bold red")
        grid.add_row("subscribers", f"{alive} of {wanted}", lamps)
        grid.add_row("workers", f"{now.workers[0]} of {now.workers[1]}", Text(""))
        grid.add_row("killed", f"{now.kills}", Text(now.last, style="yellow"))
        head = Text(f"{now.calendar:%A, %d %B %Y, %H:00} UTC", style="bold")
        bar = ProgressBar(total=1.0, completed=now.progress)
        return Panel(Group(head, bar, Text(""), grid), title="lapse demo: departures from New York", padding=(1, 2))

    def _rates(self, place: int) -> list[float]:
        """Return messages per second between samples."""
        return [
            max(0.0, (after[place] - before[place]) / (after[0] - before[0]))
            for before, after in pairwise(self._history)
        ]


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate and its course, on one line; the latest part of the course, if the line has no room for all of it.

    Attributes:
        rates: messages per second between samples, the latest last.
        style: the colour of the course.
    """

    rates: Sequence[float]
    style: str

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it as wide as its cell allows."""
        now = Text(f"{self.rates[-1] if self.rates else 0:6,.0f}/s ", style="dim")
        shown = self.rates[-max(1, options.max_width - len(now)) :]
        most = max(shown, default=0.0) or 1.0
        drawn = "".join(_BARS[round(rate / most * (len(_BARS) - 1))] for rate in shown)
        yield Text.assemble(now, (drawn, self.style), no_wrap=True, overflow="crop")


def _count_text(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _line(now: Picture) -> str:
    return (
        f"{now.calendar:%Y-%m-%d} {now.progress:4.0%}  published {now.published:,}  served {now.acknowledged:,}  "
        f"dead letters {sum(now.letters.values()):,}  queued {_count_text(now.depth)}  "
        f"in sight {_count_text(now.in_sight)}  "
        f"subscribers {now.alive[0]}/{now.alive[1]}  workers {now.workers[0]}/{now.workers[1]}  killed {now.kills}"
    )
