"""Reads the request for a definition from a client's command (Q23, C64)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from lapse.config.definition import Kind
from lapse.core.error_code import ErrorCode
from lapse.core.near_name import did_you_mean
from lapse.protocol.command import DEFINITION_COMMANDS, Command
from lapse.protocol.repeated_key import check_keys
from lapse.runtime.topics.creation_rights import forbidden_settings
from lapse.runtime.topics.definition_draft import Refused, Request

_ORDERS: Final[Mapping[str, tuple[Kind, bool]]] = {
    "create_queue": ("queue", True),
    "alter_queue": ("queue", False),
    "create_sow": ("sow", True),
    "alter_sow": ("sow", False),
}


def read_request(command: Command, user: str) -> Request:
    """Return the request in a command.

    Args:
        command: the decoded command.
        user: the user who sent it; empty if no users are configured.

    Raises:
        Refused: it is no command about definitions, or its settings cannot be read.
    """
    order = _ORDERS.get(command.command)
    if order is None:
        known = sorted(DEFINITION_COMMANDS)
        why = f"{command.command!r}: unknown{did_you_mean(command.command, known)}; definitions know {', '.join(known)}"
        raise Refused(ErrorCode.UNKNOWN_COMMAND, why)
    if not command.entity:
        raise Refused(
            ErrorCode.INVALID_ARGUMENT, f"{command.command}: field entity: is required: the name of the entity"
        )
    try:
        settings = orjson.loads(command.settings or "{}")
        check_keys((command.settings or "{}").encode(), settings)
    except orjson.JSONDecodeError as error:
        raise Refused(ErrorCode.INVALID_ARGUMENT, f"{command.command}: field settings: no JSON: {error}") from error
    except ValueError as error:
        raise Refused(ErrorCode.INVALID_ARGUMENT, f"{command.command}: field settings: {error}") from error
    if not isinstance(settings, dict):
        raise Refused(ErrorCode.INVALID_ARGUMENT, f"{command.command}: field settings: expected a JSON object")
    kind, new = order
    if new and command.version is not None:
        raise Refused(
            ErrorCode.INVALID_ARGUMENT,
            f"{command.command}: field version: a new entity has no version yet; leave it out",
        )
    if not new and not settings:
        raise Refused(ErrorCode.INVALID_ARGUMENT, f"{command.command}: field settings: names nothing that changes")
    if why := forbidden_settings(settings):
        raise Refused(ErrorCode.FORBIDDEN, f"{command.entity}: {why}")
    return Request(
        command.entity, kind, settings, user or command.client or "a client", new, command.version, command.id
    )
