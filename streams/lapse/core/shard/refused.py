"""A command that a shard refuses (X2)."""

from __future__ import annotations

from lapse.core.error_code import ErrorCode, Refusal


class CommandRefused(ValueError):
    """A command that is not done; the text says what to change.

    Attributes:
        refusal: the text, and its code.
    """

    def __init__(self, text: str, code: ErrorCode = ErrorCode.INVALID_ARGUMENT) -> None:
        super().__init__(text)
        self.refusal = Refusal(code, text)
