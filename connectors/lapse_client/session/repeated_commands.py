"""Commands that are sent again after a take-over, because their answers may be lost (C55)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lapse.protocol.command import Command
from lapse.protocol.repetition import bears_repetition
from lapse_client.session.shard import Shard


class RepeatedCommands:
    """Keeps the commands that wait for answers and may be sent again."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Shard, Command]] = {}
        self._repeated: set[str] = set()

    def wait(self, asked: Sequence[tuple[Shard, Command]]) -> list[str]:
        """Keep the repeatable ones of commands that are about to be sent; return their ids."""
        noted = {command.id: (shard, command) for shard, command in asked if bears_repetition(command)}
        self._waiting.update(noted)
        return list(noted)

    def unanswered(self, shard: Shard, waits: Callable[[str], bool]) -> Iterator[Command]:
        """Yield a shard's unanswered commands for sending again, and count them as sent again.

        Args:
            shard: the shard.
            waits: whether a command, by its id, still waits for its answer.
        """
        for ident, (asked, command) in list(self._waiting.items()):
            if asked is shard and waits(ident):
                self._repeated.add(ident)
                yield command

    def end(self, idents: Sequence[str]) -> set[str]:
        """Drop commands; return the ids of those that were sent again."""
        for ident in idents:
            self._waiting.pop(ident, None)
        again = self._repeated.intersection(idents)
        self._repeated -= again
        return again
