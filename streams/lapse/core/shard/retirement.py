"""Retirement: the end of an entity, from the request until its shards stop (C4, L11, Q18).

All shards of an entity end, or none does. The shard of partition 0 asks, every shard reports whether it can end, and
the first shard decides (see `lapse.core.shard.agreement`). The values here travel between shards, and are kept in
their journals.
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
"""First byte of the journal key of a shard's retirement, for queues and SOW topics."""

LAST_READ: Final = 1_000
"""How many of the last records of a journal are read to see whether the end is decided. The note must be among them."""

_MOST: Final = 1 << 48
"""Counts from here on are invalid, since the sum over all shards must fit into 64 bits."""

_NAMED: Final = 5
"""The greatest number of holders and transfers that a refusal names. The others are counted."""


class Cause(StrEnum):
    """Why an entity ends."""

    DELETE = "delete"
    IDLE = "idle"


class Phase(StrEnum):
    """The phase of a shard's retirement. A shard without a retirement is in service."""

    ASKING = "asking"  # the first shard has asked the others
    PREPARED = "prepared"  # another shard has agreed, and waits for the decision
    RETIRED = "retired"  # the end is decided


@dataclass(frozen=True, slots=True)
class Holder:
    """A subscription that holds leases.

    Attributes:
        subscription: id of the subscription.
        client: the client's name for people.
        count: number of leased messages.
        until_ms: end of the last of its leases, ms since the epoch.
    """

    subscription: str
    client: str
    count: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A shard's answer to the question whether it can end.

    Attributes:
        willing: whether nothing prevents the end.
        counts: number of messages or records by state.
        holders: the holders of leases.
        active_ms: last use, ms since the epoch; set if the cause is idleness.
        transfers: ids of unfinished transfers, which prevent even a forced deletion (C77).
        waits: whether the shard does not read yet, while its partitions have records; prevents even a forced deletion
            (C81).
    """

    willing: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    holders: tuple[Holder, ...] = ()
    active_ms: int = 0
    transfers: tuple[str, ...] = ()
    waits: bool = False

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Report:
        """Return the report of decoded JSON.

        Raises:
            TypeError: a value has the wrong type or range; `KeyError` or `AttributeError` for other faults.
        """
        holders = tuple(Holder(**one) for one in facts["holders"])
        report = cls(**{**facts, "holders": holders, "transfers": tuple(facts.get("transfers", ()))})
        counts = [*report.counts.values(), *(one.count for one in holders)]
        _expect(bool, report.willing, report.waits)
        _expect(int, *counts, report.active_ms, *(one.until_ms for one in holders))
        _expect(str, *report.transfers, *(text for one in holders for text in (one.subscription, one.client)))
        if any(not 0 <= count < _MOST for count in counts):
            raise TypeError("a count is none")
        return report


@dataclass(frozen=True, slots=True)
class Asker:
    """The sender of a delete command, who waits for the answer.

    Attributes:
        command_id: id of the command.
        subscription: id of the subscription that sent it; empty = none.
        client: the client's name for people.
        encoding: encoding of the answer.
        silent: whether no answer is wanted.
    """

    command_id: str
    subscription: str = ""
    client: str = ""
    encoding: str = "json"
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retirement:
    """A shard's retirement, as its journal holds it.

    Attributes:
        phase: the phase.
        id: id of the agreement, the instant of its start, ms since the epoch; a later agreement has a higher one.
        cause: why the entity ends.
        force: whether existing messages are removed instead of preventing the end.
        since_ms: start of this phase, ms since the epoch.
        reports: ASKING: the reports so far, by partition; PREPARED: the shard's own.
        gone: RETIRED, first shard only: partitions that have reported that they are gone.
        asker: the sender of the delete command; None for idleness, and once decided.
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
        """Return the retirement with a shard's report added."""
        return replace(self, reports={**self.reports, partition: report})

    def encode(self) -> bytes:
        """Return the JSON bytes."""
        facts = asdict(self)
        facts["gone"] = sorted(self.gone)
        facts["reports"] = {str(partition): asdict(report) for partition, report in self.reports.items()}
        return json.dumps(facts, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Retirement:
        """Read the JSON bytes.

        Raises:
            ValueError: the bytes are not a retirement.
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
    """The kind of message that a shard sends to another, or to itself."""

    ASK = "ask"  # from the first shard: can you end?
    CHECK = "check"  # to itself: examine your messages, after all records that the logs held at the question
    REPORT = "report"  # to the first shard: whether this shard can end
    DECIDED = "decided"  # from the first shard: the end is decided
    RELEASED = "released"  # from the first shard: go on in service
    GONE = "gone"  # to the first shard: this shard has finished


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMessage:
    """A message from shard to shard, sent through the commands topic.

    Attributes:
        kind: the kind of message.
        id: id of the agreement.
        sender: partition of the sending shard.
        to: partition of the receiving shard.
        cause: ASK, CHECK, DECIDED: why the entity ends.
        force: ASK, CHECK, DECIDED: whether existing messages are removed instead of preventing the end.
        report: REPORT: the sender's report.
    """

    kind: ShardMessageKind
    id: int
    sender: int
    to: int
    cause: Cause = Cause.DELETE
    force: bool = False
    report: Report | None = None

    def encode(self) -> bytes:
        """Return the JSON bytes."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes | None) -> ShardMessage:
        """Read the JSON bytes.

        Raises:
            ValueError: the bytes are not a shard message.
        """
        try:
            facts = orjson.loads(data or b"")  # unlike json, refuses lone surrogates, which cannot be sent to a client
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
    """The answer to a delete command.

    Attributes:
        asker: the sender of the command.
        refusal: why the entity is not deleted; None = the deletion is decided.
        counts: number of messages or records by state, over all shards that reported.
    """

    asker: Asker
    refusal: Refusal | None
    counts: Mapping[str, int]


def summed(reports: Iterable[Report]) -> dict[str, int]:
    """Return the counts of several reports, added up."""
    total: dict[str, int] = {}
    for report in reports:
        for name, count in report.counts.items():
            total[name] = total.get(name, 0) + count
    return total


def objection(name: str, reports: Iterable[Report]) -> str:
    """Return a text that says what prevents a deletion: who holds what until when, and how much is left (C4)."""
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
    if waiting := sum(report.waits for report in reports):
        parts.append(f"{waiting} new shard{'s' * (waiting != 1)} not reading yet, and something was published there")
    advice = "Settle, delete or purge what is there, or take it along with force"
    if waiting:
        advice = (
            "Settle or purge what the older shards hold, leased messages too. A few seconds later the new ones read. "
            "Then repeat the deletion"
        )
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
