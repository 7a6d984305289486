"""Operations of the console: pages and forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from lapse.core.error_code import ErrorCode
from lapse_gateway.clients import check_kind
from lapse_gateway.console.watch import PATIENCE_S
from lapse_gateway.fault import Fault
from lapse_gateway.operation import Call, Operation
from lapse_gateway.parameter import Parameter, read_all

PAGE: Final = "text/html"
_MOST_FIELDS: Final = 20


def page(path: str, summary: str, handler: Any, *parameters: Parameter, part: bool = False) -> Operation:
    """Return an operation that shows a page or a part of one."""
    return Operation(
        method="GET", path=path, summary=summary, handler=handler, parameters=parameters, content=PAGE, part=part
    )


def action(path: str, summary: str, handler: Any) -> Operation:
    """Return an operation that carries out a form. Its handler reads the form with `sent`."""
    return Operation(
        method="POST",
        path=path,
        summary=summary,
        handler=handler,
        raw_body=True,
        content=PAGE,
        part=True,
        changes=True,
    )


async def check_entity(call: Call, name: str, *, sow: bool) -> None:
    """Check, as `check_kind` does, that a page is about an entity. A recent list of the topics is good enough.

    Kafka takes a while to list thousands of topics. The parts of the page ask for their entity, and say if it is gone.
    """
    recent = await call.gateway.entities.look(PATIENCE_S, recent=True)
    await check_kind(call.caller, name, sow=sow, recent=recent)


def sent(call: Call, fields: tuple[Parameter, ...]) -> Mapping[str, Any]:
    """Parse the fields of a submitted form.

    Raises:
        Fault: the body is not a form, or a field has a wrong value.
    """
    try:
        text = call.body.decode("ascii")
        given = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise Fault(ErrorCode.MALFORMED, "the form is no percent-encoded UTF-8") from error
    return read_all(fields, given)
