"""Error codes: the closed list of codes with which answers refuse commands (X2)."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class ErrorCode(StrEnum):
    """The code of a refusal. `docs/protocol.md` says for each code what a client should do.

    Clients act on codes. The text beside a code is for people, and may change.
    """

    MALFORMED = "malformed"
    UNKNOWN_COMMAND = "unknown_command"
    INVALID_ARGUMENT = "invalid_argument"
    INVALID_EXPRESSION = "invalid_expression"
    UNKNOWN_SUBSCRIPTION = "unknown_subscription"
    DELETED = "deleted"
    IN_USE = "in_use"
    DELETE_IN_PROGRESS = "delete_in_progress"
    SHARD_UNAVAILABLE = "shard_unavailable"
    TRANSFER_CONFLICT = "transfer_conflict"
    TOO_COSTLY = "too_costly"
    STOPPED_WORKER = "stopped_worker"
    UNAUTHENTICATED = "unauthenticated"
    SIGNATURE_EXPIRED = "signature_expired"
    SENT_BEFORE = "sent_before"
    FORBIDDEN = "forbidden"
    UNKNOWN_ENTITY = "unknown_entity"
    EXISTS = "exists"
    OUTDATED = "outdated"


class Refusal(NamedTuple):
    """The refusal of a command.

    Attributes:
        code: the code, for programs.
        text: what is wrong, where, and what to do, for people.
    """

    code: ErrorCode
    text: str
