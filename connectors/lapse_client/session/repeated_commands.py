"""Commands that are sent again after a take-over, because their answers may be lost (C55).

A settlement is sent again with another id. If the first one is answered all the same, by its own id, its results are
what happened. Only if the second one is answered instead, what it finds settled was settled by the first one: a worker
keeps the answer to a settlement that found messages settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from lapse.protocol.command import Command
from lapse.protocol.repetition import bears_repetition
from lapse_client.session.shard import Shard

_AGAIN: Final = "/again"
"""Added to the id of a settlement that is sent again."""


class RepeatedCommands:
    """Keeps the commands that wait for answers and may be sent again."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Shard, Command]] = {}

    def wait(self, asked: Sequence[tuple[Shard, Command]]) -> list[str]:
        """Keep the repeatable ones of commands that are about to be sent; return their ids."""
        noted = {command.id: (shard, command) for shard, command in asked if bears_repetition(command)}
        self._waiting.update(noted)
        return list(noted)

    def unanswered(self, shard: Shard, waits: Callable[[str], bool]) -> Iterator[Command]:
        """Yield a shard's unanswered commands for sending again.

        Args:
            shard: the shard.
            waits: whether a command, by its id, still waits for its answer.
        """
        for ident, (asked, command) in list(self._waiting.items()):
            if asked is shard and waits(ident):
                yield command

    def end(self, idents: Sequence[str]) -> None:
        """Drop commands."""
        for ident in idents:
            self._waiting.pop(ident, None)


def copy_of(command: Command) -> Command:
    """Return what is sent when a command is sent again."""
    return replace(command, id=command.id + _AGAIN) if command.bookmarks and command.command != "sow" else command
