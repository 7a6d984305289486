"""The error of a link of `lapse replicate` that cannot work."""

from typing import Final

GRANT: Final = (
    "Have the rights granted that docs/operations.md (Rights) lists for `lapse replicate`, and start it again"
)
"""What to do if a right is missing."""


class LinkError(RuntimeError):
    """A link that cannot work; the text says what to change."""
