"""Finds out why no broker answers, from librdkafka's reports of its attempts.

librdkafka reports causes in two ways: as errors, and as lines for a log. A listener that requires TLS closes a
connection without it. This is only reported by a line.
"""

from __future__ import annotations

import re
import socket
import threading
from typing import Any, Final

from confluent_kafka import KafkaError

from lapse.protocol import broker_address

_REFUSED: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
"""Causes that stay as they are: a wrong password or user, a broker's certificate that is not trusted."""

_CERTIFICATE_REFUSED: Final = re.compile(
    r"\balert (?:bad certificate|unsupported certificate|certificate (?:required|revoked|expired|unknown)|unknown ca)\b"
)
"""A broker's refusal of a client's certificate. With TLS 1.3 it follows the handshake, as an error of another code."""

_NO_CAUSES: Final = frozenset({KafkaError._ALL_BROKERS_DOWN})
"""Errors without a cause: librdkafka has no broker left to try."""

_NOBODY: Final = ("Connection refused", "Failed to resolve")
"""Causes that rarely go away by themselves: a wrong port, and a wrong name."""

_PROBE_S: Final = 0.2
"""How long to wait for a connection, s, only to see whether anybody listens."""

_CLOSED: Final = "Disconnected"
_NO_KAFKA: Final = "Invalid response size"
"""The answer seems far too large, because it is text, for example a web server's."""

_OWN_WORDS: Final = re.compile(r"\A\S+/(?:bootstrap|-?\d+): | \(after \d+ms in state (?:[^()]|\(s\))*\)|ipv[46]#")
"""What librdkafka adds for its authors: the connection, its state, and the family of an address."""


class Silence:
    """The reports about a cluster that does not answer. Every method may be called from any thread.

    Args:
        log: gets librdkafka's lines as well, as `logging.Logger.log`; None = nobody does.
    """

    def __init__(self, log: Any = None) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._error: KafkaError | None = None
        self._refusal: KafkaError | None = None
        self._line = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings with which librdkafka reports its errors and log lines here."""
        return {"error_cb": self._note, "logger": self}

    @property
    def refusal(self) -> str:
        """The error with which a broker refused this client, since the last `forget`; empty = none did."""
        return _plain(self._refusal.str()) if self._refusal is not None else ""

    def forget(self) -> None:
        """Forget refusals: only those of the next try count."""
        self._refusal = None

    def why(self, waited_s: float) -> str:
        """Return the last reported cause.

        Args:
            waited_s: how long an answer was waited for, seconds.
        """
        with self._lock:
            error, line = self._error, self._line
        if _NO_KAFKA in (line if error is None else error.str()):
            return "what answers there is no Kafka, but another program"
        if error is not None:
            return _plain(error.str())
        if _CLOSED in line:
            return (
                "connections are closed before there is an answer, as by a listener that wants TLS or SASL, or by "
                "another program that has this port"
            )
        return (
            f"there was no answer in {waited_s:g} s, as from an address behind a firewall, or from another program "
            "that has this port"
        )

    def is_nobody_there(self, servers: str) -> bool:
        """Return whether nobody listens at any address, so that a person's command need not wait longer.

        Args:
            servers: the addresses, `host:port[,host:port]`.
        """
        with self._lock:
            heard = "" if self._error is None else self._error.str()
        places = broker_address.places(servers)
        if places is None or not any(one in heard for one in _NOBODY):
            return False
        return not any(_listens(*one) for one in places)

    def log(self, level: int, text: str, *arguments: object) -> None:
        """Take a line of librdkafka's, as a `logging.Logger` does."""
        if arguments and arguments[0] == "FAIL":
            with self._lock:
                self._line = str(arguments[-1])
        if self._log is not None:
            self._log.log(level, text, *arguments)

    def _note(self, error: KafkaError) -> None:
        with self._lock:
            if error.code() not in _NO_CAUSES:
                self._error = error
            if error.code() in _REFUSED or _CERTIFICATE_REFUSED.search(error.str()):
                self._refusal = error


def _listens(host: str, port: int) -> bool:
    """Return whether a connection to any address of a name is not refused at once."""
    try:
        socket.create_connection((host, port), _PROBE_S, all_errors=True).close()
    except (socket.gaierror, UnicodeError):  # the second is of names that DNS does not allow, such as `a..b`
        return False
    except OSError:
        return True
    except ExceptionGroup as errors:  # one of each address: slow ones, and those that only a network elsewhere knows
        refused = errors.subgroup(ConnectionRefusedError) is not None
        return errors.subgroup(TimeoutError) is not None or not refused
    return True


def _plain(text: str) -> str:
    """Return a cause without the details for librdkafka's authors."""
    return _OWN_WORDS.sub("", text)
