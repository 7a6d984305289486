"""Kafka's errors that waiting does not cure, and what to do about them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from lapse_client.error import LapseError

PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""Errors of records that were dropped before they were sent."""

NOT_THERE: Final = frozenset(
    {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION}
)
"""Errors for a missing topic or partition."""

TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
"""Errors for a record that is larger than the client, or its topic, allows."""

FORBIDDEN: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})
"""Errors that say that this user may not write."""

LACKS_RIGHT: Final = FORBIDDEN | frozenset(
    {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
)
"""Errors that say that this user lacks a right, so that retrying does not help."""

FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
"""Errors of a producer whose transactional id another one has taken over."""

BEHIND_REFUSAL: Final = frozenset({KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError._STATE})
"""Errors of the transaction after one in which a record was refused. Abort it, and begin again."""


def flushed(producer: Producer, timeout_s: float) -> int:
    """Wait for the reports of records, and return how many are missing.

    Raises:
        KafkaException: the producer has ended. It is raised in the midst of a report, which makes it a SystemError.
    """
    try:
        return producer.flush(timeout_s)
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


def written_or_refused(producer: Producer, refused: Sequence[object], timeout_s: float) -> None:
    """Wait until a transaction's records are written, or one was refused, after which the others are never sent."""
    give_up = time.monotonic() + timeout_s
    while len(producer) and not refused and time.monotonic() < give_up:
        producer.poll(0.05)


def abort(producer: Producer, timeout_s: float) -> None:
    """Abort a transaction in which a record was refused. Records that were not sent yet are dropped.

    Raises:
        KafkaException: another producer has taken over, or the brokers do not answer.
    """
    producer.purge()
    flushed(producer, timeout_s)  # abort_transaction would wait for reports that it does not serve itself
    producer.abort_transaction(timeout_s)


_UNREADABLE: Final = NOT_THERE | frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION}
)


def unwritable(name: str, error: KafkaError) -> LapseError:
    """Return the error for a topic that this user may not write."""
    return LapseError(f"{name} cannot be written: {error}. Have Write on it granted (docs/operations.md, Rights)")


def unreadable(name: str, error: KafkaError) -> LapseError | None:
    """Return the error for a topic that cannot be read; None if librdkafka reconnects by itself."""
    if not error.fatal() and error.code() not in _UNREADABLE:
        return None
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return LapseError(f"{name} cannot be read: {error.str()}. Have Read on it granted (docs/operations.md, Rights)")
    return LapseError(
        f"{name} cannot be read: {error}. "
        "Check that the entity still exists (`lapse apply`), and that this user may read it "
        "(docs/operations.md, Rights)"
    )


def raise_if_unreadable(name: str, error: KafkaError) -> None:
    """Raise an error of reading a topic without a consumer group.

    librdkafka asks for the coordinator of a group nevertheless, and reports that this user has no right to one.

    Raises:
        LapseError: it is about the topic.
    """
    if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
        raise unreadable(name, error) or LapseError(f"{name} cannot be read: {error.str()}. Read it again")
