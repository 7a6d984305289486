"""Refusals: why the broker does not take a letter (C27)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.tp import TP


class Refusal(NamedTuple):
    """Why a letter was refused.

    Attributes:
        why: for people.
        of_topic: whether its topic takes no letter at all.
    """

    why: str
    of_topic: bool = False


Write = Callable[[Sequence[Output | Packed]], Awaitable[dict[int, Refusal]]]
"""Writes letters; returns the refused ones by their index."""

WriteExpired = Callable[[Sequence[Output | Packed], Mapping[TP, int]], Awaitable[dict[int, Refusal]]]
"""The same for messages whose lifetimes have passed: it gets the offset behind the last of them of each source."""
