"""One broker for all processes of a parallel run.

A broker of its own would cost each process 20 s of CPU in a whole run: to start, to compile the same code again, and to
wait. The process that distributes the tests starts the broker when one asks for it, because it outlives all others.
"""

from __future__ import annotations

import contextlib
import tempfile
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Thread
from typing import Final

from lapse.embedded import EmbeddedError, EmbeddedKafka

HEAP_MB: Final = 1536
"""Largest heap of the broker. Six processes need 0.5 GiB at a time."""


class BrokerOfRun:
    """Starts the broker at the first request, and answers each request with its address."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="broker-")
        self._listener = Listener(str(Path(self._directory.name, "socket")), "AF_UNIX", backlog=64)
        self._kafka = EmbeddedKafka(heap_mb=HEAP_MB)
        self._refusal: Exception | None = None
        Thread(target=self._serve, name="broker of the run", daemon=True).start()

    @property
    def address(self) -> str:
        """Where processes of the run ask for the broker."""
        return str(self._listener.address)

    def close(self) -> None:
        """Stop the broker, if it runs. Take no more requests."""
        self._listener.close()
        self._kafka.close()
        self._directory.cleanup()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                with self._listener.accept() as asking:
                    self._answer(asking)

    def _answer(self, asking: Connection[object, object]) -> None:
        """Send the address, or why there is no broker."""
        if self._refusal is None and not self._kafka.running:
            try:
                self._kafka.start()
            except (EmbeddedError, OSError) as error:  # whoever asks shall raise it
                self._refusal = error
        with contextlib.suppress(OSError):  # whoever asked is gone
            asking.send(self._refusal or self._kafka.bootstrap_servers)


def servers(address: str) -> str:
    """Return the bootstrap servers of the run's broker, which starts now unless it runs.

    Raises:
        EmbeddedError: It cannot be started.
        OSError: It cannot be started.
    """
    with Client(address, "AF_UNIX") as asked:
        answer = asked.recv()
    if isinstance(answer, Exception):
        raise answer
    return str(answer)
