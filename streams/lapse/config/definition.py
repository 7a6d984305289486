"""The definition of an entity, as the definitions topic holds it: its settings, their version and origin (Q23, C64).

The topic is compacted and keyed by the entity's name. The settings are those of `[queue.<name>]` or `[sow.<name>]`, as
they are written. Files that they name are looked for beside each worker's own `lapse.toml`.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

import orjson
from pydantic import ValidationError

from lapse.config import expiry_function
from lapse.config.document import explained
from lapse.config.entity import QueueConfig, SowConfig
from lapse.config.root import Config
from lapse.config.topic import with_topic_lifetimes

Kind = Literal["queue", "sow"]

WORD: Final[Mapping[Kind, str]] = {"queue": "queue", "sow": "SOW topic"}
"""What people call an entity of each kind."""

FROM_FILE: Final = "lapse.toml"
"""The origin of what `lapse apply` wrote."""

UNDEFINED: Final = 0
"""The version of what only a worker's own file says: `lapse apply` has not defined anything yet."""

_NEVER: Final = frozenset({"partitions"})
"""An entity keeps the shards that it was created with."""

_ONLY_EMPTY: Final = frozenset(
    {"semantics", "ordering", "priority", "group_by", "barrier", "value_format", "value_schema", "key"}
)
"""What decides how live messages and records are kept, ordered and read (C65)."""

_TOPICS: Final = frozenset({"topics", "topic", "topic_pattern"})
"""What says which topics an entity reads; one that it reads no longer may have live messages."""


@dataclass(frozen=True, slots=True)
class Definition:
    """What an entity is.

    Attributes:
        name: the entity.
        kind: a queue or a SOW topic.
        version: 1 for the first one; each change is the next.
        origin: where it came from, for people.
        settings: what stands in its table.
        command: id of the client's command that it came from, which may be carried out twice; empty = from none.
        made: topics that were created with a temporary entity and may go with it: those it reads, its events and its
            dead letters (C65).
    """

    name: str
    kind: Kind
    version: int
    origin: str
    settings: Mapping[str, Any]
    command: str = ""
    made: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The value of its record."""
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
            ValueError: it is no definition; the text says why.
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
        told, made = tree.get("command", ""), tree.get("made", [])
        if not isinstance(made, list) or not all(isinstance(one, str) for one in (told, *made)):
            raise ValueError(f"definition of {name}: command is no text, or made is no list of them")
        return cls(name, **{key: tree[key] for key in expected}, command=told, made=tuple(made))

    def config(self, beside: Path) -> QueueConfig | SowConfig:
        """Its settings, checked.

        Args:
            beside: where the files are that they name.

        Raises:
            ValueError: they say something that lapse does not understand; the text says what.
        """
        model: type[QueueConfig | SowConfig] = QueueConfig if self.kind == "queue" else SowConfig
        try:
            return model.model_validate(dict(self.settings), context={"beside": beside})
        except ValidationError as error:
            path, fault = explained(error.errors()[0], (self.kind, self.name))
            raise ValueError(f"definition of {self.name}: {'.'.join(path[2:])}: {fault}") from error


def in_file(path: Path) -> dict[str, Definition]:
    """The definitions that a `lapse.toml` makes of version 1, by name; the file was checked before.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no TOML.
    """
    tree = with_topic_lifetimes(tomllib.loads(path.read_text("utf-8-sig")))
    found: dict[str, Definition] = {}
    kinds: tuple[Kind, ...] = ("queue", "sow")
    for kind in kinds:
        for name, settings in tree.get(kind, {}).items():
            found[name] = Definition(name, kind, 1, FROM_FILE, settings)
    return found


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """What a definition becomes.

    Attributes:
        before: what it was; None = there was none.
        after: what it is to be, of the next version.
        keys: the settings that differ, by name; those of a new one are not listed.
    """

    before: Definition | None
    after: Definition
    keys: tuple[str, ...] = ()

    def refusal(self, live: int | None) -> str:
        """Why what is there forbids the change, and which way is open; empty = it is allowed (C65).

        Args:
            live: how many messages or records the entity has; None = nobody said.
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
        held = self.asks_for_emptiness
        if not held or live == 0:
            return ""
        if live is None:
            return (
                f"{name}: {', '.join(held)} cannot change while anything is live, and no worker says whether something "
                "is. Start the workers, and apply again"
            )
        return (
            f"{name}: {', '.join(held)} cannot change while anything is live: {live:,} are. Let them be settled or "
            "expire, or purge them; or take a new name for an entity over the same topics"
        )

    @property
    def asks_for_emptiness(self) -> list[str]:
        """The settings that can only change where nothing is live."""
        return [key for key in self.keys if key in _ONLY_EMPTY or key in _TOPICS]

    @property
    def at_run_time(self) -> bool:
        """Whether workers take it up while they run: they take their shards over anew, with all settings but these."""
        before = self.before
        return before is not None and before.kind == self.after.kind and _NEVER.isdisjoint(self.keys)


