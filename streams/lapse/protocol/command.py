"""Commands: what clients ask of a shard, in Avro or JSON (X2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from lapse.core.error_code import ErrorCode, Refusal
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

MOST_BYTES: Final = 2 << 20
"""A larger record is refused unread; a producer's compression may have let it into the topic."""

_SHOWN_CHARACTERS: Final = 60
"""So much of a wrong value, or name, is shown to its sender."""

_SHOWN_FAULTS: Final = 5
"""So many faults of one command are told; the others are counted."""

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
        code: the kind of refusal.
        encoding: how the answer is to be written.
        silent: whether no answer is wanted.
    """

    code = ErrorCode.MALFORMED

    def __init__(self, message: str, encoding: Encoding, record: object = None) -> None:
        super().__init__(message)
        fields = record if isinstance(record, dict) else {}
        self.id = _text(fields.get("id"))
        self.command = _text(fields.get("command"))
        self.subscription = _text(fields.get("subscription"))
        self.encoding: Encoding = encoding
        self.silent = False

    @property
    def refusal(self) -> Refusal:
        """What the answer says."""
        return Refusal(self.code, str(self))


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
            raise ValueError(_faults(error)) from error

    @field_validator("bookmarks", mode="before")
    @classmethod
    def _bookmarks(cls, value: object) -> object:
        if not isinstance(value, list):
            return value
        if len(value) > MOST_BOOKMARKS:
            raise ValueError(f"has {len(value):,} items; {MOST_BOOKMARKS:,} is the most in one command")
        _require(value, (str,))
        return tuple(value)

    @field_validator("keys", mode="before")
    @classmethod
    def _keys(cls, value: object) -> object:
        if isinstance(value, list):
            _require(value, (str, bytes))
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
    record: Any
    if not data:
        raise CommandError("an empty record is no command; send Avro or a JSON object", "json")
    if len(data) > MOST_BYTES:
        told = _ID.search(data)
        record = {"id": told[1].decode("utf-8", "replace")} if told else None
        raise CommandError(f"the record has {len(data):,} bytes; a command has {MOST_BYTES:,} at most", "json", record)
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
    if not record.keys() <= Command.model_fields.keys():
        raise CommandError(_unknown(record), encoding, record)
    try:
        return Command.model_validate(record), encoding
    except ValidationError as error:
        raise CommandError(_faults(error), encoding, record) from error


_EXPECTED: Final = {
    "string_type": "expected a text",
    "bytes_type": "expected a text",
    "int_type": "expected a whole number",
    "bool_type": "expected true or false",
    "tuple_type": "expected an array",
}
"""What was expected, by pydantic's name of the fault, where pydantic's words are Python's."""

_ID: Final = re.compile(rb'"id"\s*:\s*"([^"\\]{1,500})"')
"""Where the id stands in a JSON object that is not read."""

_ITEM: Final = "item"
"""The fault of an item of an array."""

_KINDS: Final = {"list": "an array", "NoneType": "null", "str": "a text", "bool": "a boolean"}


def _unknown(record: Mapping[str, object]) -> str:
    """Say which fields there are not: a few by name, for a record may have any number of them."""
    names = [name for name in record if name not in Command.model_fields]
    told = [_unknown_field(name) for name in names[:_SHOWN_FAULTS]]
    return "; ".join(told) + _and_more(len(names))


def _unknown_field(name: str) -> str:
    meant = get_close_matches(name[:_SHOWN_CHARACTERS], Command.model_fields, 1)
    hint = f"; did you mean {meant[0]!r}?" if meant else "; docs/protocol.md lists them"
    return f"field {_cut(name)}: unknown{hint}"


def _faults(error: ValidationError) -> str:
    faults = error.errors(include_url=False)
    return "; ".join(map(_fault, faults[:_SHOWN_FAULTS])) + _and_more(len(faults))


def _and_more(count: int) -> str:
    return f"; and {count - _SHOWN_FAULTS:,} more faults" if count > _SHOWN_FAULTS else ""


def _require(items: Sequence[object], kinds: tuple[type, ...]) -> None:
    """See that items are texts; the first that is none ends the search.

    Raises:
        PydanticCustomError: one is not.
    """
    for at, item in enumerate(items):
        if not isinstance(item, kinds):
            raise PydanticCustomError(_ITEM, "expected a text, not {given}", {"at": at, "given": _shown(item)})


def _shown(value: object) -> str:
    """A wrong value, as far as it helps; a nested one is not written out, which takes time and stack."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return repr(str(value)[:_SHOWN_CHARACTERS])


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _fault(fault: ErrorDetails) -> str:
    where = ".".join(str(part) for part in fault["loc"]) or "command"
    if fault["type"] == "missing":
        return f"field {where}: required"
    if fault["type"] == "extra_forbidden":
        return _unknown_field(where)
    if fault["type"] == "value_error":
        return f"field {where}: {fault['msg'].removeprefix('Value error, ')}"
    if fault["type"] == _ITEM:
        return f"field {where}.{fault['ctx']['at']}: {fault['msg']}"
    return f"field {where}: {_EXPECTED.get(fault['type'], fault['msg'])}, not {_shown(fault['input'])}"


def _text(value: object) -> str:
    return value[:MOST_NAME_CHARACTERS] if isinstance(value, str) else ""
