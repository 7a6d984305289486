"""The answer to a command, as a shard gives it; the wire format is made of it in `lapse.protocol.answer` (X2)."""

from __future__ import annotations

from typing import NamedTuple

from lapse.core.error_code import Refusal

Counts = dict[str, int | None]
"""Figures by name; None is one that does not exist now."""


class CommandAnswer(NamedTuple):
    """The answer to one command (X2).

    Attributes:
        id: the command's id.
        command: its name.
        subscription: the subscription that spoke.
        at_ms: the instant at which it counted, ms since the epoch.
        refusal: what is wrong and what to do; None = done.
        counts: figures; None is one that does not exist now.
        facts: whatever else the answer says, by the fields of the wire format.
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
