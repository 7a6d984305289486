"""Limits that keep a hostile or mistaken expression harmless (X1, X7).

An expression that exceeds a limit is refused when it is compiled. The limits on lengths of texts at evaluation make the
result NULL instead, because evaluation never raises.
"""

from __future__ import annotations

from typing import Final

MAX_TEXT: Final = 16_384
"""Characters in the text of an expression."""

MAX_HEIGHT: Final = 100
"""Levels of nesting. A chain of `+` counts one level per operand, a chain of `AND` or `OR` one in all."""

MAX_NODES: Final = 2_000
"""Literals, paths, operators and calls in one expression."""

MAX_ITEMS: Final = 1_000
"""Entries of one `IN (…)`, `BEGINS WITH (…)` or `ENDS WITH (…)` list."""

MAX_ARGUMENTS: Final = 64
"""Arguments of one function call."""

MAX_BRANCHES: Final = 64
"""`WHEN` branches of one `CASE`."""

MAX_PRODUCTS: Final = 32
"""Multiplications in one expression, since integers are exact and products of huge ones grow."""

MAX_SCANS: Final = 100
"""`LIKE` patterns and calls of string and array functions in one expression, since each may read a whole text."""

MAX_NUMBER: Final = 64
"""Characters of one number literal."""

MAX_PATTERN: Final = 256
"""Characters of a `LIKE` pattern."""

MAX_CHOICES: Final = 1_000
"""Product of the alternatives (`a|b`, `x?`, `x{1,3}`) that a `LIKE` pattern offers its matcher."""

MAX_REPEATS: Final = 3
"""Unbounded repeats (`*`, `+`, `{n,}`) and back-references (`\\1`) in a `LIKE` pattern."""

MAX_SUBJECT: Final = (65_536, 8_192, 1_024, 256)
"""Longest text that a `LIKE` pattern is tried on, by its number of unbounded repeats and back-references.

The number is one less if the pattern starts with `^`. A longer text yields NULL. Patterns that are plain text tests
(`^abc`, `abc$`, `^(a|b)$`, `abc`) have no such limit.
"""

MAX_STEPS: Final = 1_000_000
"""The greatest number of steps that a `LIKE` pattern may need on one text if RE2 cannot search for it.

The number is the length of the text, to the power of the number of unbounded repeats and back-references (one more
unless the pattern starts with `^`), times its choices, times its characters. A longer text yields NULL.
"""

MAX_STRING: Final = 1_048_576
"""Longest text that a function builds. A longer result is NULL."""
