"""The base of client objects: a context manager that is started once and closed once, from any thread."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Final, Generic, Self, TypeVar

from lapse_client import fork
from lapse_client.argument import check_timeout
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.transport import Transport
from lapse_client.session.lifecycle import Lifecycle, Phase
from lapse_client.session.session import Session

_LEFT_S: Final = 5.0
"""How long an unclosed client waits for the answers to its `unsubscribe`, in seconds."""

T = TypeVar("T")


class Client(ABC, Generic[T]):
    """A client object and its session.

    Args:
        what: description for error messages, such as `the subscriber of orders`.
        connection: connection to the cluster; from the environment by default.
        timeout_s: how long to wait for answers, in seconds.

    Raises:
        TypeError: `connection` is none, such as the address of a broker.
        ValueError: `timeout_s` is no number, negative or infinite.
    """

    _warns: ClassVar[bool] = False
    """Whether shards keep state for it, so that leaving it unclosed deserves a warning."""

    def __init__(self, what: str, connection: Connection | None, timeout_s: float) -> None:
        given: object = connection
        if not (given is None or isinstance(given, Connection)):
            raise TypeError(f"connection = {given!r}: expected a Connection, such as Connection('localhost:9092')")
        check_timeout("timeout_s", timeout_s)
        self._connection = connection or Connection.from_environment()
        self._timeout_s = timeout_s
        self._lifecycle = Lifecycle(what)
        self._session: Session[T] | None = None
        fork.note(self)

    def start(self) -> Self:
        """Connect, and subscribe if this is a subscription. `with` calls this method.

        Raises:
            UnknownEntity: there is no such queue or SOW topic; the text names those that exist.
            CommandFailed: a shard refused, for instance the filter.
            AnswerTimeout: no worker answered.
            ConnectionFailed: no broker answered.
            Closed: the client was closed before or during the start.
        """
        self._lifecycle.start(self._open, self._undo)
        return self

    def close(self) -> None:
        """Unsubscribe and disconnect. May be called twice, from any thread. A start under way raises `Closed`."""
        self._lifecycle.close(lambda: self._leave(self._timeout_s))

    @property
    def session(self) -> Session[T]:
        """The session.

        Raises:
            Closed: the client is closed, or was never started.
            LapseError: the error that ended the session.
        """
        return self._live()

    def forked(self) -> None:
        """Close the object in a child process, and keep its clients of Kafka."""
        self._lifecycle.forked()
        if self.is_forked:
            fork.keep(self)

    @property
    def is_forked(self) -> bool:
        """Whether it was opened by the parent of this process, before a fork, so that it cannot be used here."""
        return self._lifecycle.is_forked

    @property
    def transport(self) -> Transport:
        """The transport of its connection."""
        return self._connection.transport

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self._lifecycle.what}: {self._lifecycle.phase}>"

    def __del__(
        self, warn: Callable[..., None] = warnings.warn, is_ending: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        """Warn of an unclosed subscription, and end it, so that its messages return."""
        lifecycle = getattr(self, "_lifecycle", None)
        if not self._warns or lifecycle is None or lifecycle.phase in (Phase.NEW, Phase.CLOSED):
            return
        warn(f"never closed: {self!r}; use `with`, or call close()", ResourceWarning, source=self, stacklevel=2)
        if is_ending():  # a thread started now may never run, and its start may block forever
            return
        leave = functools.partial(self._abandoned(), _LEFT_S)
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down and starts no more threads
            threading.Thread(target=lifecycle.close, args=(leave,), name="lapse close", daemon=True).start()

    @abstractmethod
    def _open(self) -> None:
        """Make the session of this kind of client, and open it."""

    def _undo(self) -> None:
        """Undo a start that failed."""
        if (session := self._session) is not None:
            self._session = None
            session.undo()

    def _leave(self, timeout_s: float) -> None:
        """End the session."""
        assert self._session is not None
        self._session.leave(timeout_s)

    def _abandoned(self) -> Callable[[float], None]:
        """Return a function that ends the session, and that does not refer to this object."""
        assert self._session is not None
        return self._session.leave

    def _live(self) -> Session[T]:
        """Return the session.

        Raises:
            Closed: the client is closed, or was never started.
            LapseError: the error that ended the session.
        """
        self._lifecycle.check()
        assert self._session is not None
        return self._session
