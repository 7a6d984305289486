"""Definitions of entities in the definitions topic: settings, version and origin (Q23, C64).

The topic is compacted and keyed by the entity's name. The settings are those of `[queue.<name>]` or `[sow.<name>]`, as
written. Files that they name are relative to each worker's own `lapse.toml`.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

import orjson
from pydantic import ValidationError

from lapse.config import expiry_function
from lapse.config.document import describe_fault
from lapse.config.entity_config import QueueConfig, SowConfig
from lapse.config.recovery_point import BEGINNING
from lapse.config.root import Config
from lapse.config.topic import with_topic_lifetimes

Kind = Literal["queue", "sow"]

WORD: Final[Mapping[Kind, str]] = {"queue": "queue", "sow": "SOW topic"}
"""The name of each kind of entity for people."""

FROM_FILE: Final = "lapse.toml"
"""The origin of definitions that `lapse apply` wrote."""

UNDEFINED: Final = 0
"""The version of definitions from a worker's own file, before `lapse apply` has defined anything."""

_NEVER: Final = frozenset({"partitions"})
"""Settings that never change. `lapse queue partitions` adds shards to a queue without changing its definition."""

_ONLY_EMPTY: Final = frozenset(
    {"semantics", "ordering", "priority", "group_by", "barrier", "value_format", "value_schema", "key"}
)
"""Settings that decide how live messages and records are kept, ordered and read (C65)."""

_TOPICS: Final = frozenset({"topics", "topic", "topic_pattern"})
"""Settings that name the topics that an entity reads. A topic that it no longer reads may have live messages."""


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of an entity.

    Attributes:
        name: name of the entity.
        kind: queue or SOW topic.
        version: 1 for the first definition, and one more for each change.
        origin: the origin of the definition, for people.
        settings: the content of the entity's table.
        command: id of the client's command that made it, to recognize a repeated command; empty = none.
        made: topics that were created with a temporary entity and may be deleted with it: those that it reads, its
            events and its dead letters (C65).
    """

    name: str
    kind: Kind
    version: int
    origin: str
    settings: Mapping[str, Any]
    command: str = ""
    made: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the value of the definition's record."""
        settings = dict(self.settings)
        value: dict[str, Any] = {
            "kind": self.kind,
            "version": self.version,
            "origin": self.origin,
            "settings": settings,
        }
        value |= {"command": self.command} if self.command else {}
        value |= {"made": self.made} if self.made else {}
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)

    @classmethod
    def decode(cls, name: str, value: bytes) -> Self:
        """Read the value of a record.

        Raises:
            ValueError: the value is not a definition; the message says why.
        """
        try:
            tree = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"definition of {name}: no JSON: {error}") from error
        expected = {"kind": str, "version": int, "origin": str, "settings": dict}
        for key, kind in expected.items():
            if not isinstance(tree, dict) or not isinstance(tree.get(key), kind):
                raise ValueError(f"definition of {name}: {key} is missing, or is no {kind.__name__}")
        if tree["kind"] not in ("queue", "sow") or tree["version"] < 1:
            raise ValueError(f'definition of {name}: kind has to be "queue" or "sow", and version 1 or more')
        command, made = tree.get("command", ""), tree.get("made", [])
        if not isinstance(made, list) or not all(isinstance(one, str) for one in (command, *made)):
            raise ValueError(f"definition of {name}: command is no text, or made is no list of them")
        return cls(name, **{key: tree[key] for key in expected}, command=command, made=tuple(made))

    def config(self, beside: Path) -> QueueConfig | SowConfig:
        """Return the settings, checked.

        Args:
            beside: directory of the files that they name.

        Raises:
            ValueError: the settings are invalid; the message says what is wrong.
        """
        model: type[QueueConfig | SowConfig] = QueueConfig if self.kind == "queue" else SowConfig
        try:
            return model.model_validate(dict(self.settings), context={"beside": beside})
        except ValidationError as error:
            path, fault = describe_fault(error.errors()[0], (self.kind, self.name))
            raise ValueError(f"definition of {self.name}: {'.'.join(path[2:])}: {fault}") from error


def in_file(path: Path) -> dict[str, Definition]:
    """Return the definitions, of version 1, in a checked `lapse.toml`, by name.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not TOML.
    """
    tree = with_topic_lifetimes(tomllib.loads(path.read_text("utf-8-sig")))
    found: dict[str, Definition] = {}
    kinds: tuple[Kind, ...] = ("queue", "sow")
    for kind in kinds:
        for name, settings in tree.get(kind, {}).items():
            found[name] = Definition(name, kind, 1, FROM_FILE, settings)
    return found


