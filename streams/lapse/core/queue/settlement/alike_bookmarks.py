"""Alike bookmarks: many that differ in their offsets only, as those of most commands do, parsed into columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lapse.core.generation import FIRST_REWOUND
from lapse.core.queue.settlement.alike_claims import AlikeClaims
from lapse.protocol.bookmark import BookmarkRange

MANY: Final = 16
"""From this number of bookmarks on, it pays to look whether they differ in their offsets only."""

_MOST_DIGITS: Final = 18
"""The number of decimal digits that fit into 63 bits."""

_COMMA, _DASH, _ZERO, _NINE = b",-09"


def parse_alike(texts: Sequence[str]) -> AlikeClaims | None:
    """Parse ranges as `BookmarkRange.parse` parses each, if they are many and differ in their offsets only.

    Returns:
        The claims; None if the texts must be parsed one by one.
    """
    if len(texts) < MANY:
        return None
    try:
        one = BookmarkRange.parse(texts[0])
    except ValueError:
        return None
    topic, partition, rest = texts[0].split(":", 2)
    _, mark, token = rest.partition("#")
    head, tail = f"{topic}:{partition}:", f"{mark}{token}"
    lines = "\n".join(texts)
    offsets = lines[len(head) : len(lines) - len(tail)].replace(f"{tail}\n{head}", ",")
    if not lines.endswith(tail) or not offsets.isascii():
        return None
    characters = np.frombuffer(offsets.encode(), np.uint8)
    between = np.flatnonzero(characters < _ZERO)
    marks = characters[between]
    sizes = np.diff(between, prepend=-1, append=len(characters)) - 1
    are_ends = marks == _DASH
    if (
        np.count_nonzero(marks == _COMMA) != len(texts) - 1
        or np.count_nonzero(are_ends) != len(marks) - len(texts) + 1
        or bool((are_ends[1:] & are_ends[:-1]).any())
        or int(characters.max()) > _NINE
        or not 1 <= int(sizes.min()) <= int(sizes.max()) <= _MOST_DIGITS
    ):
        return None
    numbers = np.fromstring(offsets.replace("-", ","), np.int64, sep=",")
    firsts = lasts = numbers[np.concatenate(([True], ~are_ends))]
    if len(firsts) < len(numbers):
        lasts = firsts.copy()
        at = np.flatnonzero(are_ends)  # how many ends come before one tells how many numbers are no first ones
        lasts[at - np.arange(len(at))] = numbers[at + 1]
    if bool((lasts < firsts).any()) or int(lasts.max()) >= FIRST_REWOUND:
        return None
    return AlikeClaims(one.topic, one.partition, firsts, lasts, one.delivery_count, one.epoch)
