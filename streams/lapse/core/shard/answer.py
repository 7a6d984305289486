"""The answer of a shard to a command. `lapse.protocol.answer` has its wire format (X2)."""

from __future__ import annotations

from typing import NamedTuple

from lapse.core.error_code import Refusal

Counts = dict[str, int | None]
"""Figures by name; None = the figure does not exist now."""


class CommandAnswer(NamedTuple):
    """The answer to one command (X2).

    Attributes:
        id: the command's id.
        command: the command's name.
        subscription: id of the subscription that sent the command; empty = none.
        at_ms: the instant at which the command took effect, ms since the epoch.
        refusal: what is wrong and what to do; None = the command was carried out.
        counts: figures by name; None = the figure does not exist now.
        facts: all other fields of the answer, by their names on the wire.
    """

    id: str
    command: str
    subscription: str
    at_ms: int
    refusal: Refusal | None = None
    counts: tuple[tuple[str, int | None], ...] = ()
    facts: tuple[tuple[str, object], ...] = ()

    @property
    def error(self) -> str:
        """The refusal's text; empty = none."""
        return "" if self.refusal is None else self.refusal.text

    @property
    def code(self) -> str:
        """The refusal's code; empty = none."""
        return "" if self.refusal is None else self.refusal.code
