"""`lapse doctor`: finds faults of the deployment, and says how to correct them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click
import orjson
from rich.console import Console

from lapse.cli import cluster
from lapse.cli.config_option import CONFIG
from lapse.config import ConfigError, load
from lapse.doctor import Finding, Verdict, check_machine, check_service, check_topics
from lapse.doctor.finding import wrong
from lapse_client.error import LapseError
from lapse_client.reading.count_text import count_text

_MARKS: Final = {Verdict.FINE: ("✓", "green"), Verdict.WARNING: ("!", "yellow"), Verdict.WRONG: ("✗", "red")}


@click.command()
@CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one finding per line.")
def doctor(config: Path, as_json: bool) -> None:
    """Check for common faults: Java, versions, topics, rights, clocks, workers.

    Changes nothing; exits with 1 if something is wrong. Warnings alone do not change that.
    """
    with Console(stderr=True).status("Looking ..."):
        found = _look(config)
    if as_json:
        for one in found:
            facts = {"about": one.about, "verdict": one.verdict, "text": one.text, "remedy": one.remedy}
            click.echo(orjson.dumps(facts))
    else:
        _show(found)
    sys.exit(1 if any(one.verdict is Verdict.WRONG for one in found) else 0)


def _look(path: Path) -> list[Finding]:
    """Make all checks. If the configuration is wrong or no broker answers, leave out those that need it."""
    try:
        config = load(path)
    except ConfigError as error:
        remedy = "Correct the file. `lapse dev` writes a sample if there is none"
        return [wrong("configuration", str(error), remedy), *check_machine()]
    found = [*check_machine(config), *check_topics(config)]
    if found[-1].about == "Kafka" and found[-1].verdict is Verdict.WRONG:
        return found
    try:
        return [*found, *check_service(config, cluster.connection(None, path))]
    except LapseError as error:
        return [*found, wrong("Kafka", str(error), "The client cannot connect as the worker can: see its settings")]


def _show(found: list[Finding]) -> None:
    """Print each finding on a line, and what to do about it below."""
    for one in found:
        mark, colour = _MARKS[one.verdict]
        click.echo(f"{click.style(mark, fg=colour)} {one.about}: {one.text}")
        if one.remedy:
            click.echo(f"    {one.remedy}")
    wrongs = sum(one.verdict is Verdict.WRONG for one in found)
    warnings = sum(one.verdict is Verdict.WARNING for one in found)
    click.echo(f"{wrongs} wrong, {count_text(warnings, 'warning')}, {len(found) - wrongs - warnings} fine.")
