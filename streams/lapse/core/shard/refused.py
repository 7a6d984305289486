"""The refusal of a command by a shard (X2)."""

from __future__ import annotations

from lapse.core.error_code import ErrorCode, Refusal


class CommandRefused(ValueError):
    """A command is not carried out. The text says what to change.

    Attributes:
        refusal: the text with its code.
    """

    def __init__(self, text: str, code: ErrorCode = ErrorCode.INVALID_ARGUMENT) -> None:
        super().__init__(text)
        self.refusal = Refusal(code, text)
