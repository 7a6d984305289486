"""Step of a SOW shard: changes for the journal, and outputs for topics."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from lapse.core.error_code import Refusal
from lapse.core.lifetime import NEVER
from lapse.core.reason import Reason
from lapse.core.shard.answer import CommandAnswer
from lapse.core.shard.event import ShardEvent
from lapse.core.shard.step import Step as ShardStep
from lapse.protocol.bookmark import Bookmark


class EventRecord(NamedTuple):
    """The record of an event about one record.

    Attributes:
        bookmark: bookmark of the record.
        key: its key; None without one.
        deadline_ms: its deadline, ms since the epoch; `NEVER` without one.
    """

    bookmark: Bookmark
    key: bytes | None = None
    deadline_ms: int = NEVER


class ExpiryBatch(NamedTuple):
    """The records of an event about many records that only their deadlines have removed.

    Attributes:
        records: for each, its key, number of its source, offset, and deadline, ms since the epoch.
    """

    records: list[tuple[bytes, int, int, int]]


SowEvent = ShardEvent[EventRecord | ExpiryBatch]
"""An event of a SOW topic (S4)."""


class Removal(NamedTuple):
    """A record that left for reasons of L14, with its bytes, which may be nowhere else.

    Attributes:
        bookmark: bookmark of the record.
        key: the original key.
        value: the original value.
        headers: the original headers.
        timestamp_ms: its timestamp, ms since the epoch.
        reasons: the reasons for which it left, in L14's order.
        at_ms: the instant of the decision, ms since the epoch.
        deadline_ms: its deadline, ms since the epoch; `NEVER` without one.
        detail: text of the fault; empty = none.
        in_log: whether the underlying log contains the same record.
        letter: whether it gets a dead letter.
        record_key: the key in the record's payload; None = none, or not known.
        incarnation: distinguishes its topic from earlier ones with the same name (C42); 0 = there were none.
    """

    bookmark: Bookmark
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    reasons: tuple[Reason, ...]
    at_ms: int
    deadline_ms: int = NEVER
    detail: str = ""
    in_log: bool = False
    letter: bool = True
    record_key: bytes | None = None
    incarnation: int = 0


class Kind(StrEnum):
    """The kind of a message for a subscription or a query (S5 to S7)."""

    GROUP_BEGIN = "group-begin"
    SOW = "sow"
    GROUP_END = "group-end"
    PUBLISH = "publish"
    DELTA = "delta"
    OUT_OF_FOCUS = "oof"


class OutOfFocus(StrEnum):
    """Why a record that a subscriber has seen is out of focus (S7)."""

    DELETED = "deleted"
    EXPIRED = "expired"
    NO_LONGER_MATCHES = "no_longer_matches"


class Message(NamedTuple):
    """A message for one subscription or query.

    Attributes:
        kind: the kind of message.
        subscription: id of the subscription; empty for a plain query.
        command_id: id of the query, for messages of a query.
        key: the record's key; None for the start and end of a group.
        payload: the record; in a delta, the changed fields; in an `oof`, the record that the subscriber last saw.
        headers: the record's own headers.
        bookmark: bookmark of its last update; in an `oof` for no match, of the update that no longer matches.
        timestamp_ms: the record's timestamp, ms since the epoch.
        deadline_ms: its deadline, ms since the epoch; `NEVER` without one.
        reason: the reason of an `oof`.
        order_value: the value by which a query's result is ordered; None if it is NULL or incomparable.
    """

    kind: Kind
    subscription: str
    command_id: str = ""
    key: bytes | None = None
    payload: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    bookmark: Bookmark | None = None
    timestamp_ms: int = -1
    deadline_ms: int = NEVER
    reason: OutOfFocus | None = None
    order_value: object = None


class OutOfFocusBatch(NamedTuple):
    """Messages of kind `oof` to one subscriber about many expired records (S7).

    Attributes:
        subscription: id of the subscription.
        records: key and packed record of each, as the subscriber last saw it.
    """

    subscription: str
    records: list[tuple[bytes, bytes]]


class StateDelete(NamedTuple):
    """How a record left the compacted topic, for replication (S10).

    Attributes:
        reason: deleted or expired.
        timestamp_ms: instant of the deletion, or timestamp of the expired record, ms since the epoch.
        path: deployments that the delete, or the expired record, has passed through.
        unwritten: whether the expired update was never written to the compacted topic.
        bookmark: bookmark of the expired record where another deployment published it; empty = unknown.
    """

    reason: OutOfFocus
    timestamp_ms: int
    path: bytes = b""
    unwritten: bool = False
    bookmark: bytes = b""


class RunningQuery(Protocol):
    """A query in progress, which is pulled batch by batch until it is finished (S5).

    Attributes:
        finished: whether the query has ended.
    """

    finished: bool

    @property
    def subscription(self) -> str:
        """Id of the subscription for which the batches are."""

    @property
    def command_id(self) -> str:
        """Id of the command."""

    @property
    def command(self) -> str:
        """Name of the command."""

    @property
    def at_ms(self) -> int:
        """The command's instant, ms since the epoch."""

    @property
    def is_answered(self) -> bool:
        """Whether the command wants an answer."""

    @property
    def withholds_any(self) -> bool:
        """Whether the query left out records that had expired but are not removed yet."""

    def pull(self, now_ms: int, step: Step, scan: int | None = None) -> None:
        """Put the next batch into a step; `now_ms` is ms since the epoch, `scan` the most records to examine."""

    def abandon(self) -> None:
        """End the query without sending anything."""


class RunningDeletion(Protocol):
    """A deletion in progress, which examines records in portions (S3)."""

    @property
    def finished(self) -> bool:
        """Whether all records were examined, or the deletion is refused."""

    @property
    def is_answered(self) -> bool:
        """Whether the command wants an answer."""

    @property
    def answer(self) -> CommandAnswer:
        """The answer, with the counts so far."""

    def examine_next(self, step: Step, portion: int = ...) -> None:
        """Examine the next records, and remove those that the command names."""

    def reach(self, journal_key: bytes, at_ms: int, step: Step) -> None:
        """Examine a record out of turn, because a delta that takes effect at `at_ms` is to be merged into it."""

    def refuse(self, refusal: Refusal) -> None:
        """End the deletion with a refusal."""


@dataclass(slots=True)
class Step(ShardStep[EventRecord | ExpiryBatch, Removal, Message | OutOfFocusBatch]):
    """The changes and outputs of a batch, a command or a timer.

    A removal is included if it gets a letter, or if the settings require copies of all records that leave (L15).

    Attributes:
        changes: journal records, the latest per key, already applied to the shard; None = a tombstone.
        state_deletes: by journal key, how the records left that the changes remove (S10).
        queries: queries that began, each to be pulled batch by batch until it is finished.
        deletions: unfinished deletions; no other command is carried out before they end.
        change_bytes: about the size of the changes so far, bytes.
    """

    changes: dict[bytes, bytes | None] = field(default_factory=dict)
    state_deletes: dict[bytes, StateDelete] = field(default_factory=dict)
    queries: list[RunningQuery] = field(default_factory=list)
    deletions: list[RunningDeletion] = field(default_factory=list)
    change_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.changes or self.events or self.letters or self.deliveries or self.answers or self.queries)


def encode_changes(step: Step) -> list[tuple[bytes, bytes | None]]:
    """Return the step's journal records, one per key; None = a tombstone."""
    return list(step.changes.items())
