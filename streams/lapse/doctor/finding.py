"""One result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The severity of a finding."""

    FINE = "fine"
    WARNING = "warning"
    """It works, but may not be intended."""

    WRONG = "wrong"
    """Something does not work because of it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    Attributes:
        about: the subject, in one or two words.
        verdict: the severity.
        text: what was found, for people.
        remedy: what to do about it; empty if nothing.
    """

    about: str
    verdict: Verdict
    text: str
    remedy: str = ""


def fine(about: str, text: str) -> Finding:
    """Return a finding on which nobody must act."""
    return Finding(about, Verdict.FINE, text)


def warning(about: str, text: str, remedy: str = "") -> Finding:
    """Return a finding that may be intended."""
    return Finding(about, Verdict.WARNING, text, remedy)


def wrong(about: str, text: str, remedy: str) -> Finding:
    """Return a finding that prevents something from working."""
    return Finding(about, Verdict.WRONG, text, remedy)
