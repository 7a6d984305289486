"""The meaning of an answer's code for a session."""

from __future__ import annotations

from lapse.core.error_code import ErrorCode
from lapse.protocol.answer import Answer


def is_deletion(answer: Answer) -> bool:
    """Return whether an answer says that the entity was deleted, so that the shard sends nothing more."""
    return answer.code == ErrorCode.DELETED


def is_unknown_subscription(answer: Answer) -> bool:
    """Return whether an answer says that the shard does not know the subscription."""
    return answer.code == ErrorCode.UNKNOWN_SUBSCRIPTION


def is_shut_out(answer: Answer) -> bool:
    """Return whether an answer says that the user may no longer have the subscription, so that it has ended there."""
    return answer.command == "heartbeat" and answer.code in (ErrorCode.FORBIDDEN, ErrorCode.UNAUTHENTICATED)
