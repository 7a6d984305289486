"""Shapes: Python types of payloads, whose values pydantic checks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
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
        like: a type with the same fields, whose aliases decide by which names fields are written; `type` by default.

    Attributes:
        name: name of the type.

    Raises:
        LapseError: pydantic is missing.
        TypeError: pydantic does not know the type.
    """

    def __init__(self, type: Any, like: Any = None) -> None:  # noqa: A002  # the natural word
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
        self._by_alias = True if _is_read_by_alias(pydantic.TypeAdapter(like) if like else self._adapter) else None
        """Whether JSON has fields under their aliases: it has, if they are read by them. None = as pydantic does."""

    def to_json(self, value: Any) -> bytes:
        """Convert a value to JSON.

        Raises:
            InvalidPayload: the value is not of this type.
        """
        try:
            checked = self._adapter.validate_python(value)
            data: bytes = self._adapter.dump_json(checked, by_alias=self._by_alias, warnings="error")
            fields = self._adapter.dump_python(checked, by_alias=self._by_alias) if b"null" in data else None
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


def _is_read_by_alias(adapter: Any) -> bool:
    """Return whether fields of a type, or of a type within it, are read by other names than their own."""
    from pydantic.errors import PydanticUserError
    from pydantic.json_schema import GenerateJsonSchema

    class Silently(GenerateJsonSchema):
        """It warns of nothing, because nobody reads the schema."""

        def emit_warning(self, kind: Any, detail: str) -> None:
            """See `GenerateJsonSchema`."""

    try:
        by_alias, by_name = (adapter.json_schema(by_alias=which, schema_generator=Silently) for which in (True, False))
    except PydanticUserError:  # JSON Schema cannot say what the type is
        return False
    return bool(by_alias != by_name)


class Arguments:
    """The arguments of a function, whose types pydantic checks.

    They are fields of a model under names of their own, because parameters may have names that fields cannot have, or
    that a model has itself, such as `_id`, `copy` and `model_config`.

    Args:
        name: name of the type, for errors.
        function: the function.

    Raises:
        LapseError: pydantic is missing.
        TypeError: a parameter cannot be passed by name, or has a type that pydantic does not know.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        try:
            import pydantic  # optional
        except ImportError as error:
            raise LapseError("tasks need pydantic: pip install 'lapse[payloads]'") from error
        fields: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        for at, parameter in enumerate(_parameters(name, function)):
            if parameter.kind in _NAMELESS:
                raise TypeError(f"task {name}: parameter {parameter}: each has to have a name that a message can say")
            of = Any if parameter.annotation is parameter.empty else parameter.annotation
            default = ... if parameter.default is parameter.empty else parameter.default
            self._names[f"argument_{at}"] = parameter.name
            fields[f"argument_{at}"] = (of, pydantic.Field(default, validation_alias=parameter.name))
        names = self._names

        class Named(pydantic.BaseModel):
            model_config = pydantic.ConfigDict(extra="forbid")

            @pydantic.model_serializer(mode="wrap")
            def by_parameter(self, written: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
                return {names[field]: value for field, value in written(self).items()}

        try:
            model: Any = pydantic.create_model(name, __base__=Named, **fields)
            types: dict[str, Any] = {field: (of, ...) for field, (of, _) in fields.items()}
            plain: Any = pydantic.create_model(name, **types)
        except pydantic.PydanticUserError as error:
            why = str(error).partition(". ")[0]
            raise TypeError(f"task {name}: a parameter is of no type of payloads: {why}") from error
        self._shape = Shape(model, plain)

    def to_json(self, arguments: Mapping[str, Any]) -> bytes:
        """Convert arguments by name, and the defaults of the others, to JSON.

        Raises:
            InvalidPayload: they do not fit the function.
        """
        return self._shape.to_json(arguments)

    def from_json(self, data: bytes) -> dict[str, Any]:
        """Convert JSON to arguments by name, without those that it leaves out.

        Raises:
            InvalidPayload: they do not fit the function.
        """
        checked = self._shape.from_json(data)
        return {self._names[field]: getattr(checked, field) for field in checked.model_fields_set}


def _parameters(name: str, function: Callable[..., Any]) -> Iterable[inspect.Parameter]:
    try:
        return inspect.signature(function, eval_str=True).parameters.values()
    except NameError as error:
        raise TypeError(f"task {name}: the type of a parameter cannot be found: {error}") from error
