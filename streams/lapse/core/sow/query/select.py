"""Select lists: the fields of records that a query or subscription returns (S5, S6).

A list names paths of members. `/id` or `+/id` includes a member, and `-/notes` excludes one. If any path is included,
only included members are returned. `-/` alone has the same effect, as in AMPS. Exclusions are applied last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lapse.core.sow.keys import field_path

MOST_PATHS: Final = 256
"""The greatest number of paths in a list."""

_MOST_STEPS: Final = 64
"""The greatest number of steps in a path."""

_NOTHING: Final = "-/"


class _Fields(dict[str, "_Fields"]):
    """Members by name, each with its own selected members; empty = the whole member."""


@dataclass(frozen=True, slots=True)
class Select:
    """A parsed select list.

    Attributes:
        only: whether only the members in `named` are returned.
        named: the included members.
        left_out: the excluded members.
    """

    only: bool = False
    named: _Fields = field(default_factory=_Fields)
    left_out: _Fields = field(default_factory=_Fields)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Select | None:
        """Parse a list. Return None for an empty one, which selects everything.

        Raises:
            ValueError: a text is not a path of members, or two contradict each other; the message says which and why.
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
                raise ValueError(f"select: {text!r}: {field_path.format_path(path)} is named twice")
            paths[path] = wanted
        for path in (path for path, wanted in paths.items() if wanted):
            within = next((end for end in range(1, len(path)) if paths.get(path[:end]) is False), None)
            if within is not None:
                whole = field_path.format_path(path[:within])
                raise ValueError(
                    f"select: {field_path.format_path(path)} is asked for, and {whole}, of which it is a part, is left "
                    "out; name what is wanted, without the other"
                )
        return cls(only or any(paths.values()), _tree(paths, wanted=True), _tree(paths, wanted=False))

    def select_from(self, payload: object) -> object:
        """Return the selected part of a parsed payload, which is not changed. A payload that is no object is whole."""
        if not isinstance(payload, dict):
            return payload
        kept = _keep_members(payload, self.named) if self.only else payload
        return _drop_members(kept, self.left_out) if self.left_out else kept


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
    """Return the included or excluded paths as nested members. A path inside another one adds nothing."""
    root = _Fields()
    chosen = [path for path, sign in paths.items() if sign is wanted]
    for path in chosen:
        if any(paths.get(path[:end]) is wanted for end in range(1, len(path))):
            continue
        at = root
        for name in path:
            at = at.setdefault(name, _Fields())
    return root


def _keep_members(value: dict[str, Any], named: _Fields) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, inner in named.items():
        if name not in value:
            continue
        member = value[name]
        if not inner:
            kept[name] = member
        elif isinstance(member, dict) and (some := _keep_members(member, inner)):
            kept[name] = some
    return kept


def _drop_members(value: dict[str, Any], left_out: _Fields) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, member in value.items():
        inner = left_out.get(name)
        if inner is None:
            kept[name] = member
        elif inner and isinstance(member, dict):
            kept[name] = _drop_members(member, inner)
        elif inner:
            kept[name] = member
    return kept
