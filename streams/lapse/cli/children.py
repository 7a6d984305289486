"""The child processes of a command, which end together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lapse.cli.child import Child
from lapse.cli.ending import interrupted_afterwards

_AHEAD_S: Final = 1.0
"""How long a child may take to end before the one that it may need is told to end, in seconds."""


class Children:
    """Child processes of one command, each of which may need those that were added after it.

    Args:
        environment: the environment variables of all, in addition to those of this process.
        show: called with a child's name and each line that it prints.
    """

    def __init__(self, environment: Mapping[str, str], show: Callable[[str, str], None]) -> None:
        self._environment = environment
        self._show = show
        self._all: list[Child] = []

    def start(self, name: str, arguments: Sequence[str], show: Callable[[str, str], None] | None = None) -> Child:
        """Start a `lapse` command.

        A Ctrl-C meanwhile comes when the child is known. Otherwise `stop` and `kill` would leave it running.

        Args:
            name: name to show in front of its lines.
            arguments: arguments of the command, without `lapse`.
            show: called with the name and each line, instead of that of all.
        """
        self._all = [one for one in self._all if one.code is None]
        with interrupted_afterwards():
            child = Child(name, arguments, self._environment, show or self._show)
            self._all.append(child)
        return child

    def stop(self, timeout_s: float) -> None:
        """End all of them, in order where they end at once, and kill what still runs after `timeout_s` seconds."""
        give_up = time.monotonic() + timeout_s
        for child in self._all:
            child.terminate()
            child.ended_within(min(_AHEAD_S, timeout_s))
        for child in self._all:
            child.stop(max(0.0, give_up - time.monotonic()))

    def kill(self) -> None:
        """Kill all of them."""
        for child in self._all:
            child.kill()
