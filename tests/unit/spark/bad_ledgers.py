"""Options of `lapse spark ledger` that are refused: cases of test_running_ledger.py and of docs/bad-input.md (X7)."""

from __future__ import annotations

from typing import Final, NamedTuple

from click.testing import CliRunner

from lapse_spark.account.ledger_command import ledger


class Case(NamedTuple):
    """Options that are refused.

    Attributes:
        options: what stands on the command line.
    """

    options: str

    @property
    def shown(self) -> str:
        """The options as a page has them."""
        return f"`{self.options}`"

    @property
    def message(self) -> str:
        """What is told."""
        answer = CliRunner().invoke(ledger, ["--bootstrap", "localhost:9092", *self.options.split(" ")])
        return answer.output.strip().splitlines()[-1].removeprefix("Error: ") if answer.exit_code else ""


CASES: Final = [
    Case("--queue work"),
    Case("--follow --queue work"),
    Case("--follow --topics orders"),
    Case("--follow --start orders:0:12"),
    Case("--follow --config nowhere.toml"),
    Case("--follow --queue work --topics orders --until 2026-01-01T00:00:00Z"),
    Case("--follow --queue work --topics orders --strict --output out"),
    Case("--queue work --topics orders --since 2026-01-02T00:00:00Z --until 2026-01-01T00:00:00Z"),
    Case("--follow --once --every 5s --queue work --topics orders"),
    Case("--queue work --topics orders --once --grace 5s"),
    Case("--follow --queue work --topics orders --grace soon"),
    Case("--follow --queue work --topics orders --every soon"),
    Case("--follow --queue work --topics orders --publish-to a/b"),
]
