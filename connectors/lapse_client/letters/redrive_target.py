"""The target of a redrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a redrive, and the lifetime of the messages.

    Attributes:
        topic: the topic to send to; empty = each letter's origin.
        lifetime: `default`: no lifetime, so that the queue's default applies; `original`: the old deadline; `new`:
            `ttl_ms`.
        ttl_ms: the new lifetime, in ms.
    """

    topic: str = ""
    lifetime: Literal["default", "original", "new"] = "default"
    ttl_ms: int = 0
