"""The entities that a worker serves by the definitions, or before there are any by its own file (Q23, C64)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from lapse.config.definition import (
    UNDEFINED,
    Definition,
    checked_settings,
    find_change,
    in_file,
    rebuild_fitting,
)
from lapse.config.entity_config import QueueConfig, SowConfig
from lapse.config.root import Config

_MOST_NAMED: Final = 5
"""How many entities a warning names at most, since a file may have hundreds."""


@dataclass(frozen=True, slots=True)
class DecidedEntities:
    """The entities that a worker serves by the definitions.

    Attributes:
        config: the configuration with the defined entities.
        definitions: the definitions that it can serve, by name.
        warnings: texts for the log about definitions that it cannot serve, and about differences from its own file.
        beside: directory of the files that definitions name.
        offsets: the offset of each definition in the definitions topic. What is behind it is news.
        undefined: entities of its own file that are not defined.
        differing: entities of which its own file says otherwise, with the settings that differ.
    """

    config: Config
    definitions: Mapping[str, Definition]
    warnings: tuple[str, ...]
    beside: Path
    offsets: Mapping[str, int] = field(default_factory=dict)
    undefined: tuple[str, ...] = ()
    differing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def before_definitions(path: Path, config: Config, topic: str) -> DecidedEntities:
    """Return what a worker serves before `lapse apply` has defined anything: the entities of its own file.

    Args:
        path: the checked file.
        config: its content.
        topic: name of the definitions topic.
    """
    warning = (
        f"{topic} is not there, or we may not see it: each worker serves what its own {path.name} says. `lapse apply` "
        "defines it for all of them"
    )
    own = {name: replace(one, version=UNDEFINED) for name, one in in_file(path).items()}
    return DecidedEntities(config, own, (warning,), path.absolute().parent)


def decide(path: Path, config: Config, found: Mapping[str, bytes]) -> DecidedEntities:
    """Replace the entities of a `lapse.toml` by the defined ones.

    A definition that this worker cannot use, or that conflicts with an earlier one, affects only its own entity.

    Args:
        path: the checked file.
        config: its content.
        found: the values in the definitions topic, by name, in the order of their records.
    """
    beside = path.absolute().parent
    warnings: list[str] = []
    definitions: dict[str, Definition] = {}
    queues: dict[str, QueueConfig] = {}
    sows: dict[str, SowConfig] = {}
    differing: dict[str, tuple[str, ...]] = {}
    versions: dict[str, int] = {}
    own = in_file(path)
    for name, value in found.items():
        try:
            one = Definition.decode(name, value)
            settings = checked_settings(one, beside)
            differs = find_change(one, own[name], beside) if name in own else None
        except ValueError as error:
            warnings.append(_unserved(name, str(error)))
            continue
        definitions[name] = one
        if isinstance(settings, QueueConfig):
            queues[name] = settings
        else:
            sows[name] = settings
        if differs is not None:
            differing[name], versions[name] = tuple(differs.keys), one.version
    whole, faults = rebuild_fitting(config, queues, sows)
    for name, fault in faults.items():
        del definitions[name]
        warnings.append(_unserved(name, f"definition of {name}: {fault}"))
    undefined = tuple(name for name in own if name not in found)
    warnings += [*_differing_text(path.name, differing, versions), *_undefined_text(path.name, undefined)]
    return DecidedEntities(whole, definitions, tuple(warnings), beside, undefined=undefined, differing=differing)


def _undefined_text(file: str, names: Sequence[str]) -> list[str]:
    """Return a warning of entities of a file that are not defined; empty if there are none."""
    if len(names) < 2:
        once = "and not defined: it is not served until `lapse apply` has defined it"
        return [f"{name} is in {file}, {once}" for name in names]
    text = "are not defined, and not served until `lapse apply` has defined them"
    return [f"{len(names):,} entities of {file} {text}: {_first(names)}"]


def _differing_text(file: str, differing: Mapping[str, Sequence[str]], versions: Mapping[str, int]) -> list[str]:
    """Return a warning of entities of which a file says otherwise; empty if there are none."""
    named = [f"{name} ({', '.join(keys) or 'its kind'})" for name, keys in differing.items()]
    if len(named) < 2:
        what = "of its definition counts. `lapse apply` changes it"
        return [f"{file} says otherwise of {named[0]}: version {one} {what}" for one in versions.values()]
    text = "their definitions count, and `lapse apply` changes them"
    return [f"{file} says otherwise of {len(named):,} entities, {text}: {_first(named)}"]


def _first(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _unserved(name: str, fault: str) -> str:
    return f"{fault}; {name} is not served here. Mend it, or use the same version of lapse everywhere"
