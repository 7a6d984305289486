"""The interface of messages on which expressions are evaluated (X1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

Scalar: TypeAlias = bool | int | float | str | None
"""A value of the language: NULL, a boolean, a number or a string."""


class Message(Protocol):
    """A message as expressions see it.

    A payload is the result of a JSON or Avro decoder: dictionaries, lists, strings, integers, floats, booleans and
    None, of exactly those types. Other values in it (bytes, dates, decimals, subclasses) are opaque to the language,
    as objects and arrays are: not NULL, equal to nothing, and without order. `payload` may be a property that parses
    on first use, since only expressions whose `uses_payload` is true read it.
    """

    @property
    def payload(self) -> object:
        """The parsed value of the record."""

    @property
    def headers(self) -> Mapping[str, bytes | None]:
        """The record's headers by name."""

    @property
    def key(self) -> bytes | None:
        """The record's key."""

    @property
    def topic(self) -> str:
        """The topic that the record is in."""

    @property
    def partition(self) -> int:
        """The partition that the record is in."""

    @property
    def offset(self) -> int:
        """The record's offset."""

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp, milliseconds since the epoch."""
