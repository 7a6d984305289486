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
        told: what was found, for people.
        remedy: what to do about it; empty if nothing.
    """

    about: str
    verdict: Verdict
    told: str
    remedy: str = ""


def fine(about: str, told: str) -> Finding:
    """Return a finding on which nobody must act."""
    return Finding(about, Verdict.FINE, told)


def warning(about: str, told: str, remedy: str = "") -> Finding:
    """Return a finding that may be intended."""
    return Finding(about, Verdict.WARNING, told, remedy)


def wrong(about: str, told: str, remedy: str) -> Finding:
    """Return a finding that prevents something from working."""
    return Finding(about, Verdict.WRONG, told, remedy)
