"""One thing that was looked at, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a thing stands."""

    FINE = "fine"
    WARNING = "warning"
    """It works, and is perhaps not meant."""

    WRONG = "wrong"
    """Something does not work because of it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        about: what was looked at: one word or two.
        verdict: how it stands.
        told: what was found, for people.
        remedy: what to do about it; empty where nothing is to be done.
    """

    about: str
    verdict: Verdict
    told: str
    remedy: str = ""


def fine(about: str, told: str) -> Finding:
    """A finding that nobody has to act on."""
    return Finding(about, Verdict.FINE, told)


def warning(about: str, told: str, remedy: str = "") -> Finding:
    """A finding that may be meant."""
    return Finding(about, Verdict.WARNING, told, remedy)


def wrong(about: str, told: str, remedy: str) -> Finding:
    """A finding that keeps something from working."""
    return Finding(about, Verdict.WRONG, told, remedy)
