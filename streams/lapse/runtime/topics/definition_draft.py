"""The draft of a definition: a request, compared with the current definition and the cluster (Q23).

All requests are handled like this: those of `lapse queue create` and similar commands, and those of clients, which
workers carry out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from lapse.config import Config, QueueConfig, SowConfig
from lapse.config.definition import (
    WORD,
    Definition,
    DefinitionChange,
    Kind,
    find_change,
    keep_entities,
    with_entity,
    with_only_defined,
)
from lapse.config.early_beginning import early_beginning
from lapse.config.retry import RetryConfig
from lapse.config.topic import with_lifetimes
from lapse.core.duration import in_words
from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.near_name import nearest
from lapse.protocol import topic as names
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.difference import Difference
from lapse.runtime.topics.topology import TopologyError
from lapse.runtime.topics.wanted import Role

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_MOST_NAMED: Final = 20

_MOST_CREATED: Final = 10_000
"""The greatest number of partitions that one command of a client creates (C67)."""


class Refused(Exception):
    """A definition is refused.

    Args:
        code: the reason for programs.
        text: the reason for people.

    Attributes:
        refusal: the reason, for programs and for people.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.refusal = Refusal(code, text)


@dataclass(frozen=True, slots=True)
class Request:
    """A request for a definition.

    Attributes:
        name: name of the entity.
        kind: `queue` or `sow`.
        settings: settings as in `lapse.toml`. A change has only those that differ, and None removes a setting.
        origin: who asks, for people.
        new: whether the entity is to be created; otherwise it is to be changed.
        version: the version on which a change is based; None for the current one.
        command: id of the command, to recognise it when it is carried out again; empty if there is none.
    """

    name: str
    kind: Kind
    settings: Mapping[str, Any]
    origin: str
    new: bool
    version: int | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """The definition that a request leads to.

    Attributes:
        after: the new definition; the current one if nothing differs.
        differs: what changes; None if nothing does.
        config: a configuration with all definitions, including this one.
        repeated: whether the request was carried out before.
    """

    after: Definition
    differs: DefinitionChange | None
    config: Config = field(repr=False)
    repeated: bool = False

    @property
    def is_new(self) -> bool:
        """Whether this request changes something, or did so when it was carried out before."""
        return self.differs is not None or self.repeated

    def as_new_entity(self, request: Request) -> Draft:
        """Return the draft of a new entity with the next version, for a deleted entity that is still defined."""
        after = replace(self.after, version=self.after.version + 1, origin=request.origin, command=request.command)
        return replace(self, after=after, differs=DefinitionChange(None, after))

    def with_topics(self, differences: Iterable[Difference], made_before: Iterable[str] = ()) -> Draft:
        """Return the draft with the topics that a new temporary entity creates, and deletes at its end (C65).

        Args:
            differences: what is lacking. Its topics are created.
            made_before: topics that an earlier try of the same request created.
        """
        entities: Mapping[str, QueueConfig | SowConfig] = {**self.config.queue, **self.config.sow}
        name = self.after.name
        entity = entities.get(name)
        if entity is None or not entity.auto_delete_on_idle or self.differs is None or self.differs.before is not None:
            return self
        own = {*entity.underlying(name), names.events(name), names.dead_letters(name)}
        created = [one.create for one in differences if one.create is not None]
        made = {topic.name for topic in created if topic.role is Role.UNDERLYING or topic.name in own}
        return replace(self, after=replace(self.after, made=tuple(sorted(made | own.intersection(made_before)))))

    def check_state(self, live: Callable[[DefinitionChange], Mapping[str, int] | None]) -> None:
        """Check whether the live messages or records allow the change (C65).

        Args:
            live: returns how many messages or records the entity has, by underlying topic, those of an unknown one as
                `""`; None if it cannot be known. Called only if it matters.

        Raises:
            Refused: they do not allow it.
        """
        if self.differs is not None and (why := refusal(self.differs, live)):
            raise Refused(ErrorCode.IN_USE, why)

    def differences(self) -> tuple[Cluster, list[Difference], int]:
        """Return how the entity's topics on the cluster differ from what it needs, and its number of shards.

        Raises:
            TopologyError: the cluster does not answer.
            Refused: the entity could not be served, because of a difference that lapse cannot mend.
        """
        name = self.after.name
        queue = self.config.queue.get(name)
        target = queue.forward_to if queue is not None else None
        cluster = Cluster(keep_entities(self.config, {name} if target is None else {name, target}))
        # Only what is created needs the names of all topics: of two that differ in '.' and '_', Kafka takes one.
        topology = cluster.topology(few=self.differs is None or self.differs.before is not None)
        if any(one.create is not None for one in topology.differences()):
            topology = cluster.topology()
        own = {one.name for one in topology.wanted() if one.entity == name}
        found = [one for one in topology.differences() if name in one.bars or one.topic in own]
        # An entity is served and can be changed beside differences that bar nothing, such as added partitions (C81).
        lacking = {one.topic for one in found if one.topic not in topology.existing and self._adds(one.topic)}
        stuck = [one for one in found if not one.mended and (one.bars or one.topic in lacking)]
        if stuck:
            what = "; ".join(f"{one.topic}: {one.what}" for one in stuck)
            raise Refused(ErrorCode.INVALID_ARGUMENT, f"{name} could not be served: {what}")
        return cluster, found, topology.partitions(name)

    def _adds(self, topic: str) -> bool:
        """Return whether the entity reads a topic that it did not read before."""
        if self.differs is None or self.differs.before is None:
            return False
        before = self.differs.before.settings
        return topic not in (*before.get("topics", ()), before.get("topic", self.after.name))


