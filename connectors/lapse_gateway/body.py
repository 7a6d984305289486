"""The body of a request, read with limits of time and size, and decoded."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from lapse.core.error_code import ErrorCode
from lapse.core.near_name import did_you_mean
from lapse_gateway.exact_number import ExactNumber, loaded
from lapse_gateway.fault import Fault

_MOST_FAULTS: Final = 5
_EXPECTED: Final = {
    "extra_forbidden": "unknown field",
    "missing": "is missing",
    "bool_type": "expected true or false",
    "string_type": "expected a text",
    "string_too_short": "expected a text that is not empty",
    "string_too_long": "expected at most {max_length} characters",
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "list_type": "expected an array",
    "dict_type": "expected an object",
    "model_type": "expected an object",
    "literal_error": "expected {expected}",
    "greater_than_equal": "expected {ge} or more",
    "less_than_equal": "expected {le} or less",
    "too_short": "expected at least {min_length} of them, not {actual_length}",
    "too_long": "expected at most {max_length} of them, not {actual_length}",
}
"""By pydantic's name of a fault: what is said of it."""

_SHOWN: Final = frozenset(
    {
        "bool_type",
        "string_type",
        "int_type",
        "float_type",
        "list_type",
        "dict_type",
        "model_type",
        "literal_error",
        "greater_than_equal",
        "less_than_equal",
    }
)
"""The faults for which the value itself is shown."""

_SHOWN_CHARACTERS: Final = 40

CLOSE: Final = {"Connection": "close"}
"""A header that closes the connection, because an unread rest of a body would be taken for the next request."""

Model = TypeVar("Model", bound=BaseModel)


async def read(request: Request, most: int, timeout_s: float) -> bytes:
    """Read the body of a request.

    Args:
        request: the request.
        most: greatest size of the body, in bytes.
        timeout_s: how long the body may take to arrive, in seconds.

    Raises:
        Fault: the body is compressed, too large, too slow or cut short.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise Fault("unsupported_encoding", f"Content-Encoding {encoding[:40]!r}: send the body uncompressed", CLOSE)
    stated = request.headers.get("content-length", "")
    if stated.isascii() and stated.isdigit() and int(stated) > most:
        raise Fault("too_large", f"the body has {int(stated):,} bytes; the gateway takes {most:,} at most", CLOSE)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Fault(
                        "too_large", f"the body is longer than the {most:,} bytes that the gateway takes", CLOSE
                    )
                parts.append(part)
    except TimeoutError as error:
        raise Fault("too_slow", f"the body did not arrive within {timeout_s:g} s", CLOSE) from error
    except ClientDisconnect as error:
        raise Fault(ErrorCode.MALFORMED, "the body ended before its length was reached", CLOSE) from error
    return b"".join(parts)


def decode(body: bytes, model: type[Model]) -> Model:
    """Decode a JSON object into a model.

    Raises:
        Fault: the body is not a JSON object, has a key twice, or does not fit the model; the text names the field.
    """
    if not body.strip():
        raise Fault(ErrorCode.MALFORMED, "the body is empty; send a JSON object")
    try:
        found = loaded(body)
    except orjson.JSONDecodeError as error:
        raise Fault(ErrorCode.MALFORMED, f"the body is no JSON in UTF-8: {error}") from error
    except ValueError as error:
        raise Fault(ErrorCode.MALFORMED, f"the body: {error}") from error
    if not isinstance(found, dict):
        raise Fault(ErrorCode.MALFORMED, f"expected a JSON object, found {_kind(found)}")
    try:
        return model.model_validate(found, strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        message = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'body'}: {_sentence(fault)}{_field_hint(fault, model)}"
            for fault in faults[:_MOST_FAULTS]
        )
        more = f"; and {len(faults) - _MOST_FAULTS} more faults" if len(faults) > _MOST_FAULTS else ""
        raise Fault(ErrorCode.MALFORMED, message + more) from error


def quote_start(value: object) -> str:
    """Return how JSON writes a wrong value, as far as it is short; of an array or object only that it is one."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = value.text if isinstance(value, ExactNumber) else value if isinstance(value, str) else repr(value)
    short = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    return repr(short) if isinstance(value, str) else short


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return "an array" if isinstance(value, list) else "a text" if isinstance(value, str) else "a number"


def _field_hint(fault: ErrorDetails, model: type[BaseModel]) -> str:
    """Return a hint with a field similar to an unknown one; empty for another fault."""
    if fault["type"] != "extra_forbidden":
        return ""
    schema = model.model_json_schema()
    tables = (schema, *schema.get("$defs", {}).values())
    return did_you_mean(str(fault["loc"][-1]), [name for table in tables for name in table.get("properties", {})])


def _sentence(fault: ErrorDetails) -> str:
    """Return what is wrong in this project's words."""
    if (expected := _EXPECTED.get(fault["type"])) is not None:
        but = f", not {quote_start(fault['input'])}" if fault["type"] in _SHOWN else ""
        return expected.format(**fault.get("ctx", {})) + but
    text = fault["msg"].removeprefix("Value error, ")
    return text[:1].lower() + text[1:]
