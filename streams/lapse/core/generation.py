"""Generations: they distinguish the messages of one record that rewinds have brought back (Q22, C61).

A rewind makes a new message of a record, with a new generation. The *position* of a message combines both: the
record's offset, with the generation in the bits above `OFFSET_BITS`. Without a rewind the generation is 0, so the
position is the offset.
"""

from __future__ import annotations

from typing import Final

OFFSET_BITS: Final = 48
"""The number of bits for an offset. A million records a second use them up in nine years."""

FIRST_REWOUND: Final = 1 << OFFSET_BITS
"""The first position of a message that a rewind brought back. All such positions are at least this number."""

MOST_GENERATIONS: Final = (1 << 14) - 1
"""The greatest number of rewinds of a partition."""

_OFFSET: Final = FIRST_REWOUND - 1


def position_of(offset: int, generation: int) -> int:
    """Return the position of a message, given its record's offset and its generation."""
    return offset + (generation << OFFSET_BITS)


def offset_of(position: int) -> int:
    """Return the offset of a position's record."""
    return position & _OFFSET


def generation_of(position: int) -> int:
    """Return the generation of a position; 0 = no rewind brought the message back."""
    return position >> OFFSET_BITS


def format_position(position: int) -> str:
    """Return a position as bookmarks show it, such as `17`, or `17~1` after its first rewind."""
    return str(position) if position < FIRST_REWOUND else f"{offset_of(position)}~{generation_of(position)}"
