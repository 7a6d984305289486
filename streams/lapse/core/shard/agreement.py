"""The agreement of an entity's shards on its end, in two steps (C4, Q18).

The first shard, that of partition 0, asks all shards, itself included. Each reads on to where its logs ended, looks at
what is there, and reports. One that has nothing against it prepares itself, durably: it takes in and delivers nothing
more until it knows the decision. When all are willing, the first shard's journal says RETIRED, which decides it; else
it says nothing any more, and all go on. A prepared shard asks for the decision again and again, so that no crash leaves
one behind; what the first shard does not know was decided against.

A shard that is retired lets what is left leave, answers for a while that the entity is deleted, says that it is gone,
and is stopped: it writes nothing more, so the topics can be removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Generic, Protocol, TypeVar

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.lifetime import NEVER
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
"""How long the first shard waits before it says something again that was not answered."""

GIVE_UP_MS: Final = 20_000
"""How long the first shard waits for all reports before it decides against it; less than a client waits."""

REPORT_AGAIN_MS: Final = 5_000
"""How long a prepared shard waits for the decision before it reports again."""

GRACE_MS: Final = 5_000
"""How long a retired shard answers that the entity is deleted; longer than a subscriber's heartbeat takes to come."""

UNUSED_GRACE_MS: Final = 1_000
"""The same without subscriptions: then only commands are to be answered that are on their way already."""


class Agreed(Protocol):
    """What the agreement puts down in a step of the shard.

    Attributes:
        shard_messages: to other shards, to be sent once the step is durable.
        verdicts: answers to whom asked, likewise.
    """

    shard_messages: list[ShardMessage]
    verdicts: list[Verdict]


S = TypeVar("S", bound=Agreed, contravariant=True)
"""A step of the shard."""


class RetirableShard(Protocol[S]):
    """What the agreement asks of the shard that it is about."""

    @property
    def retirement(self) -> Retirement | None:
        """What the journal says; None = in service."""

    def keep(self, retirement: Retirement | None, step: S) -> None:
        """Journal it."""

    def report(self, cause: Cause, force: bool, now_ms: int) -> Report:
        """Say what is there, and whether that stands in the way."""

    def clear(self, retirement: Retirement, now_ms: int, step: S) -> bool:
        """Let some of what is left leave; whether that was all."""

    def tell(self, retirement: Retirement, now_ms: int, step: S) -> None:
        """Tell the world that the entity is deleted."""

    def is_subscribed(self) -> bool:
        """Whether a client is subscribed, and so sends heartbeats."""

    def idle_at_ms(self) -> int:
        """From when on the shard counts as idle if nothing happens, ms since the epoch; `NEVER` if it cannot."""

    def idle_ms(self) -> int:
        """How long it takes to count as idle, ms."""


