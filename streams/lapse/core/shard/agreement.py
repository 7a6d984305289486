"""Agreement: the shards of an entity agree to end it, in two steps (C4, Q18).

The first shard, that of partition 0, asks all shards, itself included. Each reads on to the ends that its logs had,
examines its messages, and reports. A new owner reads on anew before it reports. A willing shard durably becomes
prepared: it takes in and delivers nothing until it knows the decision. If all are willing, the first shard journals
RETIRED, which is the decision. Otherwise it deletes its entry, and all go on. A prepared shard reports again until it
gets the decision, so no crash leaves one behind. If the first shard has no entry for its report, the decision was
against the end.

A retired shard removes its remaining messages, answers for a while that the entity is deleted, reports that it is gone,
and is stopped. From then on it writes nothing, so the topics can be removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.lifetime import NEVER
from lapse.core.shard.event import EventKind, ShardEvent
from lapse.core.shard.retirement import (
    Asker,
    Cause,
    Phase,
    Report,
    Retirement,
    ShardMessage,
    ShardMessageKind,
    Verdict,
    objection,
    summed,
)

ASK_AGAIN_MS: Final = 2_000
"""How long the first shard waits before it repeats a message that was not answered."""

GIVE_UP_MS: Final = 20_000
"""How long the first shard waits for all reports before it decides against the end. Clients wait longer."""

REPORT_AGAIN_MS: Final = 5_000
"""How long a prepared shard waits for the decision before it reports again."""

GRACE_MS: Final = 5_000
"""How long a retired shard answers that the entity is deleted, long enough for every subscriber's heartbeat."""

UNUSED_GRACE_MS: Final = 250
"""The same without subscriptions, when only commands that were sent before need an answer."""


class AgreementStep(Protocol):
    """The parts of a shard's step that the agreement fills.

    Attributes:
        events: the events of the step.
        shard_messages: messages to other shards, sent once the step is durable.
        verdicts: answers to requests for deletion, sent once the step is durable.
    """

    events: list[ShardEvent[Any]]
    shard_messages: list[ShardMessage]
    verdicts: list[Verdict]


S = TypeVar("S", bound=AgreementStep, contravariant=True)
"""The shard's kind of step."""


class RetirableShard(Protocol[S]):
    """The interface of a shard that the agreement uses.

    Attributes:
        event_prefix: the beginning of the text of the event that the entity is deleted.
    """

    event_prefix: ClassVar[str]

    @property
    def retirement(self) -> Retirement | None:
        """The journaled retirement; None = in service."""

    def journal_retirement(self, retirement: Retirement | None, step: S) -> None:
        """Journal a retirement; None = the shard is in service again."""

    def report(self, cause: Cause, force: bool, now_ms: int) -> Report:
        """Report the shard's messages, and whether the shard can end."""

    def remove_some(self, retirement: Retirement, now_ms: int, step: S) -> bool:
        """Remove some of the remaining messages. Return whether none is left."""

    def is_subscribed(self) -> bool:
        """Return whether a client is subscribed, and therefore sends heartbeats."""

    def idle_at_ms(self) -> int:
        """Return when the shard will be idle unless it is used, ms since the epoch; `NEVER` if it cannot be."""

    def idle_ms(self) -> int:
        """Return after how long without use the shard counts as idle, ms."""


