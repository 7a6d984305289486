"""Complaints: turn the parser's syntax errors into errors that say what to do (X1)."""

from __future__ import annotations

import re
from typing import Final, cast

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from lapse.core.expression.error import ExpressionError

_WORD: Final = re.compile(r"[A-Za-z_][\w.]*")
_LAST_WORD: Final = re.compile(r"(/?)\b([A-Za-z_][A-Za-z0-9_]*)$")
_VALUE: Final = "a value: a path such as /price, a number, a text in quotes or a function"
_TEXT: Final = """(?:'[^']*'|"[^"]*")"""
_AFTER: Final = tuple(
    (re.compile(f"(?:{pattern})$", re.IGNORECASE), expected, hint)
    for pattern, expected, hint in (
        (r"\bLIKE", "a pattern in quotes", "the pattern of LIKE is a literal, such as LIKE '^A'"),
        (rf"\b(?:BEGINS|ENDS)\s+WITH\s*(?:\((?:\s*{_TEXT}\s*,)*)?", "a text in quotes", "write BEGINS WITH ('a', 'b')"),
        (r"\b(?:BEGINS|ENDS)", "WITH", "write BEGINS WITH ('a', 'b')"),
        (r"\bIN", "a list in parentheses", "write IN (1, 2, 3)"),
        (r"\bIS(?:\s+NOT)?", "NULL or NAN", "write IS NULL, IS NOT NULL or IS NAN"),
        (r"\bCASE", "WHEN", "write CASE WHEN condition THEN value ELSE value END"),
    )
)
_OPTIONS: Final = (
    ("COMPARE", "", "an operator"),
    ("_AND", "", "an operator"),
    ("_IN", "", "IN, BETWEEN, LIKE, BEGINS WITH or ENDS WITH"),
    ("_THEN", "CASE", "THEN"),
    ("_END", "CASE", "END"),
    ("COMMA", "(", "a comma"),
    ("RPAR", "(", "a closing parenthesis"),
    ("$END", "", "the end"),
)
"""Terminals that the parser accepts, the text that must precede to make them plausible, and their names."""


def explain_syntax_error(error: UnexpectedInput, text: str) -> ExpressionError:
    """Return the error that explains why the parser stopped."""
    position, found = _find_fault(error, text)
    before = text[:position].rstrip()
    accepted = _accepted_terminals(error)
    word = _LAST_WORD.search(before) if "LPAR" in accepted and "PATH" not in accepted else None
    if word and not _expected_after(before):
        return _stray_word(word, text)
    expected, hint = _expected_after(before) or (_expected(accepted, before), "")
    message = f"unexpected {_quote_found(found)}" if found else "the expression ends too early"
    hint = _hint(found, text, position) or hint
    return ExpressionError(f"{message}; expected {expected}", text, position, length=len(found), hint=hint)


def _find_fault(error: UnexpectedInput, text: str) -> tuple[int, str]:
    """Return the position at which the parser stopped, and the text found there, empty at the end."""
    if isinstance(error, UnexpectedCharacters):
        position = cast("int", error.pos_in_stream)
        word = _WORD.match(text, position)
        return position, word[0] if word else text[position : position + 1]
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        return error.token.start_pos or 0, str(error.token)
    return len(text), ""


def _accepted_terminals(error: UnexpectedInput) -> set[str]:
    """Return the terminals that the parser would have accepted."""
    if isinstance(error, UnexpectedToken):
        return set(error.accepts or error.expected)
    return set(error.allowed or ()) if isinstance(error, UnexpectedCharacters) else set()


def _stray_word(word: re.Match[str], text: str) -> ExpressionError:
    """Return the error for a name that is no keyword and no path, and is not followed by a parenthesis."""
    slash, name = word.groups()
    hint = f"a field is written with a slash: /{name}; a text is written in quotes: '{name}'"
    attached = text[: word.start()][-1:]
    if attached in ("-", "."):
        hint = f"a name with other characters than letters, digits and _ is quoted, such as /'order{attached}{name}'"
    if slash:
        hint = f"to divide by the field {name} write two slashes: / /{name}"
    message = f"{_quote_found(name)} is neither a field nor a text nor a function"
    return ExpressionError(message, text, word.start(2), length=len(name), hint=hint)


def _quote_found(found: str) -> str:
    return found if len(found) <= 30 else found[:30] + "…"


def _expected_after(before: str) -> tuple[str, str] | None:
    """Return what must follow the text before the fault, and a hint; None if nothing special."""
    for pattern, expected, hint in _AFTER:
        if pattern.search(before[-200:]):
            return expected, hint
    return None


def _expected(accepted: set[str], before: str) -> str:
    """Return a text that says what the parser would have accepted."""
    if "PATH" in accepted:
        return _VALUE
    upper = before.upper()
    options = [name for terminal, needs, name in _OPTIONS if terminal in accepted and needs in upper]
    if "an operator" in options:
        options = [option for option in options if not option.startswith("IN,")]
    return " or ".join(dict.fromkeys(options)) or "something else"


def _index_hint(text: str, position: int) -> str:
    if re.match(r"\[[0-9]{10}", text[position:]):
        return "an index has at most 9 digits"
    if re.search(r"\s$", text[:position]):
        return "an index stands right behind its path, such as /a[0]"
    return "an index is a number from 0, such as /a[0]; to look at all elements use ARRAY_CONTAINS(/a, value)"


def _hint(found: str, text: str, position: int) -> str:
    """Return a hint derived from the text that was found; empty without one."""
    first = found[:1]
    if first in ("'", '"') and text.count(first, position) % 2:
        return f"this text has no closing {first}; a quote inside a text is doubled"
    if first == "[":
        return _index_hint(text, position)
    if first in ("&", "|"):
        return "write AND and OR, or && and ||"
    return "quote strange names in a path, such as /'order-id'" if first in tuple("@#$:.`\\") else ""
