"""The command of a shard that takes several steps (C60). No other command is handed over before its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lapse.runtime.authorization.command_authorizer import Admitted

UNFINISHED: Final = "unfinished"
WAITING: Final = "waiting"


class LongCommand:
    """Holds a command that is not finished, and what its next part does.

    A crash repeats the command from its beginning, so its place in the commands is not passed before its end.

    Attributes:
        offset: its offset in the commands; None if there is no such command.
    """

    def __init__(self) -> None:
        self.offset: int | None = None
        self._next_part: Callable[[], None] | None = None

    def hold(self, offset: int | None) -> None:
        """Begin a command whose parts are done by others, until `end`.

        Args:
            offset: its offset in the commands; None holds nothing.
        """
        self.offset = offset

    def put_off(self, offset: int, next_part: Callable[[], None]) -> None:
        """Begin a command, or carry it on: its next part waits for the next step.

        Args:
            offset: its offset in the commands.
            next_part: does the next part. It calls `put_off` again if that is not the last one.
        """
        self.offset, self._next_part = offset, next_part

    def noted(self, behind: Sequence[Admitted]) -> dict[str, int]:
        """Return what a replay must know of the command at the end of a step, by name; nothing if there is none (X10).

        Args:
            behind: later commands that were taken in already. They are carried out in the step that ends this one.
        """
        if self.offset is None:
            return {}
        return {UNFINISHED: self.offset} | ({WAITING: behind[-1].offset} if behind else {})

    def end(self) -> None:
        """Forget the command."""
        self.offset, self._next_part = None, None

    def do_next_part(self) -> bool:
        """Do the next part of a command that was put off; return whether it was the last one."""
        next_part = self._next_part
        if next_part is None:
            return False
        self.end()
        next_part()
        return self._next_part is None
