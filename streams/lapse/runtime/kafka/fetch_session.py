"""Fetch sessions (KIP-227): a fetch names only what has changed since the last one, and so does its answer.

aiokafka names every partition in every fetch, and the broker answers for each of them. For a thousand idle queues this
took a tenth of a core.
"""

from __future__ import annotations

from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.protocol.fetch import FetchRequest, FetchRequestStruct

_BEGINNING: Final = 0
"""The epoch of a request that names all partitions, and begins a session."""

_LAST_EPOCH: Final = (1 << 31) - 1
_SINCE_VERSION: Final = 7
_LEADER_EPOCH_SINCE_VERSION: Final = 9
_RACK_SINCE_VERSION: Final = 11
_NOT_FOUND: Final = 70
"""Kafka's code for a session that the broker no longer knows."""


class FetchSession:
    """The session of a consumer with one broker, with the positions that both know.

    If a request gets no answer, the broker may have processed it or not. So the next request begins a new session, and
    closes the old one.
    """

    def __init__(self) -> None:
        self._id = 0
        self._epoch = _BEGINNING
        self._known: dict[TopicPartition, int] = {}
        self._asked: SessionRequest | None = None

    def request(self, wanted: dict[TopicPartition, int], **limits: int) -> SessionRequest:
        """Return the next fetch.

        Args:
            wanted: the next offset of each partition to fetch. The caller must not change it any more.
            limits: the limits of `FetchRequest`.
        """
        if self._asked is not None:
            self._epoch = _BEGINNING
        known = {} if self._epoch == _BEGINNING else self._known
        changed = {tp: offset for tp, offset in wanted.items() if known.get(tp) != offset}
        forgotten = list(known.keys() - wanted.keys())
        self._known = wanted
        self._asked = SessionRequest(self, self._id, self._epoch, wanted, changed, forgotten, **limits)
        return self._asked

    def stands_at(self, wanted: dict[TopicPartition, int]) -> bool:
        """Return whether the broker knows these positions already, so that a request would name none."""
        return self._asked is None and self._epoch != _BEGINNING and self._known == wanted

    def answered(self, request: SessionRequest, response: Any) -> None:
        """Note the session of an answer. The answer to an abandoned request is ignored."""
        if request is not self._asked:
            return
        self._asked = None
        if response.API_VERSION < _SINCE_VERSION:
            return  # the broker has no sessions: each request names all partitions
        if response.error_code:
            self._epoch = _BEGINNING
            if response.error_code == _NOT_FOUND:
                self._id = 0
        elif not response.session_id:  # the broker has too many sessions
            self._id, self._epoch = 0, _BEGINNING
        else:
            self._id = response.session_id
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1


class SessionRequest(FetchRequest):
    """One fetch of a session; made by `FetchSession.request`.

    Args:
        session: is notified of the answer.
        session_id: the broker's id of the session; 0 for a new one.
        epoch: the number of earlier requests of the session.
        wanted: the next offset of every partition that the answer may contain.
        changed: those of them that differ from what the broker knows.
        forgotten: partitions that are no longer fetched.
        max_wait_time: how long the broker may wait for records, ms.
        min_bytes: the least size of an answer without waiting, bytes.
        max_bytes: the greatest size of an answer, bytes.
        isolation_level: whether to read committed records only, as `FetchRequest` has it.
        max_partition_bytes: the greatest size of an answer for each partition, bytes.
    """

    def __init__(
        self,
        session: FetchSession,
        session_id: int,
        epoch: int,
        wanted: dict[TopicPartition, int],
        changed: dict[TopicPartition, int],
        forgotten: list[TopicPartition],
        *,
        max_wait_time: int,
        min_bytes: int,
        max_bytes: int,
        isolation_level: int,
        max_partition_bytes: int,
    ) -> None:
        named: dict[str, list[tuple[int, int, int]]] = {}
        for (topic, partition), offset in changed.items():
            named.setdefault(topic, []).append((partition, offset, max_partition_bytes))
        super().__init__(max_wait_time, min_bytes, max_bytes, isolation_level, list(named.items()))
        self.session_id = session_id
        self.epoch = epoch
        self._session = session
        self._wanted = wanted
        self._forgotten = forgotten
        self._most = max_partition_bytes

    def build(self, request_struct_class: type[FetchRequestStruct]) -> FetchRequestStruct:
        """Return the request as it is sent."""
        version = request_struct_class.API_VERSION
        if version < _SINCE_VERSION:
            built = super().build(request_struct_class)
        else:
            before, behind = ((-1,) if version >= _LEADER_EPOCH_SINCE_VERSION else ()), -1
            topics = [
                (topic, [(partition, *before, offset, behind, most) for partition, offset, most in partitions])
                for topic, partitions in self._topics
            ]
            forgotten: dict[str, list[int]] = {}
            for topic, partition in self._forgotten:
                forgotten.setdefault(topic, []).append(partition)
            limits = (-1, self._max_wait_ms, self._min_bytes, self._max_bytes, self._isolation_level)
            rack = ("",) if version >= _RACK_SINCE_VERSION else ()
            session = (self.session_id, self.epoch)
            built = request_struct_class(*limits, *session, topics, list(forgotten.items()), *rack)
        built.__dict__["RESPONSE_TYPE"] = SessionAnswer(self, request_struct_class.RESPONSE_TYPE)
        return built

    def answered(self, response: Any) -> None:
        """Notify the session. From now on `topics` are the partitions of the answer."""
        self._session.answered(self, response)
        self._topics = [
            (
                topic,
                [(one[0], self._wanted.get(TopicPartition(topic, one[0]), -1), self._most) for one in partitions],
            )
            for topic, partitions in response.topics
        ]


class SessionAnswer:
    """Decodes the answer to one request, and notifies that. aiokafka gets the decoder from the request.

    Args:
        request: the request.
        kind: the kind of its answer.
    """

    def __init__(self, request: SessionRequest, kind: Any) -> None:
        self.kind = kind
        self._request = request

    def decode(self, data: Any) -> Any:
        """Decode the answer."""
        response = self.kind.decode(data)
        self.note(response)
        return response

    def note(self, response: Any) -> None:
        """Notify the request of its answer."""
        self._request.answered(response)
