"""Select lists: which fields of the records a query or a subscription returns (S5, S6).

A list names paths of members: `/id` or `+/id` is returned, `-/notes` is not. Where a path is to be returned, nothing is
that no path names; `-/` says the same without one, as in AMPS. What is not to be returned counts last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lapse.core.sow import field_path

MOST_PATHS: Final = 256
"""The greatest number of paths in a list."""

_MOST_STEPS: Final = 64
"""Objects in objects that a path leads through at most."""

_NOTHING: Final = "-/"


class _Fields(dict[str, "_Fields"]):
    """Members by name, each with those of its own that are meant; empty = the whole member."""


@dataclass(frozen=True, slots=True)
class Select:
    """A select list that has been read.

    Attributes:
        only: whether nothing is returned but `named`.
        named: what is returned.
        left_out: what of that is not.
    """

    only: bool = False
    named: _Fields = field(default_factory=_Fields)
    left_out: _Fields = field(default_factory=_Fields)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Select | None:
        """Read a list; None of an empty one, which selects everything.

        Raises:
            ValueError: a text is no path of members, or two contradict each other; it says which and why.
        """
        if not texts:
            return None
        if len(texts) > MOST_PATHS:
            raise ValueError(f"select: {len(texts):,} paths; {MOST_PATHS} is the most in one list")
        paths: dict[tuple[str, ...], bool] = {}
        only = False
        for text in texts:
            if text == _NOTHING:
                only = True
                continue
            path, wanted = _path(text), not text.startswith("-")
            if path in paths:
                raise ValueError(f"select: {text!r}: {field_path.shown(path)} is named twice")
            paths[path] = wanted
        for path in (path for path, wanted in paths.items() if wanted):
            within = next((end for end in range(1, len(path)) if paths.get(path[:end]) is False), None)
            if within is not None:
                whole = field_path.shown(path[:within])
                raise ValueError(
                    f"select: {field_path.shown(path)} is asked for, and {whole}, of which it is a part, is left out; "
                    "name what is wanted, without the other"
                )
        return cls(only or any(paths.values()), _tree(paths, wanted=True), _tree(paths, wanted=False))

    def of(self, payload: object) -> object:
        """What is returned of a parsed payload, which stays as it is; of one that is no object all is."""
        if not isinstance(payload, dict):
            return payload
        kept = _only(payload, self.named) if self.only else payload
        return _without(kept, self.left_out) if self.left_out else kept


def _path(text: str) -> tuple[str, ...]:
    try:
        steps = field_path.parse(text[1:] if text[:1] in ("+", "-") else text)
    except ValueError as error:
        raise ValueError(f"select: {error}. A + or - in front of a path returns it, or leaves it out") from error
    names = tuple(step for step in steps if isinstance(step, str))
    if len(names) < len(steps):
        raise ValueError(f"select: {text!r} names an element of an array; arrays are returned whole or left out")
    if len(names) > _MOST_STEPS:
        raise ValueError(f"select: a path has {len(names)} steps; {_MOST_STEPS} is the most")
    return names


def _tree(paths: dict[tuple[str, ...], bool], *, wanted: bool) -> _Fields:
    """The paths of one sign as members within members; a path within another one of them adds nothing."""
    root = _Fields()
    chosen = [path for path, sign in paths.items() if sign is wanted]
    for path in chosen:
        if any(paths.get(path[:end]) is wanted for end in range(1, len(path))):
            continue
        at = root
        for name in path:
            at = at.setdefault(name, _Fields())
    return root


def _only(value: dict[str, Any], named: _Fields) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, inner in named.items():
        if name not in value:
            continue
        member = value[name]
        if not inner:
            kept[name] = member
        elif isinstance(member, dict) and (some := _only(member, inner)):
            kept[name] = some
    return kept


def _without(value: dict[str, Any], left_out: _Fields) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, member in value.items():
        inner = left_out.get(name)
        if inner is None:
            kept[name] = member
        elif inner and isinstance(member, dict):
            kept[name] = _without(member, inner)
        elif inner:
            kept[name] = member
    return kept
