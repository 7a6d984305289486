"""The cluster's metadata of brokers and topics, asked over one admin client."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists none of its names in __all__
    AclOperation,
    AdminClient,
    ClusterMetadata,
)

from lapse.protocol.topic import TOPIC_NAME
from lapse.silence import Silence
from lapse_client import fork
from lapse_client.error import ConnectionFailed
from lapse_client.kafka.fault import NOT_THERE

METADATA_TIMEOUT_S: Final = 15.0
"""How long to wait for an answer after an earlier one, in seconds: the brokers may be restarting."""

FIRST_ANSWER_S: Final = 4.0
"""How long to wait for the first answer, in seconds, so that a wrong address is reported within 5 s (X7)."""

_LOOK_S: Final = 1.0
"""How long the first try takes at most, in seconds. Then we check whether the brokers refuse this client.

Each further try may take twice as long. A cluster with thousands of topics may need seconds for an answer, and each try
starts again.
"""

_LEAST_S: Final = 0.05

_NOT_LISTED: Final = NOT_THERE | {KafkaError.TOPIC_AUTHORIZATION_FAILED}
"""Errors for topics that a list of all topics leaves out."""


class Metadata:
    """A source of metadata. Every method may be called from any thread.

    A broker that stood still may say that there are no brokers, until its controller knows it again. librdkafka then
    drops all of them, and connects to none ever again (its issue 5301). So where an answer does not come, every second
    try is over a new admin client. The old one may know brokers that are not listed: whichever answers is kept.

    Args:
        servers: the brokers, for the errors' text.
        settings: how librdkafka reaches them.
        opened: opens a Kafka admin client with librdkafka's settings.
        log: receives librdkafka's log lines.
    """

    def __init__(
        self, servers: str, settings: Mapping[str, Any], opened: Callable[[dict[str, Any]], AdminClient], log: Any
    ) -> None:
        self._servers = servers
        self._silence = Silence(log)
        self._opened = functools.partial(opened, {**settings, **self._silence.settings})
        self._admin = self._opened()
        self._is_inherited = False
        self._answered = False
        fork.note(self)

    def forked(self) -> None:
        """Have a child process open its own admin client when it asks."""
        fork.keep(self._admin)
        self._is_inherited = True

    def _own_admin(self) -> AdminClient:
        if self._is_inherited:
            self._admin, self._is_inherited = self._opened(), False
        return self._admin

    def ask(self, timeout_s: float | None = None) -> ClusterMetadata:
        """Ask for all brokers and topics, and notice at once if the brokers refuse this client.

        Args:
            timeout_s: how long a person waits, in seconds, or less where nobody listens at any address, and no broker
                has answered before; None = wait for a program: `FIRST_ANSWER_S`, then `METADATA_TIMEOUT_S`.

        Raises:
            ConnectionFailed: no broker answered in time, or the brokers refuse this client.
        """
        hurried = timeout_s is not None and not self._answered  # after an answer, brokers are known that are not listed
        if timeout_s is None:
            timeout_s = METADATA_TIMEOUT_S if self._answered else FIRST_ANSWER_S
        began = time.monotonic()
        left_s, try_s = timeout_s, _LOOK_S
        admin, other = self._own_admin(), None
        while True:
            self._silence.forget()
            try:
                found = admin.list_topics(timeout=max(_LEAST_S, min(try_s, left_s)))
            except KafkaException as error:
                admin.poll(0)  # serves librdkafka's error callbacks
                if refusal := self._silence.refusal:
                    raise ConnectionFailed(self._servers, refusal, refused=True) from error
                left_s, try_s = timeout_s - (time.monotonic() - began), 2 * try_s
                if left_s <= 0 or (hurried and self._silence.is_nobody_there(self._servers)):
                    if self._answered:
                        self._admin = other or self._opened()
                    raise ConnectionFailed(self._servers, self._silence.why(timeout_s)) from error
                if self._answered:  # see the class
                    admin, other = other or self._opened(), admin
            else:
                self._admin, self._answered = admin, True
                return found

    def hidden(self, topics: Iterable[str]) -> list[str]:
        """Return those of some topics that the brokers hide from this user."""
        codes = self._codes(topics)
        return [name for name, code in codes.items() if code == KafkaError.TOPIC_AUTHORIZATION_FAILED]

    def existing(self, topics: Iterable[str]) -> list[str]:
        """Return those of some topics that exist, as far as this user may see them.

        A list of all topics says the same, but takes the brokers long where there are thousands, and many may ask.

        Raises:
            ConnectionFailed: no broker answered in time, or the brokers refuse this client.
        """
        codes = self._codes(topics)
        if all(code is None or code in _NOT_LISTED for code in codes.values()):
            return [name for name, code in codes.items() if code is None]
        return [*codes.keys() & self.ask().topics.keys()]

    def are_removed(self, topics: Iterable[str]) -> bool:
        """Return whether the brokers say of each of some topics that it does not exist. Hidden ones may exist."""
        return all(code in NOT_THERE for code in self._codes(topics).values())

    def _codes(self, topics: Iterable[str]) -> dict[str, int | None]:
        """Return with which code of an error brokers answer a question about each topic; None if they describe it."""
        # No topic has another name, so none can be hidden. If one is not UTF-8, librdkafka aborts the process.
        names = [*filter(TOPIC_NAME.match, topics)]
        if not names:
            return {}
        codes: dict[str, int | None] = dict.fromkeys(names)
        for name, future in self._own_admin().describe_topics(TopicCollection(names), request_timeout=_LOOK_S).items():
            try:
                future.result(METADATA_TIMEOUT_S)
            except KafkaException as error:
                codes[name] = error.args[0].code()
        return codes

    def absent(self, events: str, journal: str, app_id: str, known: Collection[str] | None) -> list[str]:
        """Return which of the two topics are missing, without which no worker serves an entity (C52).

        Only those count of which the brokers say so, since they hide topics from users. If none answers at once, no
        topic is missing.

        Args:
            events: name of the topic of events.
            journal: name of the changelog.
            app_id: the application id in that name; empty if it is unknown. It may be that of another deployment.
            known: the topics of the cluster, if the caller has them already.
        """
        try:
            topics = self.ask(_LOOK_S).topics if known is None else known
        except ConnectionFailed:
            return []
        missing = [] if events in topics else [events]
        if app_id and not any(name.endswith(journal[len(app_id) :]) for name in topics):
            missing.append(journal)
        codes = self._codes(missing)
        return [name for name in missing if codes.get(name) in NOT_THERE]

    def forbidden(self, topics: Iterable[str], operation: AclOperation) -> list[str]:
        """Return those of some existing topics with which this user may not do something, such as to read them."""
        names = [*topics]
        if not names:
            return []
        asked = self._own_admin().describe_topics(
            TopicCollection(names), include_authorized_operations=True, request_timeout=METADATA_TIMEOUT_S
        )
        found: list[str] = []
        for name, future in asked.items():
            try:
                permitted = future.result(METADATA_TIMEOUT_S).authorized_operations
            except KafkaException:  # it is gone, or hidden: whoever uses it is told
                continue
            if permitted and operation not in permitted:
                found.append(name)
        return found
