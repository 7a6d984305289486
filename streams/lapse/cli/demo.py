"""`lapse demo`: a year of departures from New York, in minutes."""

import os
import sys
from pathlib import Path

import click
import orjson
from rich.console import Console

from lapse.demo.director import DemoOptions, run
from lapse.demo.error import DemoFailed
from lapse.demo.flights import IN_ALL
from lapse.demo.panel import Show
from lapse.option_type import Number


class _Flights(click.ParamType):
    """A number of flights, or `all`."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the value; refuse anything else."""
        if value in ("all", IN_ALL):
            return IN_ALL
        text = str(value)
        if not text.isdecimal() or not 1 <= int(text) <= IN_ALL:
            self.fail(f"{text!r}: expected `all`, or a number from 1 to {IN_ALL}", param, ctx)
        return int(text)


def _console(*, as_json: bool) -> Console:
    """Return the console for progress, on a copy of the output: Spark's start redirects both outputs meanwhile."""
    shown = sys.stderr if as_json else sys.stdout
    copy = os.fdopen(os.dup(2 if as_json else 1), "w", encoding=shown.encoding, errors=shown.errors)
    return Console(file=copy)


@click.command()
@click.option(
    "--minutes",
    type=Number(0.1, 60),
    default=3.0,
    show_default=True,
    help="How long the flights take, in minutes.",
)
@click.option(
    "--flights", type=_Flights(), default="all", show_default=True, help="Only this many flights of the year."
)
@click.option("--seed", default=2013, show_default=True, help="Seed of all accidents.")
@click.option("--workers", type=click.IntRange(1, 8), default=2, show_default=True, help="Number of worker processes.")
@click.option(
    "--subscribers", type=click.IntRange(1, 16), default=4, show_default=True, help="Number of subscriber processes."
)
@click.option("--keep", is_flag=True, help="Keep topics, logs and configuration, to look at them afterwards.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("lapse-demo.html"),
    show_default=True,
    help="The HTML report.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as one JSON object; progress goes to stderr.")
def demo(
    *, minutes: float, flights: int, seed: int, workers: int, subscribers: int, keep: bool, report: Path, as_json: bool
) -> None:
    """Send a year of real flights through a queue.

    Clients are killed at random. At the end every published flight must be acknowledged, dead-lettered or still in the
    queue.

    Uses the broker that KAFKA_BOOTSTRAP_SERVERS names, else one of its own. Exits with 1 unless every flight is
    accounted for.
    """
    console = _console(as_json=as_json)
    options = DemoOptions(
        seconds=minutes * 60,
        flights=flights,
        seed=seed,
        workers=workers,
        subscribers=subscribers,
        keep=keep,
        report=report,
    )
    try:
        outcome = run(options, Show(console))
    except DemoFailed as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(orjson.dumps(outcome.as_json()).decode())
    else:
        from lapse.demo import summary

        summary.show(outcome, console)
    if not outcome.balanced:
        click.echo("Error: the ledger does not balance; what differs is listed above and in the report.", err=True)
        sys.exit(1)
