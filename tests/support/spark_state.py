"""`lapse spark state`, as a program asks it (D7)."""

import json
from typing import Any

from click.testing import CliRunner, Result

from lapse_spark.cli import spark as commands


def state(kafka: str, *words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(commands, ["state", "--bootstrap", kafka, "--json", *words])


def told(kafka: str, name: str, at_ms: int, what: str) -> list[dict[str, Any]]:
    """All `messages` or `records` that an entity had at an instant, none of them missing."""
    done = state(kafka, "--entity", name, "--at", str(at_ms))
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["complete"]
    found: list[dict[str, Any]] = answer[what]
    assert answer["count"] == len(found)
    return found
