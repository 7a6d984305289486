"""Names of Kafka topics in the configuration."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator

LONGEST: Final = 249
"""The greatest number of characters that Kafka allows in a topic's name."""

_LEGAL: Final = re.compile(rf"(?!\.{{1,2}}\Z)[A-Za-z0-9._-]{{1,{LONGEST}}}\Z")


def legal_topic(name: str) -> str:
    """Return a topic's name if it is valid.

    Raises:
        ValueError: Kafka does not allow the name.
    """
    if not _LEGAL.match(name):
        raise ValueError(
            f"{name!r} is no name that Kafka allows a topic: letters, digits, '.', '_' and '-', 1 to {LONGEST} of them"
        )
    return name


TopicName = Annotated[str, AfterValidator(legal_topic)]
"""A field that names a topic, which may not exist."""
