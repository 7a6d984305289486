"""Publishing over HTTP: one record with its payload as the body, or many in a JSON object (L2 to L5, S3, X6)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from starlette.responses import Response

from lapse.core.error_code import ErrorCode
from lapse.protocol import topic
from lapse_client import Bookmark, Publisher
from lapse_client.error import LapseError, PublishFailed
from lapse_client.publisher.publication_batch import Outcome, Publication
from lapse_gateway import payload
from lapse_gateway.body import quote_start
from lapse_gateway.fault import Fault, fault_of
from lapse_gateway.operation import REFUSAL, TEXT, WHOLE, Call, Operation, answered, listed, obj
from lapse_gateway.parameter import Parameter
from lapse_gateway.payload import Content

MOST_MESSAGES: Final = 10_000
"""The most records in one batch."""

_LATEST_MS: Final = (1 << 63) - 1
_TOO_LARGE: Final = "MSG_SIZE_TOO_LARGE"
_LIFETIMES: Final = frozenset({"ttl_ms", "expires_at_ms", "enqueue_at_ms", "message_id", "delta"})


def _pairs(headers: Any) -> list[tuple[str, Any]]:
    """Convert headers, a JSON object or arrays of two, to pairs.

    Raises:
        ValueError: they are neither, or one of them is no header.
    """
    if not isinstance(headers, dict | list):
        raise ValueError(f"expected an object, or an array of pairs, not {quote_start(headers)}")
    pairs: list[tuple[str, Any]] = []
    for one in headers.items() if isinstance(headers, dict) else headers:
        if not isinstance(one, list | tuple) or len(one) != 2:
            what = f"an array of {len(one)}" if isinstance(one, list) else quote_start(one)
            raise ValueError(f"header {len(pairs)}: expected a pair of name and value, not {what}")
        name, value = one
        if not isinstance(name, str):
            raise ValueError(f"header {len(pairs)}: its name: expected a text, not {quote_start(name)}")
        encoded = isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str)
        if value is not None and not isinstance(value, str) and not encoded:
            what = quote_start(value)
            raise ValueError(f'header {name[:40]}: expected a text, null or {{"base64": "…"}}, not {what}')
        pairs.append((name, value))
    return pairs


class Message(Content):
    """One record of a batch.

    Attributes:
        delete: whether the record has no payload, and deletes the key's record from a SOW topic.
        key: key of the record as text. It decides the partition.
        key_base64: key of the record as bytes in Base64.
        ttl_ms: lifetime from arrival, in ms; 0 = never expires.
        expires_at_ms: deadline, ms since the epoch.
        enqueue_at_ms: the message is invisible before this instant, ms since the epoch.
        message_id: id of the message. A second message with it within the entity's window is dropped.
        delta: whether to merge into the stored record of a SOW topic.
        headers: pairs of name and value; the value is text, null, or {"base64": ...}.
    """

    delete: bool = False
    key: str | None = None
    key_base64: str | None = None
    ttl_ms: int | None = Field(default=None, ge=0, le=_LATEST_MS)
    expires_at_ms: int | None = Field(default=None, ge=0, le=_LATEST_MS)
    enqueue_at_ms: int | None = Field(default=None, ge=0, le=_LATEST_MS)
    message_id: str | None = None
    delta: bool = False
    headers: Annotated[list[tuple[str, str | dict[str, str] | None]], BeforeValidator(_pairs)] = Field(
        default_factory=list
    )

    @model_validator(mode="after")
    def _one_content(self) -> Message:
        stated = len(self.contents) + self.delete
        if stated != 1:
            raise ValueError(f"say exactly one of value, text, base64, delete; {stated} are given")
        if self.key is not None and self.key_base64 is not None:
            raise ValueError("say key or key_base64, not both")
        if self.delete and self.key is None and self.key_base64 is None:
            raise ValueError("delete takes a key, which names the record to delete")
        return self

    def key_bytes(self) -> bytes | None:
        """Return the key.

        Raises:
            Fault: its Base64 is not valid.
        """
        if self.key_base64 is not None:
            return payload.from_base64("key_base64", self.key_base64)
        return None if self.key is None else self.key.encode()

    def options(self) -> dict[str, Any]:
        """Return the options that are set, such as lifetimes."""
        return {name: getattr(self, name) for name in _LIFETIMES & self.model_fields_set}

    def header_pairs(self) -> list[tuple[str, bytes | None]]:
        """Return the headers.

        Raises:
            Fault: the Base64 of a value is not valid.
        """
        pairs: list[tuple[str, bytes | None]] = []
        for name, value in self.headers:
            if isinstance(value, dict):
                pairs.append((name, payload.from_base64(f"header {name}", value["base64"])))
            else:
                pairs.append((name, None if value is None else value.encode()))
        return pairs


class Batch(BaseModel):
    """Records that are published together.

    Attributes:
        messages: the records, in the order of publication.
    """

    model_config = ConfigDict(extra="forbid")

    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)


async def _publish_one(call: Call) -> Response:
    to = await _target(call)
    given = call.parameters
    if given["delete"] and (call.body or given["key"] is None):
        raise Fault(ErrorCode.INVALID_ARGUMENT, "parameter delete: it takes a key and no body")
    raw = call.request.headers.raw
    headers = payload.with_trace([*payload.message_headers_from_http(raw)], payload.trace_of(raw))
    options = {name: given[name] for name in _LIFETIMES}
    value = None if given["delete"] else call.body
    async with call.gateway.clients.publisher(call.caller) as publisher:
        (outcome,) = await _outcomes(publisher, to, [(value, given["key"], headers, options)])
        bookmark = _bookmark(outcome)
    return answered({"bookmark": str(bookmark)}, 201)


async def _publish_many(call: Call) -> Response:
    to = await _target(call)
    batch = call.decoded(Batch)
    trace = payload.trace_of(call.request.headers.raw)
    records: list[Publication] = []
    for number, message in enumerate(batch.messages):
        try:
            headers = payload.with_trace(message.header_pairs(), trace)
            records.append((message.content(), message.key_bytes(), headers, message.options()))
        except Fault as fault:
            raise Fault(fault.code, f"messages.{number}.{fault.text}") from fault
    async with call.gateway.clients.publisher(call.caller) as publisher:
        answers = [_result_as_json(one) for one in await _outcomes(publisher, to, records)]
    failed = sum("error" in one for one in answers)
    return answered(
        {"published": len(answers) - failed, "failed": failed, "results": answers}, 201 if not failed else 207
    )


async def _outcomes(publisher: Publisher, to: str, records: Sequence[Publication]) -> list[Outcome]:
    """Publish records in their order, and wait for all outcomes. The event loop is woken once."""
    submitted = await asyncio.to_thread(publisher.submit_all, to, records)
    return await asyncio.wrap_future(submitted)


def _bookmark(outcome: Outcome) -> Bookmark:
    """Return the bookmark of a published record.

    Raises:
        Fault: Kafka did not accept the record.
        InvalidPublication: the record was refused before it was sent.
    """
    try:
        if isinstance(outcome, LapseError):
            raise outcome
        return outcome
    except PublishFailed as error:
        raise _unpublished(error) from error


def _result_as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the result of one record of a batch for JSON."""
    try:
        return {"bookmark": str(_bookmark(outcome))}
    except Fault as fault:
        return fault.as_dict()
    except LapseError as error:
        return fault_of(error).as_dict()


