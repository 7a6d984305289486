"""Refusals of requests, with an HTTP status, a code for programs and a text for people (X2)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from lapse.core.error_code import ErrorCode
from lapse_client.error import (
    AlreadySettled,
    AnswerTimeout,
    Closed,
    CommandFailed,
    ConnectionFailed,
    EntityDeleted,
    InvalidPublication,
    LapseError,
    NoRecord,
    PublishFailed,
    RedriveUnfinished,
    UnknownEntity,
)

STATUSES: Final[Mapping[str, HTTPStatus]] = {
    ErrorCode.MALFORMED: HTTPStatus.BAD_REQUEST,
    ErrorCode.UNKNOWN_COMMAND: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    ErrorCode.INVALID_EXPRESSION: HTTPStatus.BAD_REQUEST,
    ErrorCode.UNKNOWN_SUBSCRIPTION: HTTPStatus.CONFLICT,
    ErrorCode.DELETED: HTTPStatus.GONE,
    ErrorCode.IN_USE: HTTPStatus.CONFLICT,
    ErrorCode.DELETE_IN_PROGRESS: HTTPStatus.CONFLICT,
    ErrorCode.SHARD_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.TRANSFER_CONFLICT: HTTPStatus.CONFLICT,
    ErrorCode.TOO_COSTLY: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.STOPPED_WORKER: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    ErrorCode.SIGNATURE_EXPIRED: HTTPStatus.UNAUTHORIZED,
    ErrorCode.SENT_BEFORE: HTTPStatus.CONFLICT,
    ErrorCode.FORBIDDEN: HTTPStatus.FORBIDDEN,
    ErrorCode.UNKNOWN_ENTITY: HTTPStatus.NOT_FOUND,
    ErrorCode.EXISTS: HTTPStatus.CONFLICT,
    ErrorCode.OUTDATED: HTTPStatus.CONFLICT,
    # The gateway's own codes, which no shard uses.
    "unknown_path": HTTPStatus.NOT_FOUND,
    "no_record": HTTPStatus.NOT_FOUND,
    "method_not_allowed": HTTPStatus.METHOD_NOT_ALLOWED,
    "no_figures": HTTPStatus.NOT_FOUND,
    "read_only": HTTPStatus.FORBIDDEN,
    "other_origin": HTTPStatus.FORBIDDEN,
    "other_host": HTTPStatus.MISDIRECTED_REQUEST,
    "not_settled": HTTPStatus.CONFLICT,
    "redrive_unfinished": HTTPStatus.CONFLICT,
    "too_large": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "too_slow": HTTPStatus.REQUEST_TIMEOUT,
    "unsupported_encoding": HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    "too_many_requests": HTTPStatus.TOO_MANY_REQUESTS,
    "too_many_subscriptions": HTTPStatus.SERVICE_UNAVAILABLE,
    "not_published": HTTPStatus.BAD_GATEWAY,
    "no_connection": HTTPStatus.SERVICE_UNAVAILABLE,
    "no_answer": HTTPStatus.GATEWAY_TIMEOUT,
    "stopping": HTTPStatus.SERVICE_UNAVAILABLE,
    "failed": HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""The HTTP status of each code: those of `docs/protocol.md`, and the gateway's own."""

_CLIENT: Final[tuple[tuple[type[Exception], str], ...]] = (
    (UnknownEntity, "unknown_entity"),
    (NoRecord, "no_record"),
    (InvalidPublication, ErrorCode.INVALID_ARGUMENT),
    (PublishFailed, "not_published"),
    (RedriveUnfinished, "redrive_unfinished"),
    (EntityDeleted, ErrorCode.DELETED),
    (AnswerTimeout, "no_answer"),
    (ConnectionFailed, "no_connection"),
    (AlreadySettled, "not_settled"),
    (Closed, "stopping"),
    (ValueError, ErrorCode.INVALID_ARGUMENT),
)
"""The client's exceptions and their codes. The first class that fits counts."""


class Fault(Exception):
    """The refusal of a request.

    Attributes:
        code: code for programs: one of `STATUSES`, or a newer worker's code.
        text: text for people: what is wrong, where, and what to do.
        headers: further headers of the answer.
    """

    def __init__(self, code: str, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.code = str(code)
        self.text = text
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        """The HTTP status; that of `invalid_argument` for an unknown code."""
        return STATUSES.get(self.code, HTTPStatus.BAD_REQUEST).value

    def as_dict(self) -> dict[str, object]:
        """Return the body of the answer."""
        return {"error": {"code": self.code, "text": self.text}}


def fault_of(error: LapseError | ValueError) -> Fault:
    """Convert an exception of the client to a refusal."""
    if isinstance(error, CommandFailed):
        return Fault(error.code or ErrorCode.INVALID_ARGUMENT, str(error))
    for kind, code in _CLIENT:
        if isinstance(error, kind):
            return Fault(code, str(error))
    return Fault("failed", str(error))
