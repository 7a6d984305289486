"""Generations: how often the messages of a partition were brought back by a rewind (Q22, C61).

A message that a rewind brings back is another message than before, behind the same record. Its *position* names both:
the record's offset, with the generation in the bits above `OFFSET_BITS`. The position of a message that never left is
its offset, so a queue that was never rewound knows nothing of all this.
"""

from __future__ import annotations

from typing import Final

OFFSET_BITS: Final = 48
"""An offset has so many bits at most: a million records a second fill them in nine years."""

FIRST_REWOUND: Final = 1 << OFFSET_BITS
"""Every position from here on is of a message that a rewind brought back."""

MOST_GENERATIONS: Final = (1 << 14) - 1
"""How often a partition can be rewound."""

_OFFSET: Final = FIRST_REWOUND - 1


def position_of(offset: int, generation: int) -> int:
    """The position of a message: its record's offset in a generation."""
    return offset + (generation << OFFSET_BITS)


def offset_of(position: int) -> int:
    """The offset of the record behind a position."""
    return position & _OFFSET


def generation_of(position: int) -> int:
    """The generation of a position; 0 = no rewind brought it back."""
    return position >> OFFSET_BITS


def shown(position: int) -> str:
    """A position as bookmarks show it: `17`, or `17~1` in its first generation."""
    return str(position) if position < FIRST_REWOUND else f"{offset_of(position)}~{generation_of(position)}"
