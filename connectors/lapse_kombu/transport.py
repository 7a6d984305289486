"""The transport: kombu's connection to the brokers of a deployment of lapse."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Final

from kombu.transport import virtual
from kombu.transport.virtual.base import BrokerState

from lapse_client import Connection, ConnectionFailed, EntityDeleted, LapseError, Publisher, UnknownEntity
from lapse_client.admin import DEFAULT_DEPLOYMENT
from lapse_kombu.channel import Channel
from lapse_kombu.transient import Transient

_PORT: Final = 9092
_TIMEOUT_S: Final = 30.0
_CONNECT_S: Final = 5.0
"""How long a broker may take to accept a connection, in seconds, if kombu sets no limit."""

_SLICE_S: Final = 0.02
"""With several consuming channels, how long to wait for one before the next has its turn, in seconds."""

_BELIEVED_S: Final = 60.0
"""For how long a queue counts as there before it is looked for again, in seconds."""

_LOOK_S: Final = 0.02
"""How often an event loop looks for messages at least, in seconds."""


class Transport(virtual.Transport):
    """kombu's transport `lapse://host:port`.

    `transport_options` may have: `bootstrap_servers`, `kafka` (librdkafka's options), `deployment` (the workers'
    `app_id`), `user` and `secret` (of lapse's user), `visibility_timeout` (lease period in seconds) and
    `queue_settings` of new queues, and the waits `get_timeout` and `timeout`, in seconds.

    Args:
        client: kombu's connection.
    """

    Channel = Channel
    default_port = _PORT
    driver_type = "lapse"
    driver_name = "lapse"
    connection_errors = (ConnectionFailed, EntityDeleted, *virtual.Transport.connection_errors)
    channel_errors = (LapseError, *virtual.Transport.channel_errors)
    recoverable_connection_errors = (ConnectionFailed, EntityDeleted)  # so that a deleted queue is declared again
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **more: Any) -> None:
        super().__init__(client, **more)
        self.state = BrokerState()
        self.known: set[str] = set()
        self.undecided: dict[str, dict[str, Any]] = {}
        self.declared: dict[str, dict[str, Any]] = {}
        """The options with which queues were declared, by kombu's names."""
        self._believed_until: dict[str, float] = {}
        self._lapse: Connection | None = None
        self._publisher: Publisher | None = None
        self._transient: Transient | None = None
        self._leave_loop: Callable[[], None] | None = None
        self._lock = threading.Lock()

    @property
    def deployment(self) -> str:
        """`app_id` of the workers that create queues."""
        return str(self._options.get("deployment") or DEFAULT_DEPLOYMENT)

    @property
    def timeout_s(self) -> float:
        """How long Kafka may take to confirm a message, in seconds."""
        return float(self._options.get("timeout") or _TIMEOUT_S)

    @property
    def lapse(self) -> Connection:
        """The connection of lapse's client to the cluster."""
        if self._lapse is None:
            self._lapse = self._connection()
        return self._lapse

    def queues(self) -> list[str]:
        """Return the names of all queues of lapse on the cluster.

        Raises:
            ConnectionFailed: no broker answered.
        """
        return self.lapse.queues()

    def has_queue(self, name: str) -> bool:
        """Return whether lapse has a queue of a name, even if it was created a moment ago.

        Raises:
            ConnectionFailed: no broker answered.
        """
        try:
            self.lapse.shards("queue", name)
        except UnknownEntity:
            return False
        return True

    def knows(self, name: str) -> bool:
        """Return whether a known queue of lapse is still there, as of a minute ago: a temporary one deletes itself."""
        if name in self.known and time.monotonic() >= self._believed_until.get(name, 0.0):
            if self.has_queue(name):
                self._believed_until[name] = time.monotonic() + _BELIEVED_S
            else:
                self.forget(name)
        return name in self.known

    def forget(self, name: str) -> None:
        """Forget a queue of lapse that is gone, and its topic."""
        self.known.discard(name)
        self._believed_until.pop(name, None)
        self.publisher().forget_topics()

    def publisher(self) -> Publisher:
        """Return the publisher that all channels share."""
        with self._lock:
            if self._publisher is None or self._publisher.is_forked:
                self._publisher = Publisher(self.lapse, timeout_s=self.timeout_s)
            return self._publisher

    @property
    def transient(self) -> Transient:
        """The transient queues of this connection."""
        with self._lock:
            if self._transient is None:
                self._transient = Transient(self.lapse, self.deployment, self.publisher, self.timeout_s)
            return self._transient

    def driver_version(self) -> str:
        """Return the version of lapse."""
        return version("lapse")

    def verify_connection(self, connection: Any) -> bool:
        """Return that the connection can be used."""
        return True

    def establish_connection(self) -> Transport:
        """Check that a broker answers.

        Raises:
            ConnectionFailed: no broker answered.
        """
        _reach(self.lapse.bootstrap_servers, float(self.client.connect_timeout or _CONNECT_S))
        self.known.update(self.queues())
        super().establish_connection()
        return self

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Hand out messages at each tick of kombu's event loop, which Celery's workers run.

        Args:
            connection: this transport.
            loop: the event loop.
        """
        self._end_loop()
        loop.on_tick.add(self._look)
        goes_round = loop.call_repeatedly(_LOOK_S, lambda: None)  # so that the loop ticks while nothing else happens

        def leave() -> None:
            loop.on_tick.discard(self._look)
            goes_round.cancel()

        self._leave_loop = leave

    def _look(self) -> None:
        for channel in list(self.channels):
            if channel.may_hand_out:
                channel.drain(0.0)

    def _end_loop(self) -> None:
        leave, self._leave_loop = self._leave_loop, None
        if leave is not None:
            leave()

    def close_connection(self, connection: Any) -> None:
        """Leave the event loop, and close all channels and the publisher."""
        self._end_loop()
        super().close_connection(connection)
        with self._lock:
            publisher, self._publisher = self._publisher, None
            transient, self._transient = self._transient, None
        if transient is not None:
            transient.close()
        if publisher is not None:
            publisher.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Hand out messages, waiting for the first one.

        Args:
            connection: this transport.
            timeout: how long to wait, in seconds; None = until a message comes.

        Raises:
            TimeoutError: no message came.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            consuming = [channel for channel in list(self.channels) if channel.has_consumers]
            channels = [channel for channel in consuming if channel.may_hand_out]
            for channel in channels:
                left_s = 1.0 if deadline is None else max(0.0, deadline - time.monotonic())
                # A full channel may have room in a moment, because other threads settle.
                if channel.drain(left_s if len(consuming) == 1 else min(left_s, _SLICE_S)):
                    return
            if deadline is not None and time.monotonic() >= deadline:
                raise socket.timeout  # kombu's name of it  # noqa: UP041
            if not channels:
                time.sleep(_SLICE_S)  # all channels are full

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URI for logs unchanged: kombu itself masks the password."""
        return uri

    @property
    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = self.client.transport_options
        return options

    def _connection(self) -> Connection:
        client, options = self.client, self._options
        servers = options.get("bootstrap_servers") or f"{client.hostname or 'localhost'}:{client.port or _PORT}"
        found = Connection.from_environment(servers)
        further = dict(options.get("kafka") or {})
        if client.userid:
            further = {"sasl.username": client.userid, "sasl.password": client.password or "", **further}
        user, secret = options.get("user", found.user), options.get("secret", found.secret)
        return replace(found, options={**found.options, **further}, user=user, secret=secret)


def _reach(servers: str, timeout_s: float) -> None:
    """Check that one of the brokers accepts connections, because librdkafka would retry for seconds."""
    failure = OSError("none is named")
    for server in servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        except (OSError, ValueError) as error:
            failure = OSError(f"{server.strip()}: {error}")
        else:
            return
    raise ConnectionFailed(servers, str(failure))