def _nothing(topic: str) -> bool:
    """Keep no topic."""
    return False


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """The change of a definition.

    Attributes:
        before: the current definition; None = none.
        after: the new definition, of the next version.
        keys: names of the settings that differ; empty for a new entity.
        kept: returns whether a queue goes on reading a topic.
    """

    before: Definition | None
    after: Definition
    keys: tuple[str, ...] = ()
    kept: Callable[[str], bool] = field(default=_nothing, compare=False, repr=False)

    @property
    def begins_anew(self) -> bool:
        """Whether a queue begins at its `recovery_point` with this change: it is new, or that is another (Q16)."""
        return self.before is None or BEGINNING in self.keys

    def refusal(self, live: Mapping[str, int] | None) -> str:
        """Return why the change is not allowed, and what to do instead; empty = it is allowed (C65).

        Args:
            live: numbers of live messages or records of the entity, by underlying topic; None = not known.
        """
        name = self.after.name
        if self.before is None:
            return ""
        if self.before.kind != self.after.kind:
            return f"{name} is a {WORD[self.before.kind]}; delete it first, or take another name for the new one"
        if never := sorted(_NEVER.intersection(self.keys)):
            more = f"`lapse queue partitions {name}` gives it more, and this key stays; or t"
            return (
                f"{name}: {', '.join(never)} cannot change: it keeps the shards that it was created with. "
                f"{more if self.after.kind == 'queue' else 'T'}ake a new name for an entity over the same topics"
            )
        held = self.keys_that_need_empty
        count = None if live is None else sum(live[topic] for topic in live if self.bars(topic))
        if not held or count == 0:
            return ""
        if count is None:
            return (
                f"{name}: {', '.join(held)} cannot change while anything is live, and no worker says whether something "
                "is. Start the workers, and apply again"
            )
        what = "anything of a topic that is taken away is live" if self.only_takes_topics else "anything is live"
        return (
            f"{name}: {', '.join(held)} cannot change while {what}: {count:,} are. Let them be settled or "
            "expire, or purge them; or take a new name for an entity over the same topics"
        )

    @property
    def only_takes_topics(self) -> bool:
        """Whether messages of topics that stay allow the change, since nothing but the topics is different for them."""
        return _ONLY_EMPTY.isdisjoint(self.keys)

    def bars(self, topic: str) -> bool:
        """Return whether live messages of an underlying topic forbid the change; `""` is an unknown topic."""
        # A pattern may match the empty text, which names no topic.
        return not (topic and self.only_takes_topics and self.kept(topic))

    @property
    def keys_that_need_empty(self) -> list[str]:
        """The settings that can change only if nothing is live."""
        return [key for key in self.keys if key in _ONLY_EMPTY or key in _TOPICS]

    @property
    def at_run_time(self) -> bool:
        """Whether running workers adopt the change by taking their shards over again."""
        before = self.before
        return before is not None and before.kind == self.after.kind and _NEVER.isdisjoint(self.keys)


def find_change(before: Definition | None, after: Definition, beside: Path) -> DefinitionChange | None:
    """Return the change between two definitions of one name; None if they are equal.

    Spelling does not matter: `"60s"` equals `"1m"`, and a default may be written or left out.

    Args:
        before: the current definition; None = none.
        after: the new definition, of the next version.
        beside: directory of the files that they name.

    Raises:
        ValueError: a definition is invalid; the message says why.
    """
    if before is None:
        return DefinitionChange(None, after)
    new = after.config(beside)
    if before.kind == after.kind and before.settings == after.settings:
        return None
    if before.kind != after.kind:
        return DefinitionChange(before, after)
    old = before.config(beside)
    keys = [key for key in type(new).model_fields if getattr(old, key) != getattr(new, key)]
    if not keys:
        return None
    kept = (
        (lambda topic: topic in new.underlying(after.name) or new.reads(topic))
        if isinstance(new, QueueConfig)
        else _nothing
    )
    return DefinitionChange(before, after, tuple(_mark_added_topics(keys, old, new, after.name)), kept)


def _mark_added_topics(
    keys: list[str], old: QueueConfig | SowConfig, new: QueueConfig | SowConfig, name: str
) -> list[str]:
    """Return the keys that differ, with `topics` marked as harmless if no topic was removed."""
    if isinstance(old, QueueConfig) and isinstance(new, QueueConfig) and old.topic_pattern == new.topic_pattern:
        kept = set(old.underlying(name)) <= set(new.underlying(name))
        return [f"{key} (more)" if kept and key == "topics" else key for key in keys]
    return keys


def checked_settings(one: Definition, beside: Path) -> QueueConfig | SowConfig:
    """Return the settings of a definition, after checking that the function that they name exists here.

    Raises:
        ValueError: the definition cannot be used here; the message says why.
    """
    settings = one.config(beside)
    if settings.on_expire is not None:
        expiry_function.resolve(settings.on_expire)
    return settings


def with_entity(config: Config, one: Definition, beside: Path) -> Config:
    """Return a configuration with one more entity.

    Raises:
        ValueError: the entity cannot be used here, or conflicts with the others; the message says why.
    """
    settings = checked_settings(one, beside)
    queues, sows = dict(config.queue), dict(config.sow)
    if isinstance(settings, QueueConfig):
        queues[one.name] = settings
    else:
        sows[one.name] = settings
    return _rebuild(config, queues, sows)


