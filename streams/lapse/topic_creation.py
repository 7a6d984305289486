"""Creates topics and partitions, and asks again while Kafka has no broker for them.

After a broker stood still or was away, the controller counts it as fenced until its next heartbeats. If all brokers are
fenced, nothing can be created for some seconds, though they answer all else.

`NewTopic` and `NewPartitions` are imported from here: confluent-kafka documents them in a module that does not export
them, and defines them in a private one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewPartitions as NewPartitions  # noqa: TID251
from confluent_kafka.cimpl import NewTopic as NewTopic  # noqa: TID251

_AGAIN_S: Final = 0.5
_FENCED: Final = "fenced"
"""A word of the controller's text. Kafka has no code of its own for this; too few brokers have the same code."""


class _New(Protocol):
    """What is created: a `NewTopic` or a `NewPartitions`."""

    @property
    def topic(self) -> str: ...


N = TypeVar("N", bound=_New)


class _Request(Protocol[N]):
    """`create_topics` or `create_partitions` of an admin client."""

    def __call__(self, new: list[N], /, *, operation_timeout: float) -> Mapping[str, Future[Any]]: ...


def create(request: _Request[N], new: Sequence[N], patience_s: float) -> dict[str, KafkaException]:
    """Create topics or partitions.

    Args:
        request: `create_topics` or `create_partitions` of an admin client.
        new: the topics or partitions.
        patience_s: how long the brokers may take for an answer, and how long all of them may be fenced, s.

    Returns:
        Kafka's errors, by topic. Empty if all were created.
    """
    give_up = time.monotonic() + patience_s
    wanted, found = list(new), dict[str, KafkaException]()
    while wanted:
        failed = _failed(request(wanted, operation_timeout=patience_s))
        fenced = [one for one in wanted if one.topic in failed and _is_fenced(failed[one.topic])]
        found |= failed
        if not fenced:
            break
        if time.monotonic() >= give_up:
            found |= {one.topic: _explained(failed[one.topic], patience_s) for one in fenced}
            break
        for one in fenced:
            del found[one.topic]
        wanted = fenced
        time.sleep(_AGAIN_S)
    return found


def _failed(asked: Mapping[str, Future[Any]]) -> dict[str, KafkaException]:
    found: dict[str, KafkaException] = {}
    for name, future in asked.items():
        try:
            future.result()
        except KafkaException as error:
            found[name] = error
    return found


def _is_fenced(error: KafkaException) -> bool:
    refusal: KafkaError = error.args[0]
    return refusal.code() == KafkaError.INVALID_REPLICATION_FACTOR and _FENCED in refusal.str()


def _explained(error: KafkaException, patience_s: float) -> KafkaException:
    refusal: KafkaError = error.args[0]
    cause = refusal.str().rstrip(".")
    text = (
        f"for {patience_s:g} s Kafka's controller has had no broker that may take partitions ({cause}). See in the "
        "brokers' logs why they do not reach it, and try again"
    )
    return KafkaException(KafkaError(refusal.code(), text))
