"""The errors by which a broker says that it has appended nothing."""

from __future__ import annotations

from typing import Final

from aiokafka import errors


class InvalidRecordError(errors.BrokerResponseError):
    """The broker has checked a record and refuses it, for example one without a key for a compacted topic."""

    errno = 87
    message = "INVALID_RECORD"
    description = "the topic does not take such a record, as a compacted one takes none without a key"


errors.kafka_errors.setdefault(InvalidRecordError.errno, InvalidRecordError)  # aiokafka does not know this one

TOO_LARGE: Final = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)

REFUSALS: Final = (
    *TOO_LARGE,
    errors.InvalidTimestampError,
    errors.InvalidTopicError,
    errors.PolicyViolationError,
    errors.TopicAuthorizationFailedError,
    errors.UnknownTopicOrPartitionError,
    InvalidRecordError,
)
"""Answers that a broker gives before it appends anything. The batch is not written, and others may be accepted."""
