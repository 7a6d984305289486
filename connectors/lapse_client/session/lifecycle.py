"""The lifecycle of a client object, from its start to its close. All client objects use this class.

::

    new ──start──▶ starting ──▶ running ──stop──▶ stopping ──close──▶ closed
     ▲                │            │                  │
     └─ start failed ─┘            └──── failed ◀─────┘      close leads to closed from anywhere
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum

from lapse_client.error import Closed, OtherProcess


class Phase(StrEnum):
    """The phases of a client object."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    """The object hands out no more messages. Messages that it handed out can still be settled."""
    CLOSED = "closed"
    FAILED = "failed"
    """The object cannot go on; `Lifecycle.error` says why."""


_OPEN = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})


class Lifecycle:
    """The phase of one object. Every method may be called from any thread.

    Args:
        what: description for error messages, such as `the subscriber of orders`.

    Attributes:
        phase: the current phase.
        error: the error that ended the object or its start; None if there was none.
        is_forked: whether the object was opened by the parent of this process, before a fork.
        gate: lock held while the phase changes, and while a command is sent that must not follow `unsubscribe`.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.phase = Phase.NEW
        self.error: BaseException | None = None
        self.is_forked = False
        self._start_under_way = False
        self._unwanted = False
        self._make_locks()

    def _make_locks(self) -> None:
        self.gate = threading.RLock()
        self._changed = threading.Condition(self.gate)
        self._one_start = threading.Lock()

    def forked(self) -> None:
        """Close the object in a child process, where nothing works for it. The parent's object stays as it is."""
        self._make_locks()
        if self.phase not in (Phase.NEW, Phase.CLOSED):
            self.phase, self.error, self.is_forked = Phase.CLOSED, OtherProcess(self.what), True
            self._start_under_way = False

    @property
    def is_open(self) -> bool:
        """Whether commands may still be sent for the object."""
        return self.phase in _OPEN

    def start(self, connect: Callable[[], None], undo: Callable[[], None]) -> None:
        """Start the object. Do nothing if it runs already. After a failed start it may be started again.

        Args:
            connect: makes the connection, and waits with `await_ready`.
            undo: undoes a start that failed, or that `stop` or `close` ended.

        Raises:
            Closed: the object was stopped or closed before or during the start.
            BaseException: the error that `connect` raised, or that ended the object before.
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
                with self.gate:  # no command of this start may follow the commands of `undo`
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
        """Wait during a start until `changed` is called and `is_ready()` holds; return whether it holds.

        Raises:
            Closed: the object was stopped or closed meanwhile.
            BaseException: the error that ended the object meanwhile.
        """
        with self.gate:
            self._changed.wait_for(lambda: is_ready() or not self.is_open, timeout_s)
            self.check()
            return is_ready()

    def changed(self) -> None:
        """Have `await_ready` check its condition again."""
        with self.gate:
            self._changed.notify_all()

    def check(self) -> None:
        """Raise an error unless the object is open.

        Raises:
            Closed: the object is closed, or was never started.
            BaseException: the error that ended the object.
        """
        if not self.is_open:
            raise self.end_error()

    def end_error(self) -> BaseException:
        """Return the error for a call that the object cannot carry out: the one that ended it, or `Closed`."""
        return self.error or Closed(self.what)

    def fail(self, error: BaseException) -> bool:
        """Mark the object as failed. Return whether it was open until then."""
        with self.gate:
            if not self.is_open:
                return False
            self.error = error
            self.phase = Phase.FAILED
            self._changed.notify_all()
            return True

    def stop(self) -> None:
        """Stop handing out messages. A start under way, or a later one, raises `Closed`."""
        with self.gate:
            self._unwanted = True
            if self._start_under_way:
                self.fail(Closed(self.what))
            elif self.phase is Phase.NEW:
                self.phase = Phase.CLOSED
            elif self.phase is Phase.RUNNING:
                self.phase = Phase.STOPPING

    def close(self, leave: Callable[[], None]) -> None:
        """Close the object once. Later calls do nothing, and a start under way undoes itself.

        Args:
            leave: unsubscribes and disconnects; called by the closing thread, in the phase `closed`.
        """
        with self.gate:
            self.stop()
            if self._start_under_way or self.phase is Phase.CLOSED:
                return
            self.phase = Phase.CLOSED
        leave()
