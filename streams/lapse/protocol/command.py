"""Commands: the requests of clients to a shard, in Avro or JSON (X2)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final, Literal

import orjson

from lapse.core.error_code import ErrorCode, Refusal
from lapse.protocol import codec, confluent
from lapse.protocol.command_field import MOST_NAME_CHARACTERS, SHOWN_CHARACTERS, faults
from lapse.protocol.repeated_key import repeated_key

Encoding = Literal["avro", "confluent", "json"]

QUEUE_COMMANDS: Final = frozenset(
    "subscribe unsubscribe heartbeat acknowledge cancel expire renew sow depth subscriptions pause resume purge rewind "
    "delete tick transfer transfer_confirm transfer_finish transfer_cancel transfer_accept transfer_discard".split()
)
SOW_COMMANDS: Final = frozenset(
    "sow sow_delete subscribe sow_and_subscribe delta_subscribe sow_and_delta_subscribe "
    "unsubscribe heartbeat depth subscriptions delete tick".split()
)
DEFINITION_COMMANDS: Final = frozenset("create_queue alter_queue create_sow alter_sow".split())
"""Commands to all workers, which define entities (Q23)."""


MOST_BYTES: Final = 2 << 20
"""The greatest size of a command, bytes. A larger record is refused unread, if compression let it into the topic."""

_SHOWN_FAULTS: Final = 5
"""The greatest number of faults of a command that are named. The others are counted."""

MOST_PEEKED: Final = 1_000
"""The greatest number of messages in an answer to a queue's `sow`. The next ones need `skip`."""

MOST_UPDATES: Final = 1_000
"""The greatest number of scheduled updates in an answer."""

MOST_SUBSCRIPTIONS: Final = 100
"""The greatest number of subscriptions in an answer to `subscriptions`. The next ones need `skip`."""


class CommandError(ValueError):
    """A command is invalid.

    Attributes:
        id: the command's id for the answer; empty if it could not be read.
        command: the command's name; empty if it could not be read.
        subscription: id of the subscription that sent it; empty if it could not be read.
        code: code of the refusal.
        encoding: encoding of the answer.
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
        """The refusal for the answer."""
        return Refusal(self.code, str(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command. Its fields are those of `schemas/command.avsc`, which describes each."""

    command: str
    id: str = ""
    answer: Literal["all", "errors", "none"] = "all"
    subscription: str = ""
    client: str = ""
    bookmarks: tuple[str, ...] = ()
    filter: str | None = None
    max_backlog: int | None = None
    payload: Literal["inline", "packed", "reference"] = "inline"
    heartbeat_timeout_ms: int | None = None
    lease_ms: int | None = None
    delay_ms: int | None = None
    keys: tuple[bytes, ...] = ()
    data: tuple[bytes, ...] = ()
    order_by: str | None = None
    top_n: int | None = None
    skip: int | None = None
    batch_size: int | None = None
    leased: bool = False
    force: bool = False
    transfer: str = ""
    to: str = ""
    entity: str = ""
    settings: str | None = None
    version: int | None = None
    lifetimes: Literal["new", "kept"] = "new"
    handed_over: bool = False
    dry_run: bool = False
    fault: str = ""
    select: tuple[str, ...] = ()
    spare: bool = False
    least_life_ms: int = 0
    state: str = ""

    @classmethod
    def of(cls, /, **fields: Any) -> Command:
        """Build a command from a user's values, checking each field.

        Raises:
            ValueError: a field is invalid; the message names it.
        """
        unknown = _unknown(fields)
        found = [] if unknown else faults(fields)
        if unknown or found:
            raise ValueError(unknown or _join_faults(found, len(found)))
        for name in ("bookmarks", "select"):
            if name in fields:
                fields[name] = tuple(fields[name])
        for name in ("keys", "data"):
            if name in fields:
                fields[name] = tuple(one.encode() if isinstance(one, str) else one for one in fields[name])
        return cls(**fields)


FIELDS: Final = tuple(field.name for field in fields(Command))
_DEFAULTS: Final = {field.name: field.default for field in fields(Command)}
_KNOWN: Final = frozenset(FIELDS)
_NO_STAMP: Final[Mapping[str, str]] = {}


