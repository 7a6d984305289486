"""The Avro schemas of lapse, packaged in the wheel, or read from the checkout in an editable install."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import fastavro

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_CHECKOUT: Final = Path(__file__).parents[3] / "schemas"


def directory() -> Traversable:
    """Return the directory of the `.avsc` files.

    Raises:
        FileNotFoundError: neither the installed package nor a checkout contains them.
    """
    import importlib.resources  # a late import: most programs that import the client read no schema yet

    packaged = importlib.resources.files("lapse") / "_schemas"
    if packaged.is_dir():
        return packaged
    if _CHECKOUT.is_dir():
        return _CHECKOUT
    raise FileNotFoundError(f"no schemas: neither {packaged} nor {_CHECKOUT} exists; install lapse again")


@functools.cache
def parsed(name: str) -> Any:
    """Return the schema `<name>.avsc`, parsed once by fastavro."""
    return fastavro.parse_schema(json.loads((directory() / f"{name}.avsc").read_text("utf-8")))


def text(name: str) -> str:
    """Return the text of the schema `<name>.avsc`, for readers such as Spark's `from_avro`."""
    return (directory() / f"{name}.avsc").read_text("utf-8")
