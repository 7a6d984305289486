"""Shapes: Python types of payloads, whose values pydantic checks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Final

from lapse_client.error import InvalidPayload, LapseError
from lapse_client.payload.not_a_number import refuse_unwritable_numbers

_SHOWN_FAULTS: Final = 3
_NAMELESS: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


_UNEXPECTED: Final = re.compile(r"Expected `(.*?)` - .*?\[field_name='(.*?)', input_value=.*, input_type=(.*?)\]")
"""The text of pydantic's serializer for a field's value of another type. It contains the value."""


class Shape:
    """A type of payloads whose values are checked.

    Args:
        type: a pydantic model, a dataclass, a `TypedDict`, or any other type that pydantic knows.

    Attributes:
        name: name of the type.

    Raises:
        LapseError: pydantic is missing.
        TypeError: pydantic does not know the type.
    """

    def __init__(self, type: Any) -> None:  # noqa: A002  # the natural word
        try:
            import pydantic  # optional
        except ImportError as error:
            raise LapseError("payloads with a type need pydantic: pip install 'lapse[payloads]'") from error
        self.name: str = getattr(type, "__name__", str(type))
        self._faults = pydantic.ValidationError
        self._unwritable: tuple[Any, ...] = (pydantic.ValidationError, pydantic.PydanticUserError, ValueError)
        try:
            self._adapter: Any = pydantic.TypeAdapter(type)
        except pydantic.PydanticUserError as error:
            raise TypeError(f"{self.name} is no type of payloads: {error}") from error

    def to_json(self, value: Any) -> bytes:
        """Convert a value to JSON.

        Raises:
            InvalidPayload: the value is not of this type.
        """
        try:
            checked = self._adapter.validate_python(value)
            data: bytes = self._adapter.dump_json(checked, warnings="error")
            fields = self._adapter.dump_python(checked) if b"null" in data else None
        except self._unwritable as error:
            raise self._payload_error(error) from error
        refuse_unwritable_numbers(fields, data)
        return data

    def from_json(self, data: bytes) -> Any:
        """Convert JSON to a value.

        Raises:
            InvalidPayload: the JSON does not fit this type.
        """
        try:
            return self._adapter.validate_json(data)
        except self._faults as error:
            raise self._payload_error(error) from error

    def to_fields(self, value: Any) -> Any:
        """Convert a value to dictionaries, lists and plain values.

        Raises:
            InvalidPayload: the value is not of this type.
        """
        try:
            return self._adapter.dump_python(self._adapter.validate_python(value), warnings="error")
        except self._unwritable as error:
            raise self._payload_error(error) from error

    def from_fields(self, fields: Any) -> Any:
        """Convert dictionaries, lists and plain values to a value.

        Raises:
            InvalidPayload: they do not fit this type.
        """
        try:
            return self._adapter.validate_python(fields)
        except self._faults as error:
            raise self._payload_error(error) from error

    def _payload_error(self, error: Any) -> InvalidPayload:
        """Return an error without the values, because letters and logs have other readers than payloads."""
        if not isinstance(error, self._faults):
            found = _UNEXPECTED.findall(str(error))
            why = "; ".join(
                f"{field}: expected {wanted}, found {kind}" for wanted, field, kind in found[:_SHOWN_FAULTS]
            )
            return InvalidPayload(f"the payload is no {self.name}: {why or error}")
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        lines = [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" if fault["loc"] else fault["msg"]
            for fault in faults[:_SHOWN_FAULTS]
        ]
        if len(faults) > _SHOWN_FAULTS:
            lines.append(f"and {len(faults) - _SHOWN_FAULTS} more")
        return InvalidPayload(f"the payload is no {self.name}: {'; '.join(lines)}")


def arguments_shape(name: str, function: Callable[..., Any]) -> Any:
    """Return a type for a function's arguments: a pydantic model with a field for each parameter.

    Args:
        name: name of the type.
        function: the function.

    Raises:
        LapseError: pydantic is missing.
        TypeError: a parameter cannot be passed by name, or has a type that pydantic does not know.
    """
    try:
        import pydantic  # optional
    except ImportError as error:
        raise LapseError("tasks need pydantic: pip install 'lapse[payloads]'") from error
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind in _NAMELESS:
            raise TypeError(f"task {name}: parameter {parameter}: each has to have a name that a message can say")
        of = Any if parameter.annotation is parameter.empty else parameter.annotation
        fields[parameter.name] = (of, ... if parameter.default is parameter.empty else parameter.default)
    try:
        model: Any = pydantic.create_model(name, __config__=pydantic.ConfigDict(extra="forbid"), **fields)
    except pydantic.PydanticUserError as error:
        why = str(error).partition(". ")[0]
        raise TypeError(f"task {name}: a parameter is of no type of payloads: {why}") from error
    return model
