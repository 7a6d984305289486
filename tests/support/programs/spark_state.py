"""Runs `lapse spark state` as a program does (D7)."""

import json
from typing import Any

from click.testing import CliRunner, Result

from lapse_spark.cli import spark as commands

Row = tuple[object, ...]


def state(kafka: str, *words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(commands, ["state", "--bootstrap", kafka, "--json", *words])


def state_at(kafka: str, name: str, at_ms: int, what: str) -> list[dict[str, Any]]:
    """Return all `messages` or `records` of an entity at an instant. Check that the answer is complete."""
    done = state(kafka, "--entity", name, "--at", str(at_ms))
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["complete"]
    found: list[dict[str, Any]] = answer[what]
    assert answer["count"] == len(found)
    return found


def row(one: Any) -> Row:
    """A message as peeks and the journal tell of it; its deadline is the last column."""
    return (
        one.bookmark,
        one.state,
        one.delivery_count,
        one.cancel_count,
        one.subscription,
        one.until_ms,
        one.expires_at_ms,
    )
