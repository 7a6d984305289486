"""Questions of `lapse spark state` that are refused: cases of test_as_of.py and of docs/bad-input.md (X7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import click

from lapse_client import UnknownEntity
from lapse_spark.instant import as_of, queue_as_of
from lapse_spark.option_type import INSTANT

NOW_MS: Final = 1_767_225_600_000


class Case(NamedTuple):
    """A question that is refused.

    Attributes:
        shown: the options.
        ask: what is done with them.
    """

    shown: str
    ask: Callable[[], object]

    @property
    def message(self) -> str:
        """What is told."""
        try:
            self.ask()
        except click.BadParameter as error:
            return error.message
        except (ValueError, UnknownEntity) as error:
            return str(error)
        return ""


def _at(text: str) -> Case:
    return Case(f"`--at {text}`", lambda: as_of.check(INSTANT.convert(text, None, None), NOW_MS))


def _no_such() -> None:
    raise UnknownEntity("queue or SOW topic", "work", ("orders", "works"))


CASES: Final = [
    _at("yesterday"),
    _at("2026-13-01"),
    _at("-5"),
    _at("²"),
    _at("2026-01-01T00:00:01Z"),
    _at("9" * 20),
    _at("1796005591"),
    Case("`--entity work`, unknown", _no_such),
    Case(
        "`--entity work` of two deployments",
        lambda: queue_as_of.journal("work", None, {"a-work-changelog", "b-work-changelog", "lapse.work.commands"}),
    ),
]
