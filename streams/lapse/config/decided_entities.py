"""The entities that a worker serves by the definitions, or before there are any by its own file (Q23, C64)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class DecidedEntities:
    """The entities that a worker serves by the definitions.

    Attributes:
        config: the configuration with the defined entities.
        definitions: the definitions that it can serve, by name.
        warnings: texts for the log about definitions that it cannot serve, and about differences from its own file.
        beside: directory of the files that definitions name.
        offsets: the offset of each definition in the definitions topic. What is behind it is news.
    """

    config: Config
    definitions: Mapping[str, Definition]
    warnings: tuple[str, ...]
    beside: Path
    offsets: Mapping[str, int] = field(default_factory=dict)


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
            warnings.append(
                f"{path.name} says otherwise of {name} ({', '.join(differs.keys) or 'its kind'}): version "
                f"{one.version} of its definition counts. `lapse apply` changes it"
            )
    whole, faults = rebuild_fitting(config, queues, sows)
    for name, fault in faults.items():
        del definitions[name]
        warnings.append(_unserved(name, f"definition of {name}: {fault}"))
    warnings += [
        f"{name} is in {path.name}, and not defined: it is not served until `lapse apply` has defined it"
        for name in own
        if name not in found
    ]
    return DecidedEntities(whole, definitions, tuple(warnings), beside)


def _unserved(name: str, fault: str) -> str:
    return f"{fault}; {name} is not served here. Mend it, or use the same version of lapse everywhere"
