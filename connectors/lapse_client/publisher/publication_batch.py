"""Batches of publications with one common future, which costs less than a future for each."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from lapse.protocol.bookmark import Bookmark
from lapse_client.error import InvalidPublication, LapseError
from lapse_client.publisher.publication import BuiltHeaders, Headers, headers

Publication = tuple[Any, str | bytes | None, Headers | None, Mapping[str, Any]]
"""Value, key, headers, and further options of `Publisher.submit`."""

Outcome = Bookmark | LapseError
"""The bookmark of a published record, or the error."""

_PARTS: Final = 4
_OPTIONS: Final = tuple(
    name for name, one in inspect.signature(headers).parameters.items() if one.kind is one.KEYWORD_ONLY
)


def built_headers(publications: Sequence[Publication]) -> list[BuiltHeaders | InvalidPublication]:
    """Build the headers of each publication; those with a value out of range have the error instead.

    Raises:
        InvalidPublication: a publication does not consist of four parts, or has an unknown option.
    """
    return [_built(at, publication) for at, publication in enumerate(publications)]


def _built(at: int, publication: object) -> BuiltHeaders | InvalidPublication:
    where = f"record {at}"
    if not isinstance(publication, tuple | list) or len(publication) != _PARTS:
        raise InvalidPublication(
            f"{where}: {_shown(publication)}: expected value, key, headers and options; nothing was sent"
        )
    value, _, own, options = publication
    if not isinstance(options, Mapping):
        raise InvalidPublication(f"{where}: options: {_shown(options)}: expected a mapping; nothing was sent")
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise InvalidPublication(
            f"{where}: option {_shown(unknown[0])}: expected one of {', '.join(_OPTIONS)}; nothing was sent"
        )
    try:
        return headers(value, own, **options)
    except InvalidPublication as error:
        return error


def _shown(value: object) -> str:
    return f"{value!r:.80}"


class PublicationBatch:
    """Collects the outcomes of publications. Any thread may report them.

    Args:
        count: number of publications.

    Attributes:
        future: gets the outcomes of all publications, in their order, when the last one is known.
    """

    def __init__(self, count: int) -> None:
        self.future: Future[list[Outcome]] = Future()
        self._outcomes: list[Outcome] = [LapseError("no outcome yet")] * count
        self._reported = itertools.count(1)  # its `next` is atomic, so threads need no lock
        if not count:
            self.future.set_result([])

    def set_outcome(self, at: int, outcome: Outcome) -> None:
        """Set the outcome of the publication at an index; called once for each."""
        self._outcomes[at] = outcome
        if next(self._reported) == len(self._outcomes) and self.future.set_running_or_notify_cancel():
            self.future.set_result(self._outcomes)
