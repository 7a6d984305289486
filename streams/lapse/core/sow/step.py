"""A step of a SOW shard: changes for the journal, and outputs for topics."""

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
    """The one record that an event is about.

    Attributes:
        bookmark: which it is.
        key: its key, as far as it has one.
        deadline_ms: its deadline, ms since the epoch; `NEVER` without one.
    """

    bookmark: Bookmark
    key: bytes | None = None
    deadline_ms: int = NEVER


class ExpiryBatch(NamedTuple):
    """The many records that an event is about, where nothing but time has removed them.

    Attributes:
        records: of each its key, number of its source, offset, and deadline in ms since the epoch.
    """

    records: list[tuple[bytes, int, int, int]]


SowEvent = ShardEvent[EventRecord | ExpiryBatch]
"""An event of a SOW topic (S4)."""


class Removal(NamedTuple):
    """A record that left for L14's reasons: its bytes, which stand nowhere else any more, and why it left.

    Attributes:
        bookmark: which it is.
        key: the original key.
        value: the original value.
        headers: the original headers.
        timestamp_ms: its timestamp, ms since the epoch.
        reasons: why it left, in L14's order.
        at_ms: the instant of the decision, ms since the epoch.
        deadline_ms: its deadline, ms since the epoch; `NEVER` without one.
        detail: the text of the fault.
        in_log: whether the underlying log has it as it is.
        letter: whether it gets a dead letter.
        record_key: the key that the payload makes of one that was refused for its lifetime; None = none, or not known.
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


class Kind(StrEnum):
    """Kinds of message for a subscriber or an asker (S5 to S7)."""

    GROUP_BEGIN = "group-begin"
    SOW = "sow"
    GROUP_END = "group-end"
    PUBLISH = "publish"
    DELTA = "delta"
    OUT_OF_FOCUS = "oof"


class OutOfFocus(StrEnum):
    """Why a record that a subscriber has seen is out of its focus (S7)."""

    DELETED = "deleted"
    EXPIRED = "expired"
    NO_LONGER_MATCHES = "no_longer_matches"


class Message(NamedTuple):
    """A message for one subscriber or asker.

    Attributes:
        kind: what it is.
        subscription: for which subscription; empty for a plain query.
        command_id: id of the query, for what belongs to a query.
        key: the record's key; None for the ends of a group.
        payload: the record; of a delta the changed fields; of an `oof` what the subscriber last saw.
        headers: the record's own headers.
        bookmark: of its last update; of an `oof` because of no match, that of the update.
        timestamp_ms: as of when it counts, ms since the epoch.
        deadline_ms: its deadline, ms since the epoch; `NEVER` without one.
        reason: of an `oof`.
        order_value: of a query's result in an order, what that goes by; None where it is NULL or cannot be compared.
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
    """Messages of kind `oof` to one subscriber, about many records that have expired (S7).

    Attributes:
        subscription: for which subscription.
        records: key and packed record of each, as the subscriber last saw it.
    """

    subscription: str
    records: list[tuple[bytes, bytes]]


class StateDelete(NamedTuple):
    """How a record left the compacted topic, for those who replicate it (S10).

    Attributes:
        reason: deleted or expired.
        timestamp_ms: as of when it was deleted; of an expired one as of when it counted; ms since the epoch.
        path: deployments that the delete, or the expired record, has passed through.
        unwritten: whether the update that expired came and went without ever standing on the compacted topic.
    """

    reason: OutOfFocus
    timestamp_ms: int
    path: bytes = b""
    unwritten: bool = False


class QueryAtWork(Protocol):
    """A query that has begun: pulled batch by batch until it is finished (S5).

    Attributes:
        finished: whether the group's end was sent.
    """

    finished: bool

    @property
    def subscription(self) -> str:
        """Who asked."""

    @property
    def command_id(self) -> str:
        """Id of the command that asked."""

    @property
    def command(self) -> str:
        """Name of that command."""

    @property
    def at_ms(self) -> int:
        """The command's instant, ms since the epoch."""

    @property
    def withholds_any(self) -> bool:
        """Whether it left out records that had expired and are not yet removed."""

    def pull(self, now_ms: int, step: Step, scan: int | None = None) -> None:
        """Put the next batch into a step; `now_ms` is ms since the epoch, `scan` the most records to look at."""

    def abandon(self) -> None:
        """Send nothing more."""


class DeletionAtWork(Protocol):
    """A deletion that goes through the records in portions (S3)."""

    @property
    def finished(self) -> bool:
        """Whether it has seen all records, or is refused."""

    @property
    def is_answered(self) -> bool:
        """Whether its end is to be answered."""

    @property
    def answer(self) -> CommandAnswer:
        """Its answer, with what it has done so far."""

    def go_on(self, step: Step, portion: int = ...) -> None:
        """Look at the next records, and let those go that are meant."""

    def refuse(self, refusal: Refusal) -> None:
        """Do no more of it."""


@dataclass(slots=True)
class Step(ShardStep[EventRecord | ExpiryBatch, Removal, Message | OutOfFocusBatch]):
    """Changes and outputs, collected while a batch, a command or a timer is handled.

    A removal is put down where it gets a letter, or where the settings ask for all of them (L15).

    Attributes:
        changes: journal records, the latest per key; None = a tombstone. Already applied to the shard.
        state_deletes: how the records left that the changes remove, by their journal keys (S10).
        queries: queries that began; each is pulled batch by batch until it is finished.
        deletions: deletions that are not finished; no command is done before.
        change_bytes: size of the changes so far, about.
    """

    changes: dict[bytes, bytes | None] = field(default_factory=dict)
    state_deletes: dict[bytes, StateDelete] = field(default_factory=dict)
    queries: list[QueryAtWork] = field(default_factory=list)
    deletions: list[DeletionAtWork] = field(default_factory=list)
    change_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.changes or self.events or self.letters or self.deliveries or self.answers or self.queries)


def encode_changes(step: Step) -> list[tuple[bytes, bytes | None]]:
    """Return the step's journal records, one per key; None = a tombstone."""
    return list(step.changes.items())