class Agreement(Generic[S]):
    """One shard's part in the agreement.

    Args:
        name: the entity.
        partition: the shard's.
        shards: how many the entity has.
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
        """Whether a question waits until the shard has read what the logs held."""
        self.stopped = False
        """Whether nothing is left to do, so that the shard must not write any more."""

    @property
    def retirement(self) -> Retirement | None:
        """How far it is; None = in service."""
        return self._retirable.retirement

    @property
    def frozen(self) -> bool:
        """Whether the shard takes in and delivers nothing: it has prepared itself, or is retired."""
        now = self._retirable.retirement
        if now is None:
            return False
        own = now.reports.get(self._partition)
        return now.phase is not Phase.ASKING or (own is not None and own.willing)

    @property
    def retired(self) -> bool:
        """Whether it is decided."""
        now = self._retirable.retirement
        return now is not None and now.phase is Phase.RETIRED

    @property
    def leaving(self) -> bool:
        """Whether everything has left that was there, and only the topics are."""
        return self.retired and self._cleared

    # What comes in

    def delete(self, asker: Asker, force: bool, now_ms: int, step: S) -> Refusal | None:
        """Begin to agree on a deletion; returns why not, None = the answer comes later."""
        if self._partition:
            why = f"delete: it goes to the first shard, partition 0; this is {self._partition}"
            return Refusal(ErrorCode.INVALID_ARGUMENT, why)
        if self._retirable.retirement is not None:
            return Refusal(ErrorCode.DELETE_IN_PROGRESS, f"delete: {self._name} is about to be deleted already")
        self._begin(Cause.DELETE, force, asker, now_ms, step)
        return None

    def receive(self, message: ShardMessage, now_ms: int, step: S) -> None:
        """Take in a message of another shard, or of oneself; what no shard of the entity says counts for nothing."""
        now = self._retirable.retirement
        if not 0 <= message.sender < self._shards:
            return
        match message.kind:
            case ShardMessageKind.ASK:
                self._asked(message, now_ms, step)
            case ShardMessageKind.CHECK:
                self._check(message, now_ms, step)
            case ShardMessageKind.REPORT:
                self._reported(message, now_ms, step)
            case ShardMessageKind.DECIDED:
                if now is None or now.phase is not Phase.RETIRED:
                    self._retire(Retirement(phase=Phase.RETIRED, id=message.id, cause=message.cause), now_ms, step)
            case ShardMessageKind.RELEASED:
                if now is not None and now.phase is Phase.PREPARED and now.id == message.id:
                    self._retirable.keep(None, step)
            case ShardMessageKind.GONE:
                if now is not None and now.phase is Phase.RETIRED and message.sender not in now.gone:
                    self._retirable.keep(replace(now, gone=now.gone | {message.sender}), step)

    def used(self, now_ms: int, step: S) -> None:
        """Somebody uses the shard: that vetoes its end for idleness, as long as it is not decided."""
        now = self._retirable.retirement
        if now is None or now.cause is not Cause.IDLE or now.phase is Phase.RETIRED:
            return
        report = Report(willing=False, active_ms=now_ms)
        if now.phase is Phase.PREPARED:
            self._say(ShardMessageKind.REPORT, 0, now, step, report)
        else:
            self._retirable.keep(now.reported(0, report), step)
            self._conclude(now_ms, step)

    def take_over(self, now_ms: int) -> None:
        """Begin an epoch: whatever was to be said may not have been."""
        self._again_ms = now_ms

    # What time brings

    def next_due_ms(self) -> int:
        """When `advance` has something to do next, ms since the epoch."""
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
                self._ask(now, now_ms, step)
        elif now.phase is Phase.PREPARED:
            self._again_ms = now_ms + REPORT_AGAIN_MS
            self._say(ShardMessageKind.REPORT, 0, now, step, now.reports.get(self._partition))
        elif not self._cleared:
            self._cleared = self._retirable.clear(now, now_ms, step)
        else:
            self._leave(now, now_ms, step)

    # Inside

    def _begin(self, cause: Cause, force: bool, asker: Asker | None, now_ms: int, step: S) -> None:
        self._last_id = max(now_ms, self._last_id + 1)
        asking = Retirement(
            phase=Phase.ASKING, id=self._last_id, cause=cause, force=force, since_ms=now_ms, asker=asker
        )
        self._retirable.keep(asking, step)
        self._ask(asking, now_ms, step)

    def _ask(self, now: Retirement, now_ms: int, step: S) -> None:
        self._again_ms = min(now_ms + ASK_AGAIN_MS, now.since_ms + GIVE_UP_MS)
        for partition in range(self._shards):
            if partition not in now.reports:
                self._say(ShardMessageKind.ASK, partition, now, step)

    def _asked(self, message: ShardMessage, now_ms: int, step: S) -> None:
        now = self._retirable.retirement
        if now is not None and now.id == message.id and self._partition in now.reports:
            self._say(ShardMessageKind.REPORT, 0, now, step, now.reports[self._partition])
        else:  # a forced one, too, reads on: what a transfer has put here stands in its way (C77)
            self.checking = True
            check = replace(message, kind=ShardMessageKind.CHECK, sender=self._partition, to=self._partition)
            step.shard_messages.append(check)

    def _check(self, message: ShardMessage, now_ms: int, step: S) -> None:
        self.checking = False
        now = self._retirable.retirement
        if now is not None and (now.phase is Phase.RETIRED or now.id > message.id):
            return
        report = self._retirable.report(message.cause, message.force, now_ms)
        if self._partition == 0:
            if now is not None and now.id == message.id:
                self._retirable.keep(now.reported(0, report), step)
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
            self._retirable.keep(promise, step)
        elif now is not None:
            self._retirable.keep(None, step)  # an older promise: whoever asks anew has decided against that
        self._say(ShardMessageKind.REPORT, 0, promise, step, report)

    def _reported(self, message: ShardMessage, now_ms: int, step: S) -> None:
        now = self._retirable.retirement
        if self._partition or message.report is None:
            return
        if now is not None and now.phase is Phase.RETIRED:
            self._say(ShardMessageKind.DECIDED, message.sender, now, step)
        elif now is not None and now.id == message.id:
            if now.reports.get(message.sender) != message.report:
                self._retirable.keep(now.reported(message.sender, message.report), step)
                self._conclude(now_ms, step)
        elif message.report.willing:
            released = ShardMessage(kind=ShardMessageKind.RELEASED, id=message.id, sender=0, to=message.sender)
            step.shard_messages.append(released)

    def _conclude(self, now_ms: int, step: S, *, late: bool = False) -> None:
        """Decide, once everybody has reported, or it is too late for that."""
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
                self._say(ShardMessageKind.DECIDED, partition, now, step)
            refusal = None
        else:
            self._retirable.keep(None, step)
            for partition in range(1, self._shards):
                self._say(ShardMessageKind.RELEASED, partition, now, step)
            last_used_ms = max((report.active_ms for report in reports), default=0)
            self._not_idle_before_ms = max(now_ms + ASK_AGAIN_MS, last_used_ms + self._retirable.idle_ms())
            refusal = self._silent(missing) if missing else self._objected(reports)
        if now.asker is not None:
            step.verdicts.append(Verdict(now.asker, refusal, summed(reports)))

    def _silent(self, missing: Sequence[int]) -> Refusal:
        return Refusal(
            ErrorCode.SHARD_UNAVAILABLE,
            f"{self._name}: shard {', '.join(map(str, missing))} did not say within {GIVE_UP_MS // 1000} s whether "
            "it may be deleted; nothing was deleted. See that workers run, and ask again",
        )

    def _objected(self, reports: Iterable[Report]) -> Refusal:
        unwilling = [report for report in reports if not report.willing]
        return Refusal(ErrorCode.IN_USE, objection(self._name, unwilling))

    def _retire(self, retirement: Retirement, now_ms: int, step: S) -> None:
        retirement = replace(retirement, since_ms=now_ms)
        self._cleared = self.checking = False
        self._again_ms = now_ms
        self._retirable.keep(retirement, step)
        self._retirable.tell(retirement, now_ms, step)

    def _leave(self, now: Retirement, now_ms: int, step: S) -> None:
        if self._partition:
            self._say(ShardMessageKind.GONE, 0, now, step)
            self.stopped = True
            return
        missing = [partition for partition in range(1, self._shards) if partition not in now.gone]
        self.stopped = not missing
        self._again_ms = now_ms + ASK_AGAIN_MS
        for partition in missing:
            self._say(ShardMessageKind.DECIDED, partition, now, step)

    def _say(self, kind: ShardMessageKind, to: int, now: Retirement, step: S, report: Report | None = None) -> None:
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
