"""Expiry function: imports the function that `on_expire = "package.module:function"` names (L15)."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import AfterValidator

_FORM: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")


def _check_form(name: str) -> str:
    if not _FORM.match(name):
        raise ValueError(f'{name!r}: expected "package.module:function"')
    return name


FunctionName = Annotated[str, AfterValidator(_check_form)]
"""A field that names a function, which may not exist."""


def resolve(name: str) -> Callable[[Any], object]:
    """Import a function by `package.module:function`.

    Raises:
        ValueError: it cannot be imported, or is not a function of one argument; the message says why.
    """
    module_name, _, path = _check_form(name).partition(":")
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"{name!r}: {module_name} is Python's own and holds no rules; name a function of yours")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # the user's module may raise anything
        raise ValueError(
            f"{name!r}: the module {module_name} cannot be imported: {type(error).__name__}: {error}. "
            "It is looked for beside the configuration file, and where Python looks"
        ) from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ValueError(f"{name!r}: {module_name} has no {path}") from error
    if not callable(found):
        raise ValueError(f"{name!r}: {path} is no function")
    if inspect.isclass(found) or inspect.isbuiltin(found):
        raise ValueError(f"{name!r}: {path} is no rule; name a function that takes the message")
    if inspect.iscoroutinefunction(found):
        raise ValueError(f"{name!r}: {path} is a coroutine function; write an ordinary one")
    try:
        inspect.signature(found).bind(object())
    except TypeError as error:
        raise ValueError(f"{name!r}: {path} has to take one argument, the message: {error}") from error
    except ValueError:
        pass  # a C function without a signature, which cannot be checked
    function: Callable[[Any], object] = found
    return function
