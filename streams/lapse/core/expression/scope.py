"""Scope: the globals of generated functions, and the source of the leaves of expressions (X1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lapse.core.expression import operations

_LONG_PATH: Final = 4
"""Paths with more steps are resolved by a loop."""


class Scope:
    """The globals that the functions of one expression share: constants, helpers and the functions themselves."""

    def __init__(self) -> None:
        self.temporaries = 0
        self.functions = 0
        self.constants: dict[tuple[type, str], str] = {}
        self.names: dict[str, Any] = {
            "__builtins__": {},
            "type": type,
            "dict": dict,
            "list": list,
            "str": str,
            "len": len,
            "empty": {},
            "numbers": operations.NUMBERS,
            "numeric": operations.NUMERIC,
            "scalars": operations.SCALARS,
        }

    def define(self, body: str) -> Callable[..., Any]:
        """Compile a function with the given body."""
        self.functions += 1
        name = f"f{self.functions}"
        guard = "    p = payload if type(payload) is dict else empty\n" if "p.get(" in body else ""
        source = f"def {name}(payload, message=None):\n{guard}{body}\n"
        exec(compile(source, "<expression>", "exec"), self.names)  # noqa: S102 - of names and fixed templates only
        function: Callable[..., Any] = self.names[name]
        return function

    def name(self, value: Any) -> str:
        """Return the name of a constant or helper in the generated source."""
        identity = (type(value), repr(value))
        if identity not in self.constants:
            self.constants[identity] = f"k{len(self.constants)}"
            self.names[self.constants[identity]] = value
        return self.constants[identity]

    def temporary(self) -> str:
        """Return the name of a new local variable."""
        self.temporaries += 1
        return f"t{self.temporaries}"

    def path(self, steps: tuple[str | int, ...]) -> str:
        """Return source of the value at a path."""
        if len(steps) > _LONG_PATH or not steps:
            return f"{self.name(operations.resolve)}(payload, {self.name(steps)})"
        code = "payload"
        for index, step in enumerate(steps):
            name, variable = self.name(step), self.temporary()
            if isinstance(step, int):
                check = f"type({variable} := {code}) is list and len({variable}) > {name}"
                code = f"({variable}[{name}] if {check} else None)"
            elif index == 0:
                code = f"p.get({name})"
            else:
                code = f"({variable}.get({name}) if type({variable} := {code}) is dict else None)"
        return code

    def attribute(self, name: str, argument: str | None) -> str:
        """Return source of an attribute of the message, which is NULL without a message."""
        if name == "HEADER":
            return f"{self.name(operations.header)}(message, {self.name(argument)})"
        if name == "KEY":
            return f"{self.name(operations.key)}(message)"
        member = {"TOPIC": "topic", "PARTITION": "partition", "OFFSET": "offset", "TIMESTAMP_MS": "timestamp_ms"}[name]
        return f"(None if message is None else message.{member})"
