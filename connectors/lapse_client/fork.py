"""Forks: a child process has the objects of its parent, and none of the threads that do their work (X3, X7)."""

from __future__ import annotations

import ctypes
import os
from typing import Final, Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """An object that a child process inherits and cannot use as it is."""

    def forked(self) -> None:
        """End in the child process, or make ready for it. No other thread runs there, and locks may be held."""


_known: Final[WeakSet[Forkable]] = WeakSet()


def note(one: Forkable) -> None:
    """Have `forked` called on an object in each child process, as long as the object lives."""
    _known.add(one)


def keep(inherited: object) -> None:
    """Keep an inherited object of librdkafka until the process ends. Its end would wait for threads of the parent."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def _tell_all() -> None:
    for one in list(_known):
        one.forked()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
    os.register_at_fork(after_in_child=_tell_all)