def with_entities(
    config: Config, definitions: Iterable[Definition], beside: Path
) -> tuple[Config, dict[str, Definition], dict[str, str]]:
    """Return a configuration with further entities, as far as they are usable and do not conflict.

    Returns:
        The configuration, the added entities by name, and, by name, why each of the others cannot be served.
    """
    given = {one.name: one for one in definitions}
    queues, sows = dict(config.queue), dict(config.sow)
    understood, faults = dict[str, Definition](), dict[str, str]()
    for one in given.values():
        try:
            settings = checked_settings(one, beside)
        except ValueError as error:
            faults[one.name] = str(error)
            continue
        understood[one.name] = one
        if isinstance(settings, QueueConfig):
            queues[one.name] = settings
        else:
            sows[one.name] = settings
    whole, unfit = _with_fitting(config, queues, sows, list(understood), config)
    for name, fault in unfit.items():
        faults[name] = fault
        del understood[name]
    return whole, understood, faults


def with_only_defined(config: Config, definitions: Iterable[Definition], beside: Path) -> Config:
    """Return a configuration with the defined entities only.

    Entities that cannot be used here, or conflict with earlier ones, are left out, because they do not affect the
    others.
    """
    queues: dict[str, QueueConfig] = {}
    sows: dict[str, SowConfig] = {}
    for one in definitions:
        try:
            settings = checked_settings(one, beside)
        except ValueError:
            continue
        if isinstance(settings, QueueConfig):
            queues[one.name] = settings
        else:
            sows[one.name] = settings
    return rebuild_fitting(config, queues, sows)[0]


def conflicts(
    config: Config, there: Iterable[Definition], changed: Iterable[Definition], beside: Path
) -> Mapping[str, str]:
    """Return, by name, why changed definitions cannot be used here, or do not fit beside the others.

    Args:
        config: a configuration of the deployment; its entities do not count.
        there: the current definitions.
        changed: the new and changed ones.
        beside: directory of the files that they name.
    """
    new = {one.name: one for one in changed}
    others = with_only_defined(config, (one for one in there if one.name not in new), beside)
    return with_entities(others, new.values(), beside)[2]


def keep_entities(config: Config, names: Container[str]) -> Config:
    """Return a configuration with only some of its entities."""
    queues = {name: one for name, one in config.queue.items() if name in names}
    sows = {name: one for name, one in config.sow.items() if name in names}
    return config.model_copy(update={"queue": queues, "sow": sows})


def drop_entities(config: Config, names: Container[str]) -> Config:
    """Return a configuration without some of its entities."""
    return keep_entities(config, {name for name in (*config.queue, *config.sow) if name not in names})


def _rebuild(config: Config, queues: dict[str, QueueConfig], sows: dict[str, SowConfig]) -> Config:
    try:
        whole = Config(lapse=config.lapse, security=config.security, queue=queues, sow=sows, users=config.users)
    except ValidationError as error:
        path, fault = describe_fault(error.errors()[0])
        raise ValueError(f"the definitions do not fit together: {'.'.join(path)}: {fault}") from error
    # The file's lifetimes of topics are for queues that are created later. Definitions have had theirs.
    return whole.model_copy(update={"topic": config.topic})


def rebuild_fitting(
    config: Config, queues: dict[str, QueueConfig], sows: dict[str, SowConfig]
) -> tuple[Config, dict[str, str]]:
    """Rebuild with the entities that fit: without those that are invalid by themselves, or conflict with earlier ones.

    An older version of lapse may have allowed the former. Two programs that define entities at the same moment can
    make the latter, since each is checked with what was defined before.

    Returns:
        The configuration, and by name what is wrong with each entity that it leaves out.
    """
    with contextlib.suppress(ValueError):
        return _rebuild(config, queues, sows), {}
    faults: dict[str, str] = {}
    for name in (*queues, *sows):
        queue = {name: queues[name]} if name in queues else {}
        sow = {name: sows[name]} if name in sows else {}
        try:
            Config(lapse=config.lapse, queue=queue, sow=sow)
        except ValidationError as error:
            faults[name] = describe_fault(error.errors()[0])[1]
    names = [name for name in (*queues, *sows) if name not in faults]
    whole, unfit = _with_fitting(config, queues, sows, names, keep_entities(config, ()))
    return whole, {**faults, **unfit}


def _with_fitting(
    config: Config,
    queues: Mapping[str, QueueConfig],
    sows: Mapping[str, SowConfig],
    names: Sequence[str],
    to: Config,
) -> tuple[Config, dict[str, str]]:
    """Add entities to a configuration, in their order and without those that conflict with what is there.

    Args:
        config: has everything but entities.
        queues: the queues, by name.
        sows: the SOW topics, by name.
        names: names of the entities to add.
        to: the configuration that they are added to.

    Returns:
        The configuration, and by name why each of the others does not fit.
    """
    new = {name: queues[name] for name in names if name in queues}
    records = {name: sows[name] for name in names if name in sows}
    try:
        return _rebuild(config, {**to.queue, **new}, {**to.sow, **records}), {}
    except ValueError as error:
        if len(names) < 2:
            return to, dict.fromkeys(names, str(error))
    unfit: dict[str, str] = {}
    for some in (names[: len(names) // 2], names[len(names) // 2 :]):
        to, others = _with_fitting(config, queues, sows, some, to)
        unfit |= others
    return to, unfit
