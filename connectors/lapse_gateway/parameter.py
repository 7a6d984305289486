"""Query parameters of requests, with their types and limits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal

from lapse.core.error_code import ErrorCode
from lapse_gateway.fault import Fault

_WHOLE: Final = re.compile(r"-?[0-9]+")
_NUMBER: Final = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")
_MOST_DIGITS: Final = 19
"""The most characters of a number, without its sign."""

_FLAGS: Final = {"true": True, "1": True, "": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One query parameter.

    Attributes:
        name: name of the parameter.
        description: its meaning, for people.
        kind: type of its value. `texts` may be given several times.
        least: least value of a number.
        most: greatest value of a number; None = no limit.
        default: value if the parameter is missing.
        required: whether it must be given.
        choices: the possible texts; empty = any.
        if_empty: what to do instead of giving an empty text, as a script does whose variable is empty; empty = it may
            be empty.
    """

    name: str
    description: str
    kind: Literal["text", "texts", "whole", "number", "flag"] = "text"
    least: int = 0
    most: int | None = None
    default: Any = None
    required: bool = False
    choices: tuple[str, ...] = ()
    if_empty: str = ""

    def read(self, texts: Sequence[str]) -> Any:
        """Parse the values that a request gives.

        Raises:
            Fault: the parameter is missing, is given too often, or has a wrong value.
        """
        if not texts:
            if self.required:
                raise self._fault(f"is missing: {self._meaning}")
            return () if self.kind == "texts" else self.default
        if self.kind == "texts":
            for text in texts if self.choices else ():
                self._one(text)
            return tuple(texts)
        if len(texts) > 1:
            raise self._fault(f"is given {len(texts)} times; give it once")
        return self._one(texts[0])

    @property
    def _meaning(self) -> str:
        return self.description[:1].lower() + self.description[1:].rstrip(".")

    def _one(self, text: str) -> Any:
        if self.kind == "flag":
            if text not in _FLAGS:
                raise self._fault(f"expected true or false, not {_short(text)}")
            return _FLAGS[text]
        if self.kind in ("whole", "number"):
            return self._number(text)
        if self.required and not text:
            raise self._fault(f"is empty: {self._meaning}")
        if self.if_empty and not text:
            raise self._fault(f"is empty; {self.if_empty}")
        if self.choices and text not in self.choices:
            raise self._fault(f"expected {' or '.join(self.choices)}, not {_short(text)}")
        return text

    def _number(self, text: str) -> int | float:
        what = "a whole number" if self.kind == "whole" else "a number"
        form = _WHOLE if self.kind == "whole" else _NUMBER
        if not form.fullmatch(text) or len(text.removeprefix("-")) > _MOST_DIGITS:
            raise self._fault(f"expected {what}, not {_short(text)}")
        number = int(text) if self.kind == "whole" else float(text)
        if number < self.least or (self.most is not None and number > self.most):
            end = f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"
            raise self._fault(f"expected {end}, not {_short(text)}")
        return number

    def _fault(self, text: str) -> Fault:
        return Fault(ErrorCode.INVALID_ARGUMENT, f"parameter {self.name}: {text}")

    def described(self) -> Mapping[str, Any]:
        """Return the parameter's OpenAPI description."""
        kinds = {"text": "string", "whole": "integer", "number": "number", "flag": "boolean"}
        schema: dict[str, Any] = (
            {"type": "array", "items": self._item()} if self.kind == "texts" else {"type": kinds[self.kind]}
        )
        if self.kind in ("whole", "number"):
            schema["minimum"] = self.least
            if self.most is not None:
                schema["maximum"] = self.most
        if self.choices and self.kind != "texts":
            schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = self.default
        return {
            "name": self.name,
            "in": "query",
            "required": self.required,
            "description": self.description,
            "schema": schema,
        }

    def _item(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.choices)} if self.choices else {"type": "string"}


def filter_parameter(description: str) -> Parameter:
    """Return the parameter with a filter of programs, who would get or change everything by an empty one."""
    return Parameter(name="filter", description=description, if_empty="leave it out, or send TRUE for everything")


def read_all(parameters: Sequence[Parameter], given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parse the parameters of a request.

    Raises:
        Fault: a parameter is unknown, missing or wrong.
    """
    texts: dict[str, list[str]] = {}
    known = {parameter.name for parameter in parameters}
    for name, text in given:
        if name not in known:
            close = get_close_matches(name, known, 1)
            listed = f"known are {', '.join(sorted(known))}" if known else "there are none here"
            hint = f"did you mean {close[0]}?" if close else listed
            raise Fault(ErrorCode.INVALID_ARGUMENT, f"parameter {_short(name)}: unknown; {hint}")
        texts.setdefault(name, []).append(text)
    return {parameter.name: parameter.read(texts.get(parameter.name, ())) for parameter in parameters}


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