async def _target(call: Call) -> str:
    to = call.path["to"]
    if not topic.NAME.match(to):
        raise Fault("unknown_entity", f"{to[:40]!r} can name no topic: letters, digits, '.', '_' and '-' only")
    if to.startswith(("__", topic.PREFIX)) or to.endswith("-changelog"):
        raise Fault(ErrorCode.FORBIDDEN, f"{to} is one of the topics that only lapse or Kafka writes; name another")
    call.caller.check_publish(to, call.gateway.users.readers(to))
    return to


def _unpublished(error: PublishFailed) -> Fault:
    if error.kafka_error == _TOO_LARGE:
        return Fault("too_large", f"topic {error.topic} takes no record of this size; send a smaller one")
    return fault_of(error)


_OPTIONS: Final = (
    Parameter(name="key", description="Decides the partition, and is the record's key."),
    Parameter(
        name="ttl_ms", description="Lifetime from arrival, ms; 0 = never expires.", kind="whole", most=_LATEST_MS
    ),
    Parameter(name="expires_at_ms", description="Deadline, ms since the epoch.", kind="whole", most=_LATEST_MS),
    Parameter(
        name="enqueue_at_ms",
        description="Invisible before this instant, ms since the epoch.",
        kind="whole",
        most=_LATEST_MS,
    ),
    Parameter(name="message_id", description="A repeat of it within the entity's window is dropped."),
    Parameter(name="delta", description="Merge into the stored record of a SOW topic.", kind="flag", default=False),
    Parameter(
        name="delete", description="No payload: delete the key's record from a SOW topic.", kind="flag", default=False
    ),
)

OPERATIONS: Final = (
    Operation(
        method="POST",
        path="/v1/publish/{to}",
        summary="Publish a record",
        description=(
            "The body is the payload, byte by byte. `to` is a topic, or a queue: then it goes to the queue's default "
            "target. Headers `Lapse-Header-<name>` become the record's headers; `%41` in their values is the letter A."
        ),
        handler=_publish_one,
        parameters=_OPTIONS,
        raw_body=True,
        status=201,
        answer=obj(bookmark=TEXT),
        changes=True,
    ),
    Operation(
        method="POST",
        path="/v1/publish/{to}/batch",
        summary="Publish many records",
        description=(
            "In order. Each result has the record's `bookmark`, or its `error`; the status is 207 where there is one, "
            "and records without an error are published all the same."
        ),
        handler=_publish_many,
        model=Batch,
        status=201,
        answer=obj(published=WHOLE, failed=WHOLE, results=listed(obj(bookmark=TEXT, error=REFUSAL))),
        further={207: "Some records were refused"},
        changes=True,
    ),
)