class Agreement(Generic[S]):
    """One shard's part in the agreement.

    Args:
        name: name of the entity.
        partition: number of the shard.
        shards: number of shards of the entity.
        retirable: the shard.
    """

    def __init__(self, name: str, partition: int, shards: int, retirable: RetirableShard[S]) -> None:
        self._name = name
        self._partition = partition
        self._shards = shards
        self._retirable = retirable
        self._last_id = 0
        self._again_ms = 0
        self._not_idle_before_ms = 0
        self._cleared = False
        self.checking = False
        """Whether the first shard's question waits until the shard has read its logs up to their ends."""
        self.checks_use = False
        """Whether that question is about idleness, so that what was published meanwhile matters."""
        self.stopped = False
        """Whether the shard is stopped and must not write any more."""

    @property
    def retirement(self) -> Retirement | None:
        """The shard's retirement; None = in service."""
        return self._retirable.retirement

    @property
    def frozen(self) -> bool:
        """Whether the shard takes in and delivers nothing, because it is prepared or retired."""
        now = self._retirable.retirement
        if now is None:
            return False
        own = now.reports.get(self._partition)
        return now.phase is not Phase.ASKING or (own is not None and own.willing)

    @property
    def retired(self) -> bool:
        """Whether the end is decided."""
        now = self._retirable.retirement
        return now is not None and now.phase is Phase.RETIRED

    @property
    def leaving(self) -> bool:
        """Whether all messages have left, and only the topics remain."""
        return self.retired and self._cleared

    # Inputs

    def delete(self, asker: Asker, force: bool, now_ms: int, step: S) -> Refusal | None:
        """Begin the agreement on a deletion. Return a refusal, or None if the answer comes later."""
        if self._partition:
            why = f"delete: it goes to the first shard, partition 0; this is {self._partition}"
            return Refusal(ErrorCode.INVALID_ARGUMENT, why)
        if self._retirable.retirement is not None:
            return Refusal(ErrorCode.DELETE_IN_PROGRESS, f"delete: {self._name} is about to be deleted already")
        self._begin(Cause.DELETE, force, asker, now_ms, step)
        return None

    def receive(self, message: ShardMessage, now_ms: int, step: S) -> None:
        """Process a message of another shard or of this one. Messages of unknown shards are ignored."""
        now = self._retirable.retirement
        if not 0 <= message.sender < self._shards:
            return
        match message.kind:
            case ShardMessageKind.ASK:
                self._handle_question(message, now_ms, step)
            case ShardMessageKind.CHECK:
                self._check_and_report(message, now_ms, step)
            case ShardMessageKind.REPORT:
                self._handle_report(message, now_ms, step)
            case ShardMessageKind.DECIDED:
                if now is None or now.phase is not Phase.RETIRED:
                    self._retire(Retirement(phase=Phase.RETIRED, id=message.id, cause=message.cause), now_ms, step)
            case ShardMessageKind.RELEASED:
                if now is not None and now.phase is Phase.PREPARED and now.id == message.id:
                    self._retirable.journal_retirement(None, step)
            case ShardMessageKind.GONE:
                if now is not None and now.phase is Phase.RETIRED and message.sender not in now.gone:
                    self._handle_end(replace(now, gone=now.gone | {message.sender}), now_ms, step)

    def note_use(self, now_ms: int, step: S) -> None:
        """Note a use of the shard. It vetoes an end for idleness that is not decided yet."""
        now = self._retirable.retirement
        if now is None or now.cause is not Cause.IDLE or now.phase is Phase.RETIRED:
            return
        report = Report(willing=False, active_ms=now_ms)
        if now.phase is Phase.PREPARED:
            self._send_message(ShardMessageKind.REPORT, 0, now, step, report)
        else:
            self._retirable.journal_retirement(now.reported(0, report), step)
            self._conclude(now_ms, step)

    def take_over(self, now_ms: int) -> None:
        """Begin an epoch. Messages are sent again, since the former owner may not have sent them."""
        self._again_ms = now_ms

    # Time

    def next_due_ms(self) -> int:
        """Return the next instant at which `advance` has something to do, ms since the epoch; `NEVER` without one."""
        now = self._retirable.retirement
        if now is None:
            return NEVER if self._partition else max(self._retirable.idle_at_ms(), self._not_idle_before_ms)
        if self.stopped:
            return NEVER
        if now.phase is not Phase.RETIRED:
            return self._again_ms
        if not self._cleared:
            return now.since_ms
        grace_ms = GRACE_MS if self._retirable.is_subscribed() else UNUSED_GRACE_MS
        return max(now.since_ms + grace_ms, self._again_ms)

    def advance(self, now_ms: int, step: S) -> None:
        """Do what is due."""
        if self.next_due_ms() > now_ms:
            return
        now = self._retirable.retirement
        if now is None:
            self._begin(Cause.IDLE, False, None, now_ms, step)
        elif now.phase is Phase.ASKING:
            if now_ms >= now.since_ms + GIVE_UP_MS:
                self._conclude(now_ms, step, late=True)
            else:
                self._ask_shards(now, now_ms, step)
        elif now.phase is Phase.PREPARED:
            self._again_ms = now_ms + REPORT_AGAIN_MS
            self._send_message(ShardMessageKind.REPORT, 0, now, step, now.reports.get(self._partition))
        elif not self._cleared:
            self._cleared = self._retirable.remove_some(now, now_ms, step)
            # What leaves must not push the decision away from the journal's end, where `lapse apply` looks for it.
            self._retirable.journal_retirement(now, step)
        else:
            self._stop_or_wait(now, now_ms, step)

    # Helpers

    def _begin(self, cause: Cause, force: bool, asker: Asker | None, now_ms: int, step: S) -> None:
        self._last_id = max(now_ms, self._last_id + 1)
        asking = Retirement(
            phase=Phase.ASKING, id=self._last_id, cause=cause, force=force, since_ms=now_ms, asker=asker
        )
        self._retirable.journal_retirement(asking, step)
        self._ask_shards(asking, now_ms, step)

    def _ask_shards(self, now: Retirement, now_ms: int, step: S) -> None:
        self._again_ms = min(now_ms + ASK_AGAIN_MS, now.since_ms + GIVE_UP_MS)
        for partition in range(self._shards):
            if partition not in now.reports:
                self._send_message(ShardMessageKind.ASK, partition, now, step)

    def _handle_question(self, message: ShardMessage, now_ms: int, step: S) -> None:
        now = self._retirable.retirement
        if now is not None and now.id == message.id and self._partition in now.reports:
            self._send_message(ShardMessageKind.REPORT, 0, now, step, now.reports[self._partition])
        else:  # a forced deletion reads on, too, because records of a transfer prevent it (C77)
            self._begin_check(message, step)

    def _begin_check(self, message: ShardMessage, step: S) -> None:
        """Read the logs up to the ends that they have now; a message to this shard itself comes behind them."""
        self.checking, self.checks_use = True, message.cause is Cause.IDLE
        check = replace(message, kind=ShardMessageKind.CHECK, sender=self._partition, to=self._partition)
        step.shard_messages.append(check)

    def _check_and_report(self, message: ShardMessage, now_ms: int, step: S) -> None:
        if any(one.kind is ShardMessageKind.CHECK for one in step.shard_messages):
            return  # an earlier epoch wrote this one: the shard's own is not sent yet
        asked, self.checking, self.checks_use = self.checking, False, False
        now = self._retirable.retirement
        if now is not None and (now.phase is Phase.RETIRED or now.id > message.id):
            return
        if now is not None and now.id == message.id and self._partition in now.reports:
            # Another question, or a repeated one. What the shard has promised holds until the decision.
            if self._partition:
                self._send_message(ShardMessageKind.REPORT, 0, now, step, now.reports[self._partition])
            return
        if not asked:  # an earlier epoch wrote it, and did not read on
            self._begin_check(message, step)
            return
        report = self._retirable.report(message.cause, message.force, now_ms)
        if self._partition == 0:
            if now is not None and now.id == message.id:
                self._retirable.journal_retirement(now.reported(0, report), step)
                self._conclude(now_ms, step)
            return
        promise = Retirement(
            phase=Phase.PREPARED,
            id=message.id,
            cause=message.cause,
            force=message.force,
            since_ms=now_ms,
            reports={self._partition: report},
        )
        if report.willing:
            self._again_ms = now_ms + REPORT_AGAIN_MS
            self._retirable.journal_retirement(promise, step)
        elif now is not None:
            self._retirable.journal_retirement(
                None, step
            )  # an older agreement, against which the first shard has decided
        self._send_message(ShardMessageKind.REPORT, 0, promise, step, report)

    def _handle_report(self, message: ShardMessage, now_ms: int, step: S) -> None:
        now = self._retirable.retirement
        if self._partition or message.report is None:
            return
        if now is not None and now.phase is Phase.RETIRED:
            self._send_message(ShardMessageKind.DECIDED, message.sender, now, step)
        elif now is not None and now.id == message.id:
            if now.reports.get(message.sender) != message.report:
                self._retirable.journal_retirement(now.reported(message.sender, message.report), step)
                self._conclude(now_ms, step)
        elif message.report.willing:
            released = ShardMessage(kind=ShardMessageKind.RELEASED, id=message.id, sender=0, to=message.sender)
            step.shard_messages.append(released)

    def _conclude(self, now_ms: int, step: S, *, late: bool = False) -> None:
        """Decide if all shards have reported, one has vetoed idleness, or it is `late`."""
        now = self._retirable.retirement
        assert now is not None
        missing = [partition for partition in range(self._shards) if partition not in now.reports]
        vetoed = now.cause is Cause.IDLE and not all(report.willing for report in now.reports.values())
        if missing and not late and not vetoed:
            return
        reports = now.reports.values()
        if not missing and all(report.willing for report in reports):
            self._retire(replace(now, phase=Phase.RETIRED, reports={}, asker=None), now_ms, step)
            for partition in range(1, self._shards):
                self._send_message(ShardMessageKind.DECIDED, partition, now, step)
            refusal = None
        else:
            self._retirable.journal_retirement(None, step)
            for partition in range(1, self._shards):
                self._send_message(ShardMessageKind.RELEASED, partition, now, step)
            last_used_ms = max((report.active_ms for report in reports), default=0)
            self._not_idle_before_ms = max(now_ms + ASK_AGAIN_MS, last_used_ms + self._retirable.idle_ms())
            refusal = self._silence_refusal(missing) if missing else self._objection_refusal(reports)
        if now.asker is not None:
            step.verdicts.append(Verdict(now.asker, refusal, summed(reports)))

    def _silence_refusal(self, missing: Sequence[int]) -> Refusal:
        return Refusal(
            ErrorCode.SHARD_UNAVAILABLE,
            f"{self._name}: shard {', '.join(map(str, missing))} did not say within {GIVE_UP_MS // 1000} s whether "
            "it may be deleted; nothing was deleted. See that workers run, and ask again",
        )

    def _objection_refusal(self, reports: Iterable[Report]) -> Refusal:
        unwilling = [report for report in reports if not report.willing]
        return Refusal(ErrorCode.IN_USE, objection(self._name, unwilling))

    def _retire(self, retirement: Retirement, now_ms: int, step: S) -> None:
        retirement = replace(retirement, since_ms=now_ms)
        self._cleared = self.checking = self.checks_use = False
        self._again_ms = now_ms
        self._retirable.journal_retirement(retirement, step)
        why = f"idle for {self._retirable.idle_ms() // 1000} s" if retirement.cause is Cause.IDLE else "by command"
        step.events.append(ShardEvent(EventKind.DELETED, now_ms, detail=f"{self._retirable.event_prefix}{why}"))

    def _handle_end(self, now: Retirement, now_ms: int, step: S) -> None:
        """Note that another shard is gone. After the last one this shard does not wait until it would ask again."""
        self._retirable.journal_retirement(now, step)
        if not self._missing(now):
            self._again_ms = now_ms

    def _missing(self, now: Retirement) -> list[int]:
        """Return the other shards that have not reported yet that they are gone."""
        return [partition for partition in range(1, self._shards) if partition not in now.gone]

    def _stop_or_wait(self, now: Retirement, now_ms: int, step: S) -> None:
        if self._partition:
            self._send_message(ShardMessageKind.GONE, 0, now, step)
            self.stopped = True
            return
        missing = self._missing(now)
        self.stopped = not missing
        self._again_ms = now_ms + ASK_AGAIN_MS
        for partition in missing:
            self._send_message(ShardMessageKind.DECIDED, partition, now, step)

    def _send_message(
        self, kind: ShardMessageKind, to: int, now: Retirement, step: S, report: Report | None = None
    ) -> None:
        message = ShardMessage(
            kind=kind,
            id=now.id,
            sender=self._partition,
            to=to,
            cause=now.cause,
            force=now.force,
            report=report,
        )
        step.shard_messages.append(message)
