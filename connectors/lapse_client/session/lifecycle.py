"""The lifecycle of a client object, from its start to its close: written once, for every object that has one.

::

    new ──start──▶ starting ──▶ running ──stop──▶ stopping ──close──▶ closed
     ▲                │            │                  │
     └─ start failed ─┘            └──── failed ◀─────┘      close leads to closed from anywhere
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum

from lapse_client.error import Closed


class Phase(StrEnum):
    """Where in its life an object is."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    """No more messages are handed out. Those that were handed out can still be settled."""
    CLOSED = "closed"
    FAILED = "failed"
    """It cannot go on; `Lifecycle.error` says why."""


_OPEN = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})


class Lifecycle:
    """The phase of one object. Every method may be called from any thread.

    Args:
        what: the object, for the texts of errors: `the subscriber of orders`.

    Attributes:
        phase: where it is now.
        error: what ended it, or its start; None while nothing did.
        gate: held while a phase changes, and while something is sent that must not be sent after the end.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.phase = Phase.NEW
        self.error: BaseException | None = None
        self.gate = threading.RLock()
        self._changed = threading.Condition(self.gate)
        self._one_start = threading.Lock()
        self._start_under_way = False
        self._unwanted = False

    @property
    def is_open(self) -> bool:
        """Whether commands may still be sent on its behalf."""
        return self.phase in _OPEN

    def start(self, connect: Callable[[], None], undo: Callable[[], None]) -> None:
        """Start it; does nothing where it runs already. After a start that failed by itself it may be started again.

        Args:
            connect: does the work; ends early where `await_ready` raises.
            undo: leaves nothing of a start that failed, or that `stop` or `close` ended.

        Raises:
            Closed: it was stopped or closed before, or meanwhile.
            BaseException: what `connect` raised, or what ended the object before.
        """
        with self._one_start:
            with self.gate:
                if self.phase in (Phase.RUNNING, Phase.STOPPING):
                    return
                if self.phase is not Phase.NEW:
                    self.check()
                self.phase = Phase.STARTING
                self._start_under_way = True
            try:
                connect()
                with self.gate:
                    self.check()
                    self.phase = Phase.RUNNING
                    self._start_under_way = False
            except BaseException as error:  # Ctrl-C, too
                with self.gate:  # nothing that this start sends follows what `undo` sends
                    self.error = self.error or error
                    self.phase = Phase.FAILED
                try:
                    undo()
                finally:
                    with self.gate:
                        self._start_under_way = False
                        self.error = None
                        self.phase = Phase.CLOSED if self._unwanted else Phase.NEW
                raise

    def await_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait, during a start, until `changed` is called and it is ready; returns whether it is.

        Raises:
            Closed: the object was stopped or closed meanwhile.
            BaseException: what ended it meanwhile.
        """
        with self.gate:
            self._changed.wait_for(lambda: is_ready() or not self.is_open, timeout_s)
            self.check()
            return is_ready()

    def changed(self) -> None:
        """Let `await_ready` look again."""
        with self.gate:
            self._changed.notify_all()

    def check(self) -> None:
        """Do nothing while it is open.

        Raises:
            Closed: it is closed, or was never started.
            BaseException: what ended it.
        """
        if self.is_open:
            return
        raise self.error or Closed(self.what)

    def fail(self, error: BaseException) -> bool:
        """Note that it cannot go on. Returns whether this is what ended it, not something before."""
        with self.gate:
            if not self.is_open:
                return False
            self.error = error
            self.phase = Phase.FAILED
            self._changed.notify_all()
            return True

    def stop(self) -> None:
        """Hand out no more. A start that is under way ends with `Closed`, and one that comes later, too."""
        with self.gate:
            self._unwanted = True
            if self._start_under_way:
                self.fail(Closed(self.what))
            elif self.phase is Phase.NEW:
                self.phase = Phase.CLOSED
            elif self.phase is Phase.RUNNING:
                self.phase = Phase.STOPPING

    def close(self, leave: Callable[[], None]) -> None:
        """End it, once: later calls do nothing, and a start that is under way leaves by itself.

        Args:
            leave: says goodbye and disconnects; called by the thread that closes, in the phase `closed`.
        """
        with self.gate:
            self.stop()
            if self._start_under_way or self.phase is Phase.CLOSED:
                return
            self.phase = Phase.CLOSED
        leave()
