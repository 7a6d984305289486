"""Commands: what clients ask of a shard, in Avro or JSON (X2)."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from lapse.protocol import codec, confluent

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Encoding = Literal["avro", "confluent", "json"]

QUEUE_COMMANDS: Final = frozenset(
    "subscribe unsubscribe heartbeat acknowledge cancel expire renew sow depth pause resume purge delete tick "
    "transfer transfer_confirm transfer_finish transfer_cancel transfer_accept transfer_discard".split()
)
SOW_COMMANDS: Final = frozenset(
    "sow sow_delete subscribe sow_and_subscribe delta_subscribe unsubscribe heartbeat depth delete tick".split()
)


MOST_NAME_CHARACTERS: Final = 500
"""Names and ids come back in headers of answers and deliveries, so they have to be short."""

MOST_BOOKMARKS: Final = 20_000
"""What a command changes is durable as a whole, so it has a largest size."""

_CHANGING: Final = frozenset({"sow_delete", "purge", "acknowledge", "cancel", "expire"})
"""Commands that an empty filter must not carry out on everything."""

_SHOWN_CHARACTERS: Final = 60
"""So much of a wrong value is shown to its sender."""

MOST_PEEKED: Final = 1_000
"""Messages that one answer to a queue's `sow` shows; `skip` goes on."""

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Period = Annotated[int, Field(ge=1, lt=1 << 63)]
Name = Annotated[str, Field(max_length=MOST_NAME_CHARACTERS)]


class CommandError(ValueError):
    """A command that cannot be read.

    Attributes:
        id: the command's id as far as it could be read, for the answer.
        command: its name as far as it could be read.
        subscription: whose it is as far as it could be read.
        encoding: how the answer is to be written.
        silent: whether no answer is wanted.
    """

    def __init__(self, message: str, encoding: Encoding, record: object = None) -> None:
        super().__init__(message)
        fields = record if isinstance(record, dict) else {}
        self.id = _text(fields.get("id"))
        self.command = _text(fields.get("command"))
        self.subscription = _text(fields.get("subscription"))
        self.encoding: Encoding = encoding
        self.silent = False


class Command(BaseModel):
    """One command; the fields are those of `schemas/command.avsc`, where each is described."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    command: Name
    id: Name = ""
    answer: Literal["all", "errors", "none"] = "all"
    subscription: Name = ""
    client: Name = ""
    bookmarks: Annotated[tuple[str, ...], Field(max_length=MOST_BOOKMARKS)] = ()
    filter: str | None = None
    max_backlog: Count | None = None
    payload: Literal["inline", "reference"] = "inline"
    heartbeat_timeout_ms: Period | None = None
    lease_ms: Period | None = None
    delay_ms: Count | None = None
    keys: tuple[bytes, ...] = ()
    order_by: str | None = None
    top_n: Count | None = None
    skip: Count | None = None
    batch_size: Period | None = None
    leased: bool = False
    force: bool = False
    transfer: Name = ""
    to: Name = ""

    @field_validator("filter")
    @classmethod
    def _filter(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value == "" and info.data.get("command") in _CHANGING:
            raise ValueError("is empty; leave it out, or send TRUE for everything")
        return value

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Build a command from what a user gave.

        Raises:
            ValueError: a field is wrong; the text names it.
        """
        try:
            return cls(**fields)
        except ValidationError as error:
            raise ValueError("; ".join(map(_fault, error.errors()))) from error

    @field_validator("bookmarks", mode="before")
    @classmethod
    def _bookmarks(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("keys", mode="before")
    @classmethod
    def _keys(cls, value: object) -> object:
        if isinstance(value, list):
            return tuple(key.encode() if isinstance(key, str) else key for key in value)
        return value


def encode(command: Command) -> bytes:
    """Write a command in Avro single-object encoding."""
    return codec.encode("command", command.model_dump())


def decode(data: bytes | None) -> tuple[Command, Encoding]:
    """Read a command in either encoding, and say which it was.

    Raises:
        CommandError: the bytes are neither, or a field is wrong; the message names the field.
    """
    if not data:
        raise CommandError("an empty record is no command; send Avro or a JSON object", "json")
    record: Any
    if codec.is_avro(data):
        encoding: Encoding = "avro"
        try:
            record = codec.decode("command", data)
        except codec.CodecError as error:
            raise CommandError(str(error), encoding) from error
    elif confluent.is_framed(data):
        encoding = "confluent"
        try:
            record = confluent.decode("command", data)
        except codec.CodecError as error:
            raise CommandError(str(error), "json") from error
    else:
        encoding = "json"
        try:
            record = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise CommandError(
                f"the record is neither Avro single-object encoding nor JSON: {error}", encoding
            ) from error
        if not isinstance(record, dict):
            kind = type(record).__name__
            raise CommandError(f"expected a JSON object, found {_KINDS.get(kind, 'a number')}", encoding)
    try:
        return Command.model_validate(record), encoding
    except ValidationError as error:
        raise CommandError("; ".join(map(_fault, error.errors())), encoding, record) from error


_EXPECTED: Final = {
    "string_type": "expected a text",
    "bytes_type": "expected a text",
    "int_type": "expected a whole number",
    "bool_type": "expected true or false",
    "tuple_type": "expected an array",
}
"""What was expected, by pydantic's name of the fault, where pydantic's words are Python's."""

_KINDS: Final = {"list": "an array", "NoneType": "null", "str": "a text", "bool": "a boolean"}


def _fault(fault: ErrorDetails) -> str:
    where = ".".join(str(part) for part in fault["loc"]) or "command"
    if fault["type"] == "missing":
        return f"field {where}: required"
    if fault["type"] != "extra_forbidden":
        if fault["type"] == "value_error":
            return f"field {where}: {fault['msg'].removeprefix('Value error, ')}"
        given = str(fault["input"])[:_SHOWN_CHARACTERS]
        return f"field {where}: {_EXPECTED.get(fault['type'], fault['msg'])}, not {given!r}"
    meant = get_close_matches(where, Command.model_fields, 1)
    return f"field {where}: unknown" + (f"; did you mean {meant[0]!r}?" if meant else "; docs/protocol.md lists them")


def _text(value: object) -> str:
    return value[:MOST_NAME_CHARACTERS] if isinstance(value, str) else ""
