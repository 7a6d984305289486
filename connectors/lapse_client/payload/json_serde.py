"""Payloads in JSON: plain, or of a type that pydantic checks (models, dataclasses, typed dictionaries)."""

from __future__ import annotations

from typing import Any

import orjson

from lapse_client.error import InvalidPayload
from lapse_client.payload.not_a_number import refuse_unwritable_numbers
from lapse_client.payload.serde import Serde
from lapse_client.payload.shape import Shape


class JsonSerde(Serde):
    """Payloads as JSON.

    ::

        @dataclass
        class Order:
            id: int
            symbol: str

        Publisher(serializer=JsonSerde(Order))
        QueueSubscriber("orders", deserializer=JsonSerde(Order))

    Args:
        type: Python type of the payloads: a pydantic model, a dataclass, a `TypedDict` or any other type that pydantic
            knows; needs `pip install 'lapse[payloads]'`. None = any JSON, as dictionaries, lists, texts and numbers.

    Raises:
        LapseError: pydantic is missing.
        TypeError: pydantic does not know the type.
    """

    def __init__(self, type: Any = None) -> None:  # noqa: A002  # the natural word
        self._shape = None if type is None else Shape(type)

    def __repr__(self) -> str:
        return f"JsonSerde({'' if self._shape is None else self._shape.name})"

    def serialize(self, value: Any) -> bytes:
        """See `Serde`."""
        if self._shape is not None:
            return self._shape.to_json(value)
        try:
            data = orjson.dumps(value)
        except TypeError as error:  # JSONEncodeError is one
            raise InvalidPayload(f"the payload is no JSON: {error}") from error
        refuse_unwritable_numbers(value, data)
        return data

    def deserialize(self, data: bytes) -> Any:
        """See `Serde`."""
        if self._shape is not None:
            return self._shape.from_json(data)
        try:
            return orjson.loads(data)
        except ValueError as error:
            raise InvalidPayload(f"the payload is no JSON: {error}") from error
