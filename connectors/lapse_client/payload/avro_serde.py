"""Payloads in Avro's single-object encoding, by schemas that both sides have (S1); no registry is needed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from lapse.protocol.avro_payload import AvroPayload
from lapse.protocol.avro_schema import AvroSchema
from lapse_client.error import InvalidPayload
from lapse_client.payload.serde import Serde
from lapse_client.payload.shape import Shape

SchemaLike = Mapping[str, Any] | str | PathLike[str]
"""A schema: parsed, as the text of an `.avsc` file, or the file's path."""


class AvroSerde(Serde):
    """Payloads as Avro records in single-object encoding: a marker, the schema's fingerprint, the body.

    A payload that was written with one of the further schemas is read by Avro's rules of resolution. Workers read such
    payloads with `value_format = "avro"`. For Confluent's wire format, take Confluent's own `AvroSerializer` and
    `AvroDeserializer`.

    Args:
        schema: of the records, as they are written and read. Logical types are read as what they are stored as.
        type: what a record becomes: a pydantic model, a dataclass or a `TypedDict`; a dictionary without it.
        writers: further schemas that records may be written with.

    Raises:
        ValueError: no schema, or what is written with one of the others cannot be read with it.
        LapseError: there is a type, and pydantic is missing.
    """

    def __init__(self, schema: SchemaLike, type: Any = None, *, writers: Iterable[SchemaLike] = ()) -> None:  # noqa: A002
        own = _schema(schema)
        self._payloads = AvroPayload(own, [_schema(one) for one in writers])
        self._mark = own.mark
        self._label = own.label
        self._shape = None if type is None else Shape(type)

    def __repr__(self) -> str:
        return f"AvroSerde({self._label}{'' if self._shape is None else f', {self._shape.name}'})"

    def serialize(self, value: Any) -> bytes:
        """See `Serde`."""
        fields = value if self._shape is None else self._shape.to_fields(value)
        try:
            return self._payloads.serialize(fields, self._mark)
        except ValueError as error:
            raise InvalidPayload(f"the payload {error}") from error

    def deserialize(self, data: bytes) -> Any:
        """See `Serde`."""
        try:
            fields = self._payloads.parse(data)
        except ValueError as error:
            raise InvalidPayload(f"the payload is {error}") from error
        return fields if self._shape is None else self._shape.from_fields(fields)


def _schema(given: SchemaLike) -> AvroSchema:
    tree: Any = given
    if isinstance(given, PathLike):
        tree = json.loads(Path(given).read_bytes())
    elif isinstance(given, str):
        tree = json.loads(given) if given.lstrip()[:1] in ("{", "[", '"') else json.loads(Path(given).read_bytes())
    label = tree.get("name", "the schema") if isinstance(tree, Mapping) else "the schema"
    return AvroSchema(tree, str(label))