def encode(command: Command, stamp: Mapping[str, str] = _NO_STAMP) -> bytes:
    """Encode a command in Avro single-object encoding. The stamp contains values that replace some of its fields."""
    if _rest_of(command) == _REST_DEFAULTS and stamp.keys() <= _BEGINNING:
        beginning = dict(zip(_FIRST, _first_of(command), strict=True)) | dict(stamp)
        return codec.encode_beginning("command", beginning, _LAST) + _default_end()
    return codec.encode("command", {name: getattr(command, name) for name in FIELDS} | dict(stamp))


_FIRST: Final = ("command", "id", "answer", "subscription", "client", "bookmarks")
"""The first fields of the schema. Nearly all commands, those of settlements, state no other: the rest is the same."""

_LAST: Final = _FIRST[-1]
_REST: Final = tuple(name for name in FIELDS if name not in _FIRST)
_BEGINNING: Final = frozenset(_FIRST)
_REST_DEFAULTS: Final = tuple(_DEFAULTS[name] for name in _REST)
_first_of: Final[Callable[[Command], tuple[Any, ...]]] = attrgetter(*_FIRST)
_rest_of: Final[Callable[[Command], tuple[Any, ...]]] = attrgetter(*_REST)


@functools.cache
def _default_end() -> bytes:
    """Return the bytes of the fields behind `_LAST` if all of them have their default values."""
    record = {**_DEFAULTS, "command": ""}
    return codec.encode("command", record)[len(codec.encode_beginning("command", record, _LAST)) :]


def decode(data: bytes | None) -> tuple[Command, Encoding]:
    """Decode a command, and return it with its encoding.

    Raises:
        CommandError: the bytes are not a command, or a field is invalid; the message names the field.
    """
    record: Any
    if not data:
        raise CommandError("an empty record is no command; send Avro or a JSON object", "json")
    if len(data) > MOST_BYTES:
        found = _ID.search(data)
        record = {"id": found[1].decode("utf-8", "replace")} if found else None
        raise CommandError(f"the record has {len(data):,} bytes; a command has {MOST_BYTES:,} at most", "json", record)
    if codec.is_avro(data):
        encoding: Encoding = "avro"
        try:
            every = codec.decode_before("command", data, _LAST, _default_end()) or codec.decode("command", data)
        except codec.CodecError as error:
            raise CommandError(str(error), encoding) from error
        # The body contains every field in the schema's type. Fields with their default values need no check.
        record = {name: value for name, value in every.items() if value != _DEFAULTS[name]}
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
        if (key := repeated_key(data, record)) is not None:
            raise CommandError(f"field {key}: is there twice; send it once", encoding, record)
    try:
        return Command.of(**record), encoding
    except ValueError as error:
        raise CommandError(str(error), encoding, record) from error


def decode_name_and_filter(data: bytes) -> tuple[object, object]:
    """Return name and filter of a command, without reading or checking the rest, which is faster than `decode`.

    Raises:
        ValueError: the bytes are in none of the encodings.
    """
    record: Any
    if codec.is_avro(data):
        record = codec.decode_beginning("command", data, "filter")
    elif confluent.is_framed(data):
        record = confluent.decode("command", data)
    else:
        record = orjson.loads(data)
    return (record.get("command"), record.get("filter")) if isinstance(record, dict) else (None, None)


_ID: Final = re.compile(rb'"id"\s*:\s*"([^"\\]{1,500})"')
"""Finds the id in a JSON object that is not parsed."""

_KINDS: Final = {"list": "an array", "NoneType": "null", "str": "a text", "bool": "a boolean"}


def _unknown(record: Mapping[str, object]) -> str:
    """Return a text that names unknown fields, at most a few, since there may be any number; empty = none."""
    if record.keys() <= _KNOWN:
        return ""
    names = [name for name in record if name not in _KNOWN]
    return _join_faults([_unknown_field(name) for name in names[:_SHOWN_FAULTS]], len(names))


def _unknown_field(name: str) -> str:
    from difflib import get_close_matches  # only for faults

    meant = get_close_matches(name[:SHOWN_CHARACTERS], FIELDS, 1)
    hint = f"; did you mean {meant[0]!r}?" if meant else "; docs/protocol.md lists them"
    return f"field {_shorten(name)}: unknown{hint}"


def _join_faults(found: Sequence[str], count: int) -> str:
    more = f"; and {count - _SHOWN_FAULTS:,} more faults" if count > _SHOWN_FAULTS else ""
    return "; ".join(found[:_SHOWN_FAULTS]) + more


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _text(value: object) -> str:
    return value[:MOST_NAME_CHARACTERS] if isinstance(value, str) else ""
