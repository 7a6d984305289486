"""Refusals: the reasons why the broker does not accept a letter (C27)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.tp import TP


class Refusal(NamedTuple):
    """Why a letter was refused.

    Attributes:
        why: the reason, for people.
        of_topic: whether the topic accepts no letter at all.
    """

    why: str
    of_topic: bool = False


Write = Callable[[Sequence[Output | Packed]], Awaitable[dict[int, Refusal]]]
"""Writes letters; returns the refusals by the indexes of the letters."""

WriteExpired = Callable[[Sequence[Output | Packed], Mapping[TP, int]], Awaitable[dict[int, Refusal]]]
"""The same for expired messages. It also gets, for each source, the offset behind the last of them."""
