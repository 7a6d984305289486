"""Imports Faust without the web client that it brings along, which no worker uses.

`faust.types.web` imports aiohttp for the name of a class in its annotations. aiohttp reads the machine's certificates
when it is imported, twice. That and its own modules took a quarter of the CPU that a worker's imports take.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final

_PACKAGE: Final = "aiohttp"
_CLIENT: Final = "aiohttp.client"
_TYPES: Final = "faust.types.web"


class NoSession:
    """What Faust's annotations name instead of aiohttp's session."""


def import_faust() -> None:
    """Import the part of Faust that wants aiohttp, with a placeholder for that.

    Do nothing if either is imported already. Faust's setting `HttpClient` still means aiohttp's own class, which is
    imported when it is asked for. Whoever imports aiohttp afterwards gets the package itself.
    """
    if _TYPES in sys.modules or _PACKAGE in sys.modules:
        return
    package, client = ModuleType(_PACKAGE), ModuleType(_CLIENT)
    vars(package)["client"] = client
    vars(client)["ClientSession"] = NoSession
    sys.modules[_PACKAGE], sys.modules[_CLIENT] = package, client
    try:
        import faust.types.web  # noqa: F401  # only this import wants it
    finally:
        del sys.modules[_PACKAGE], sys.modules[_CLIENT]
