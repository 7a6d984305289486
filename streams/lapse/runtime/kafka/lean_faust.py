"""Imports Faust without the web client and the YAML parser that it brings along, which no worker uses.

`faust.types.web` imports aiohttp for the name of a class in its annotations, and Faust's settings for their default.
aiohttp reads the machine's certificates when it is imported, twice. That and its own modules took a quarter of the CPU
that a worker's imports take. `faust.serializers.codecs` imports yaml if it is there.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final, cast

_PACKAGE: Final = "aiohttp"
_CLIENT: Final = "aiohttp.client"
_TYPES: Final = "faust.types.web"
_YAML: Final = "yaml"


class NoSession:
    """A substitute for aiohttp's session, which Faust's annotations and a worker's settings name."""


def import_faust() -> None:
    """Import the part of Faust that wants aiohttp, with a placeholder for that.

    Do nothing if either is imported already. Faust's setting `HttpClient` still means aiohttp's own class by default,
    which is imported with the settings of an app. Whoever imports aiohttp or yaml afterwards gets the package itself.
    """
    if _TYPES in sys.modules or _PACKAGE in sys.modules:
        return
    package, client = ModuleType(_PACKAGE), ModuleType(_CLIENT)
    vars(package)["client"] = client
    vars(client)["ClientSession"] = NoSession
    left_out = {_PACKAGE: package, _CLIENT: client}
    if _YAML not in sys.modules:
        left_out[_YAML] = cast("ModuleType", None)  # an import of it fails
    sys.modules.update(left_out)
    try:
        # Only these imports want them.
        import faust.serializers.codecs
        import faust.types.web  # noqa: F401
    finally:
        for name in left_out:
            del sys.modules[name]