def check_creation(name: str, differences: Iterable[Difference]) -> None:
    """Check that a client's definition does not create very many partitions (C67).

    Raises:
        Refused: it would.
    """
    created = [one.create.partitions for one in differences if one.create is not None]
    if sum(created) > _MOST_CREATED:
        raise Refused(
            ErrorCode.INVALID_ARGUMENT,
            f"{name} would create {len(created):,} topics with {sum(created):,} partitions together; a client may "
            f"create {_MOST_CREATED:,} with one command. Name fewer topics or partitions, or have it created with "
            "`lapse queue create` or `lapse sow create`",
        )


def create_and_grant(cluster: Cluster, differences: list[Difference]) -> None:
    """Create the missing topics, change settings and grant rights.

    Raises:
        TopologyError: the cluster refuses one.
    """
    cluster.create([one.create for one in differences if one.create is not None])
    cluster.alter([one for one in differences if one.alter])
    cluster.grant([one for one in differences if one.grants])


def remove_lost(request: Request, created: Collection[str], there: Mapping[str, Definition], config: Config) -> None:
    """Remove the state topic of a refused SOW topic if a queue of its name was defined since it was created.

    What else was created belongs to that queue, or to the user.

    Args:
        request: the refused request.
        created: topics that did not exist before it.
        there: the current definitions, by name.
        config: configuration of the deployment.
    """
    state, winner = names.sow(request.name), there.get(request.name)
    if state in created and winner is not None and winner.kind == "queue":
        with contextlib.suppress(TopologyError):  # the refusal says what matters
            Cluster(config).remove([state])


def draft(
    request: Request,
    there: Mapping[str, Definition],
    config: Config,
    beside: Path,
    now_ms: int,
    deleted: Collection[str] = (),
    unreadable: Mapping[str, str] = _NONE,
    versions: Mapping[str, int] = _NONE,
) -> Draft:
    """Compare a request with the current definitions.

    To create an entity that exists with the same settings changes nothing, so a request can be repeated.

    Args:
        request: the request.
        there: the current definitions, by name.
        config: configuration of the deployment.
        beside: directory of the files that settings name.
        now_ms: the present instant, ms since the epoch, after which no queue can begin.
        deleted: deleted entities with a definition, because the process that deleted them ended too early.
        unreadable: what is wrong with unreadable definitions, by entity. A created one replaces them.
        versions: by entity, the version on which a definition is based where `there` has none (C64).

    Raises:
        Refused: the request is refused; the text says why, and what to do.
    """
    spoiled = unreadable.get(request.name)
    version = there[request.name].version if request.name in there else versions.get(request.name, 0)
    there = {name: one for name, one in there.items() if name not in deleted}
    before = there.get(request.name)
    if before is not None and before.command and before.command == request.command:
        return Draft(before, None, with_only_defined(config, there.values(), beside), repeated=True)
    word = WORD[request.kind]
    if request.new:
        after = _created(request, before, config, beside, version + 1)
    elif spoiled is not None:
        raise Refused(
            ErrorCode.INVALID_ARGUMENT,
            f"{spoiled}. So nothing can be changed in it; workers go on as before. Write it anew with all of its "
            f"settings: `lapse {request.kind} create {request.name}`, or `lapse apply` if lapse.toml has it",
        )
    elif before is None:
        raise Refused(ErrorCode.UNKNOWN_ENTITY, f"there is no {word} {request.name}; {_known(request, there)}")
    else:
        after = _changed(request, before)
    try:
        differs = find_change(before, after, beside)
        if differs is not None and (why := differs.refusal({})):
            raise Refused(ErrorCode.INVALID_ARGUMENT, why)
        others = [one for name, one in there.items() if name != request.name]
        whole = with_entity(with_only_defined(config, others, beside), after, beside)
    except ValueError as error:
        raise Refused(ErrorCode.INVALID_ARGUMENT, str(error)) from error
    begins_anew = differs is not None and differs.begins_anew
    if why := early_beginning(whole.queue.get(request.name), begins_anew, now_ms):
        raise Refused(ErrorCode.INVALID_ARGUMENT, f"{request.name}: {why}")
    return Draft(after if differs is not None or before is None else before, differs, whole)


