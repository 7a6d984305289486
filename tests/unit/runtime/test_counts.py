"""What `counts` of an answer may hold is listed in `docs/protocol.md`, command by command (X2)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unit.runtime.bad_input import ARRIVAL_MS, Input, finish
from unit.runtime.shard.test_error_code import MACHINES, answers_to

pytestmark = pytest.mark.feature("X2")

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
ONLY_FILTERED = {"filter": "/price >= 0"}

QUEUE: list[tuple[str, dict[str, object]]] = [
    ("`subscribe` to a queue", {"command": "subscribe", "subscription": "s", "max_backlog": 1}),
    ("`depth` of a queue", {"command": "depth"}),
    ("`depth` of a queue", {"command": "depth", **ONLY_FILTERED}),
    ("`depth` of a queue with `top_n` 0", {"command": "depth", "top_n": 0}),
    ("`depth` of a queue", {"command": "sow"}),
    ("`subscriptions`", {"command": "subscriptions"}),
    ("`acknowledge`, `cancel`, `expire` by `filter`", {"command": "acknowledge", **ONLY_FILTERED}),
    ("`transfer`", {"command": "transfer", "transfer": "t", "top_n": 1}),
    ("`transfer_cancel`", {"command": "transfer_cancel", "transfer": "t"}),
    ("`transfer_discard`", {"command": "transfer_discard", "transfer": "t"}),
    ("`purge`", {"command": "purge"}),
    ("`delete`", {"command": "delete", "force": True}),
]
SOW: list[tuple[str, dict[str, object]]] = [
    ("`subscribe`, `delta_subscribe` to a SOW topic", {"command": "subscribe", "subscription": "s"}),
    ("`sow_and_subscribe`, `sow_and_delta_subscribe`", {"command": "sow_and_subscribe", "subscription": "t"}),
    ("`sow` of a SOW topic", {"command": "sow"}),
    ("`sow` of a SOW topic with `state`", {"command": "sow", "state": "scheduled"}),
    ("`sow_delete`", {"command": "sow_delete", "state": "scheduled", "filter": "TRUE"}),
    ("`sow_delete`", {"command": "sow_delete", "filter": "/price = 99"}),
    ("`depth` of a SOW topic", {"command": "depth"}),
    ("`subscriptions`", {"command": "subscriptions"}),
    ("`delete`", {"command": "delete", "force": True}),
]


def listed() -> dict[str, set[str]]:
    """What stands in backticks in the second column of the page's table, by the first column."""
    table = PAGE.read_text("utf-8").partition("\n### Counts\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    return {command.strip(): set(re.findall(r"`([^`]+)`", keys)) for command, keys in cells}


@pytest.mark.parametrize(("kind", "given"), [("queue", QUEUE), ("sow", SOW)])
def test_answers_have_no_count_that_is_not_listed(kind: str, given: list[tuple[str, dict[str, object]]]) -> None:
    machine, known = MACHINES[kind](), listed()
    machine.arrive("prices", 0, [Input(n, b"k%d" % n) for n in range(5)])
    machine.advance(ARRIVAL_MS)
    finish(machine)
    for number, (row, command) in enumerate(given):
        answers = answers_to(machine, number, **command)
        assert [one.error for one in answers if one.error] == [], command
        found = {name for one in answers for name in one.counts}
        assert found, command
        assert found <= known[row], command