def change(before: Definition | None, after: Definition, beside: Path) -> DefinitionChange | None:
    """What differs between two definitions of one name; None = nothing.

    Spelling does not count: `"60s"` is `"1m"`, and a default is the same whether it is written or left out.

    Args:
        before: what it is; None = there is none.
        after: what it is to be; its version is that of the next.
        beside: where the files are that they name.

    Raises:
        ValueError: one of them cannot be understood; the text says why.
    """
    if before is None:
        return DefinitionChange(None, after)
    new = after.config(beside)
    if before.kind != after.kind:
        return DefinitionChange(before, after)
    old = before.config(beside)
    keys = [key for key in type(new).model_fields if getattr(old, key) != getattr(new, key)]
    if not keys:
        return None
    return DefinitionChange(before, after, tuple(_widened(keys, old, new, after.name)))


def _widened(keys: list[str], old: QueueConfig | SowConfig, new: QueueConfig | SowConfig, name: str) -> list[str]:
    """The keys that differ; of the topics, only where one is taken away."""
    if isinstance(old, QueueConfig) and isinstance(new, QueueConfig) and old.topic_pattern == new.topic_pattern:
        kept = set(old.underlying(name)) <= set(new.underlying(name))
        return [f"{key} (more)" if kept and key == "topics" else key for key in keys]
    return keys


@dataclass(frozen=True, slots=True)
class Decided:
    """What a worker serves by the definitions.

    Attributes:
        config: the configuration, with the entities that are defined.
        definitions: those that it can serve, by name.
        warnings: what it cannot, and where its own file says otherwise, for the log.
        beside: where the files are that definitions name.
    """

    config: Config
    definitions: Mapping[str, Definition]
    warnings: tuple[str, ...]
    beside: Path


def usable(one: Definition, beside: Path) -> QueueConfig | SowConfig:
    """The settings of a definition, once the function that they name was found here.

    Raises:
        ValueError: they cannot be understood here; the text says why.
    """
    settings = one.config(beside)
    if settings.on_expire is not None:
        expiry_function.resolve(settings.on_expire)
    return settings


def with_entity(config: Config, one: Definition, beside: Path) -> Config:
    """A configuration with one entity more.

    Raises:
        ValueError: it cannot be understood here, or does not fit the others; the text says why.
    """
    settings = usable(one, beside)
    queues, sows = dict(config.queue), dict(config.sow)
    if isinstance(settings, QueueConfig):
        queues[one.name] = settings
    else:
        sows[one.name] = settings
    return _whole(config, queues, sows)


