"""Retirement: the end of an entity, from the request until its shards stop (C4, L11, Q18).

All shards of an entity end, or none does. The shard of partition 0 asks, every shard says what stands in its way, and
the first shard's decision counts: `lapse.core.shard.agreement` has the rules. What is here travels between shards, and
stands in their journals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from lapse.core.error_code import Refusal
from lapse.core.expression.civil import format_instant

RETIREMENT: Final = b"z"
"""First byte of the key under which a shard's journal, of a queue or a SOW topic, holds its retirement."""

_MOST: Final = 1 << 48
"""A count beyond this is none: the sum over all shards has to fit into 64 bits."""

_NAMED: Final = 5
"""How many holders of leases a refusal names; the others are counted."""


class Cause(StrEnum):
    """Why an entity ends."""

    DELETE = "delete"
    IDLE = "idle"


class Phase(StrEnum):
    """How far a shard's retirement is; a shard without one is in service."""

    ASKING = "asking"  # the first shard: the others are asked
    PREPARED = "prepared"  # another shard: it has agreed, and waits for the decision
    RETIRED = "retired"  # it is decided


@dataclass(frozen=True, slots=True)
class Holder:
    """A subscription that holds leases.

    Attributes:
        subscription: its name.
        client: who that is, for people.
        count: how many messages.
        until_ms: when the last of its leases ends, ms since the epoch.
    """

    subscription: str
    client: str
    count: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a shard says when it is asked whether it may end.

    Attributes:
        willing: whether nothing stands in the way.
        counts: messages or records by state.
        holders: who holds leases.
        active_ms: when it was last used, ms since the epoch; where that is asked for.
        transfers: ids of transfers that are unfinished; not even force ends them (C77).
    """

    willing: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    holders: tuple[Holder, ...] = ()
    active_ms: int = 0
    transfers: tuple[str, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Report:
        """Read it back.

        Raises:
            TypeError: a part of it is of another type; or `KeyError`, `AttributeError`.
        """
        holders = tuple(Holder(**one) for one in facts["holders"])
        report = cls(**{**facts, "holders": holders, "transfers": tuple(facts.get("transfers", ()))})
        counts = [*report.counts.values(), *(one.count for one in holders)]
        _expect(bool, report.willing)
        _expect(int, *counts, report.active_ms, *(one.until_ms for one in holders))
        _expect(str, *report.transfers, *(text for one in holders for text in (one.subscription, one.client)))
        if any(not 0 <= count < _MOST for count in counts):
            raise TypeError("a count is none")
        return report


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asked for the deletion, and waits for the answer.

    Attributes:
        command_id: of the command.
        subscription: that spoke; empty = none.
        client: a name for people.
        encoding: how the answer is to be written.
        silent: whether no answer is wanted.
    """

    command_id: str
    subscription: str = ""
    client: str = ""
    encoding: str = "json"
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retirement:
    """What a shard's journal holds of its retirement.

    Attributes:
        phase: how far it is.
        id: of the agreement: the instant at which it began, ms since the epoch; a later one is higher.
        cause: why the entity is to end.
        force: whether what is there is taken along.
        since_ms: when this phase began, ms since the epoch.
        reports: ASKING: what was said so far, by partition.
        gone: RETIRED, of the first shard: partitions that have nothing left to do.
        asker: whom to answer.
    """

    phase: Phase
    id: int
    cause: Cause
    force: bool = False
    since_ms: int = 0
    reports: Mapping[int, Report] = field(default_factory=dict)
    gone: frozenset[int] = frozenset()
    asker: Asker | None = None

    def reported(self, partition: int, report: Report) -> Retirement:
        """The same, with what a shard said."""
        return replace(self, reports={**self.reports, partition: report})

    def encode(self) -> bytes:
        """Write it."""
        facts = asdict(self)
        facts["gone"] = sorted(self.gone)
        facts["reports"] = {str(partition): asdict(report) for partition, report in self.reports.items()}
        return json.dumps(facts, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Retirement:
        """Read it back.

        Raises:
            ValueError: the bytes are none.
        """
        try:
            facts = json.loads(data)
            facts["phase"], facts["cause"] = Phase(facts["phase"]), Cause(facts["cause"])
            facts["gone"] = frozenset(facts["gone"])
            facts["reports"] = {int(key): Report.of(value) for key, value in facts["reports"].items()}
            facts["asker"] = None if facts["asker"] is None else Asker(**facts["asker"])
            return cls(**facts)
        except (KeyError, TypeError) as error:
            raise ValueError(f"no retirement: {error}") from error


class ShardMessageKind(StrEnum):
    """What one shard says to another, or to itself."""

    ASK = "ask"  # the first shard: may you end?
    CHECK = "check"  # to oneself: behind everything that the logs held when the question came
    REPORT = "report"  # to the first shard: what stands in the way, or nothing
    DECIDED = "decided"  # the first shard: it is decided
    RELEASED = "released"  # the first shard: go on
    GONE = "gone"  # to the first shard: nothing is left to do here


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMessage:
    """One thing said, on its way through the commands topic.

    Attributes:
        kind: what.
        id: of the agreement.
        sender: partition of the shard that says it.
        to: partition of the shard that it is for.
        cause: ASK, CHECK, DECIDED: why.
        force: of the same: whether what is there is taken along.
        report: REPORT: what.
    """

    kind: ShardMessageKind
    id: int
    sender: int
    to: int
    cause: Cause = Cause.DELETE
    force: bool = False
    report: Report | None = None

    def encode(self) -> bytes:
        """Write it."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes | None) -> ShardMessage:
        """Read it back.

        Raises:
            ValueError: the bytes are none.
        """
        try:
            facts = orjson.loads(data or b"")  # refuses what could not be told to a client: half of a character
            facts["kind"], facts["cause"] = ShardMessageKind(facts["kind"]), Cause(facts["cause"])
            facts["report"] = None if facts["report"] is None else Report.of(facts["report"])
            message = cls(**facts)
            _expect(int, message.id, message.sender, message.to)
            _expect(bool, message.force)
            return message
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no message between shards: {error}") from error


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to whom asked for a deletion.

    Attributes:
        asker: whom.
        refusal: why not; None = it is decided.
        counts: what was there, over all shards that said so.
    """

    asker: Asker
    refusal: Refusal | None
    counts: Mapping[str, int]


def summed(reports: Iterable[Report]) -> dict[str, int]:
    """Counts over several shards."""
    total: dict[str, int] = {}
    for report in reports:
        for name, count in report.counts.items():
            total[name] = total.get(name, 0) + count
    return total


def objection(name: str, reports: Iterable[Report]) -> str:
    """Say what stands in the way of deleting an entity: who holds what until when, and how much is left (C4)."""
    reports = list(reports)
    parts: list[str] = []
    holders: dict[str, Holder] = {}
    for holder in (one for report in reports for one in report.holders):
        known = holders.get(holder.subscription, replace(holder, count=0))
        holders[holder.subscription] = replace(
            holder, count=holder.count + known.count, until_ms=max(holder.until_ms, known.until_ms)
        )
    leased = sum(holder.count for holder in holders.values())
    if leased:
        named = [
            f"{holder.count:,} by {holder.subscription}{f' ({holder.client})' if holder.client else ''} "
            f"until {_instant(holder.until_ms)}"
            for holder in sorted(holders.values(), key=lambda one: (-one.count, one.subscription))
        ]
        more = f", and {len(named) - _NAMED} more subscriptions" if len(named) > _NAMED else ""
        parts.append(f"{leased:,} leased: {', '.join(named[:_NAMED])}{more}")
    parts += [f"{count:,} {state}" for state, count in summed(reports).items() if count and state != "leased"]
    advice = "Settle, delete or purge what is there, or take it along with force"
    transfers = sorted({one for report in reports for one in report.transfers})
    if transfers:
        more = f" and {len(transfers) - _NAMED} more" if len(transfers) > _NAMED else ""
        advice = (
            f"Unfinished is transfer {', '.join(transfers[:_NAMED])}{more}: bring it to its end with `lapse transfer "
            "--resume`, or take it back with `--cancel`. Force does not take along what was handed over"
        )
    return f"{name} is not empty: {'; '.join(parts)}. {advice}"


def _expect(kind: type, *values: object) -> None:
    if any(type(value) is not kind for value in values):
        raise TypeError(f"expected {kind.__name__}")


def _instant(at_ms: int) -> str:
    return format_instant(at_ms) or "further notice"
