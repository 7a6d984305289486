"""Answers: what a shard says to a command, encoded as the command was (X2, C16)."""

from __future__ import annotations

from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict

from lapse.protocol import codec, confluent
from lapse.protocol.command import Encoding


class Settlement(BaseModel):
    """Messages that share a result of a settlement (C16)."""

    model_config = ConfigDict(frozen=True)

    bookmarks: str
    result: str


class QueuedMessage(BaseModel):
    """One message as a peek shows it, without its payload (Q15)."""

    model_config = ConfigDict(frozen=True)

    bookmark: str
    state: str
    expires_at_ms: int | None = None
    delivery_count: int = 0
    cancel_count: int = 0
    subscription: str = ""
    until_ms: int | None = None


class Answer(BaseModel):
    """One answer; the fields are those of `schemas/answer.avsc`, where each is described."""

    model_config = ConfigDict(frozen=True)

    id: str
    command: str
    status: str
    error: str = ""
    partition: int = -1
    at_ms: int = 0
    settlements: tuple[Settlement, ...] = ()
    lease_until_ms: int | None = None
    counts: dict[str, int] = {}
    messages: tuple[QueuedMessage, ...] = ()
    publish_target: str = ""
    handed_over: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    code: str = ""


MOST_SETTLEMENTS: Final = 10_000
MOST_ERROR_CHARACTERS: Final = 2_000
"""An answer is one record, so it has a largest size, whatever was asked."""


def encode(answer: Answer, encoding: Encoding) -> bytes:
    """Write an answer in the encoding of its command; what makes it too long is left out, and the error says so."""
    error, settlements = answer.error, answer.settlements
    if len(error) > MOST_ERROR_CHARACTERS:
        error = error[: MOST_ERROR_CHARACTERS // 2] + " … " + error[-MOST_ERROR_CHARACTERS // 2 :]
    if len(settlements) > MOST_SETTLEMENTS:
        error = f"{error or 'done'}; the results of {len(settlements) - MOST_SETTLEMENTS} more ranges are left out"
        settlements = settlements[:MOST_SETTLEMENTS]
    if error is not answer.error:
        answer = answer.model_copy(update={"error": error, "settlements": settlements})
    record = answer.model_dump()
    if encoding == "confluent" and confluent.knows("answer"):
        return confluent.encode("answer", record)
    return codec.encode("answer", record) if encoding == "avro" else codec.encode_json(record)


def decode(data: bytes) -> Answer:
    """Read an answer in either encoding.

    Raises:
        codec.CodecError: the bytes are neither.
    """
    record: Any
    if codec.is_avro(data):
        record = codec.decode("answer", data)
    else:
        try:
            record = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise codec.CodecError(f"an answer that is neither Avro nor JSON: {error}") from error
    return Answer.model_validate(record)