def refusal(differs: DefinitionChange, live: Callable[[DefinitionChange], Mapping[str, int] | None]) -> str:
    """Return why the current messages or records forbid a change; empty if it is allowed (C65).

    Args:
        differs: the change.
        live: see `Draft.check_state`.
    """
    return differs.refusal(live(differs) if differs.keys_that_need_empty else {})


def _created(request: Request, before: Definition | None, config: Config, beside: Path, version: int) -> Definition:
    settings = _patched({}, request)
    if request.kind == "queue":
        settings = with_lifetimes(request.name, settings, _lifetimes(before, config))
    after = Definition(request.name, request.kind, version, request.origin, settings, request.command)
    if before is None:
        return after
    try:
        same = before.kind == after.kind and find_change(before, after, beside) is None
    except ValueError as error:
        raise Refused(ErrorCode.INVALID_ARGUMENT, str(error)) from error
    if not same:
        raise Refused(
            ErrorCode.EXISTS,
            f"there is a {WORD[before.kind]} {before.name} already, with other settings (version {before.version}, by "
            f"{before.origin}). Alter it, delete it first, or take another name",
        )
    return before


def _lifetimes(before: Definition | None, config: Config) -> Mapping[str, object]:
    """Return the lifetimes of topics for a new queue, or those that a queue got when it was created (L8)."""
    if before is None:
        return {topic: in_words(one.expiration) for topic, one in config.topic.items()}
    had = before.settings.get("topic_expirations", {})
    return {topic: had[topic] for topic in config.topic if topic in had}


def _changed(request: Request, before: Definition) -> Definition:
    name = request.name
    if before.kind != request.kind:
        raise Refused(ErrorCode.INVALID_ARGUMENT, f"{name} is a {WORD[before.kind]}, not a {WORD[request.kind]}")
    if request.version is not None and request.version != before.version:
        raise Refused(
            ErrorCode.OUTDATED,
            f"{name}: the change is based on version {request.version}, and version {before.version} is there, by "
            f"{before.origin}. Look at it, and ask again",
        )
    settings = _patched(before.settings, request)
    return Definition(name, before.kind, before.version + 1, request.origin, settings, request.command, before.made)


def patched(settings: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings changed like by a JSON merge patch: None removes a key, and tables are merged."""
    result = dict(settings)
    for key, value in changed.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            inner = result.get(key)
            result[key] = patched(inner if isinstance(inner, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def _patched(settings: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """Return patched settings. Those that are removed and do not exist stay, and so are refused with their place."""
    result = patched(settings, request.settings)
    model = QueueConfig if request.kind == "queue" else SowConfig
    result |= dict.fromkeys(_removed(request.settings) - model.model_fields.keys())
    retry = request.settings.get("retry")
    if isinstance(retry, Mapping):
        result["retry"] |= dict.fromkeys(_removed(retry) - RetryConfig.model_fields.keys())
    return result


def _removed(changed: Mapping[str, Any]) -> set[str]:
    return {key for key, value in changed.items() if value is None}


def _known(request: Request, there: Mapping[str, Definition]) -> str:
    """Say which entities of the kind exist, and what to do."""
    known = sorted(name for name, one in there.items() if one.kind == request.kind)
    close = nearest(request.name, known)
    listed = ", ".join(known[:_MOST_NAMED]) + (" …" if len(known) > _MOST_NAMED else "")
    meant = f"did you mean {close!r}?" if close else f"defined are: {listed or 'none'}."
    return f"{meant} Correct the name, or create it: `lapse {request.kind} create {request.name}`"
