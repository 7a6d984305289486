"""The brokers' metadata of themselves and of all topics, over one connection that is opened when it is first needed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import ClusterMetadata

from lapse.silence import Silence
from lapse_client.error import ConnectionFailed

METADATA_TIMEOUT_S: Final = 15.0
"""How long an answer is waited for where there was one before: the brokers may be starting again."""

FIRST_ANSWER_S: Final = 4.0
"""How long the first one is waited for: a wrong address is reported within 5 s (X7)."""

_LOOK_S: Final = 1.0
"""How long the first try takes at most, s; then we check whether the brokers refuse us: waiting does not help then.

Each further try may take twice as long. A cluster with thousands of topics may need seconds for an answer, and each try
begins anew.
"""

_LEAST_S: Final = 0.05

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What Kafka takes as a topic's name. There is no topic of another one, so there is nothing to be hidden."""


class Metadata:
    """A source of metadata. Every method may be called from any thread.

    Args:
        servers: the brokers, for the errors' text.
        settings: how librdkafka reaches them.
        opened: opens an administrator's connection with librdkafka's settings.
        log: gets librdkafka's lines.
    """

    def __init__(
        self, servers: str, settings: Mapping[str, Any], opened: Callable[[dict[str, Any]], AdminClient], log: Any
    ) -> None:
        self._servers = servers
        self._silence = Silence(log)
        self._admin = opened({**settings, **self._silence.settings})
        self._answered = False

    def ask(self, timeout_s: float | None = None) -> ClusterMetadata:
        """Ask what there is, and notice at once when the brokers refuse us.

        Args:
            timeout_s: how long to wait, seconds; None = for the first answer shortly, later for longer.

        Raises:
            ConnectionFailed: no broker answered in time, or they refuse us.
        """
        if timeout_s is None:
            timeout_s = METADATA_TIMEOUT_S if self._answered else FIRST_ANSWER_S
        began = time.monotonic()
        left_s, try_s = timeout_s, _LOOK_S
        while True:
            self._silence.forget()
            try:
                found = self._admin.list_topics(timeout=max(_LEAST_S, min(try_s, left_s)))
            except KafkaException as error:
                self._admin.poll(0)  # brings what was noted
                if refusal := self._silence.refusal:
                    raise ConnectionFailed(self._servers, refusal, refused=True) from error
                left_s, try_s = timeout_s - (time.monotonic() - began), 2 * try_s
                if left_s <= 0:
                    raise ConnectionFailed(self._servers, self._silence.why(timeout_s)) from error
            else:
                self._answered = True
                return found

    def hidden(self, topics: Iterable[str]) -> list[str]:
        """Those of some topics that exist and that the brokers do not let this user see."""
        found: list[str] = []
        names = [*filter(_NAME.fullmatch, topics)]  # Kafka's client ends the process over one that is no UTF-8
        if not names:
            return found
        for name, future in self._admin.describe_topics(TopicCollection(names), request_timeout=_LOOK_S).items():
            try:
                future.result(METADATA_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    found.append(name)
        return found