def with_entities(
    config: Config, definitions: Iterable[Definition], beside: Path
) -> tuple[Config, dict[str, Definition], dict[str, str]]:
    """A configuration with further entities, as far as they can be understood and fit.

    Returns:
        The configuration; the entities that it has more, by name; and why each of the others cannot be served.
    """
    given = {one.name: one for one in definitions}
    queues, sows = dict(config.queue), dict(config.sow)
    understood, faults = dict[str, Definition](), dict[str, str]()
    for one in given.values():
        try:
            settings = usable(one, beside)
        except ValueError as error:
            faults[one.name] = str(error)
            continue
        understood[one.name] = one
        if isinstance(settings, QueueConfig):
            queues[one.name] = settings
        else:
            sows[one.name] = settings
    with contextlib.suppress(ValueError):
        return _whole(config, queues, sows), understood, faults
    whole = config  # some do not fit: one by one it is seen which
    for one in list(understood.values()):
        try:
            whole = with_entity(whole, one, beside)
        except ValueError as error:
            faults[one.name] = str(error)
            del understood[one.name]
    return whole, understood, faults


def among(config: Config, definitions: Iterable[Definition], beside: Path) -> Config:
    """A configuration with the entities that are defined, and no others.

    Those that cannot be understood here are left out: they concern nobody else.

    Raises:
        ValueError: the others do not fit together; the text says why.
    """
    queues: dict[str, QueueConfig] = {}
    sows: dict[str, SowConfig] = {}
    for one in definitions:
        try:
            settings = usable(one, beside)
        except ValueError:
            continue
        if isinstance(settings, QueueConfig):
            queues[one.name] = settings
        else:
            sows[one.name] = settings
    return _whole(config, queues, sows)


def only(config: Config, names: Container[str]) -> Config:
    """A configuration with some of its entities."""
    queues = {name: one for name, one in config.queue.items() if name in names}
    sows = {name: one for name, one in config.sow.items() if name in names}
    return config.model_copy(update={"queue": queues, "sow": sows})


def without(config: Config, names: Container[str]) -> Config:
    """A configuration without some of its entities."""
    return only(config, {name for name in (*config.queue, *config.sow) if name not in names})


def with_settings(config: Config, name: str, settings: QueueConfig | SowConfig) -> Config:
    """A configuration in which an entity has other settings, which were checked before."""
    key = "queue" if isinstance(settings, QueueConfig) else "sow"
    return config.model_copy(update={key: {**getattr(config, key), name: settings}})


def _whole(config: Config, queues: dict[str, QueueConfig], sows: dict[str, SowConfig]) -> Config:
    try:
        return Config(lapse=config.lapse, security=config.security, queue=queues, sow=sows, users=config.users)
    except ValidationError as error:
        path, fault = explained(error.errors()[0])
        raise ValueError(f"the definitions do not fit together: {'.'.join(path)}: {fault}") from error


def undecided(path: Path, config: Config, topic: str) -> Decided:
    """What a worker serves while no topic holds definitions: what its file says, until `lapse apply` has defined it.

    Args:
        path: the file, which was checked.
        config: what it says.
        topic: where the definitions are going to be.
    """
    warning = (
        f"{topic} is not there, or we may not see it: each worker serves what its own {path.name} says. `lapse apply` "
        "defines it for all of them"
    )
    own = {name: replace(one, version=UNDEFINED) for name, one in in_file(path).items()}
    return Decided(config, own, (warning,), path.absolute().parent)


def decide(path: Path, config: Config, found: Mapping[str, bytes]) -> Decided:
    """Replace the entities of a `lapse.toml` by those that are defined.

    A definition that this worker cannot understand concerns its own entity only.

    Args:
        path: the file, which was checked.
        config: what it says.
        found: what the definitions topic holds.

    Raises:
        ValueError: the definitions do not fit together; the text says why.
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
            settings = usable(one, beside)
            differs = change(one, own[name], beside) if name in own else None
        except ValueError as error:
            warnings.append(f"{error}; {name} is not served here. Mend it, or use the same version of lapse everywhere")
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
    warnings += [
        f"{name} is in {path.name}, and not defined: it is not served until `lapse apply` has defined it"
        for name in own
        if name not in found
    ]
    return Decided(_whole(config, queues, sows), definitions, tuple(warnings), beside)
