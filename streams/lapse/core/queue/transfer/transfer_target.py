"""Transfer target: the side of a transfer that receives messages (Q17).

A transfer puts records on an underlying topic. They enter as *unconfirmed*: invisible, while their lifetime goes on.
Once the source has removed a message, its record is *accepted*: it gets a place as if it had arrived then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lapse.core.queue.decision import Decisions
from lapse.core.queue.life.table import Trigger
from lapse.core.queue.schedule.schedule import Schedule
from lapse.core.queue.settlement.locator import left_before
from lapse.core.queue.settlement.settlement import Claim, Outcome, Result
from lapse.core.queue.step import Step


class TransferTarget:
    """Accepts or discards records that transfers have put here.

    Attributes:
        unread: by transfer, how many records it has put beyond the target depth, as of the last look at the logs (Q13).
    """

    def __init__(self, decisions: Decisions, schedule: Schedule) -> None:
        self.unread: Mapping[str, int] = {}
        self._decisions = decisions
        self._schedule = schedule
        self._state = decisions.state

    def accept(self, transfer_id: str, claims: Iterable[Claim], now_ms: int, step: Step) -> list[Outcome]:
        """Make messages visible that a transfer has put here, after they have left the source. Return the outcomes."""
        outcomes: list[Outcome] = []
        for claim in claims:
            number = self._state.sources.find(claim.topic, claim.partition)
            seen = 0 if number is None else self._state.sources[number].next_offset
            at = claim.first
            if number is not None:
                source = self._state.sources[number]
                for offset in list(self._state.scheduled.between(number, claim.first, min(claim.last, seen - 1))):
                    if offset > at:
                        outcomes.extend(left_before(source, at, offset - 1))
                    result = self._accept(transfer_id, number, offset, now_ms, step)
                    outcomes.append(Outcome(*claim[:2], offset, offset, result))
                    at = offset + 1
                if at < min(seen, claim.last + 1):
                    outcomes.extend(left_before(source, at, min(seen - 1, claim.last)))
                    at = seen
            if at <= claim.last:
                outcomes.append(Outcome(*claim[:2], max(at, claim.first), claim.last, Result.UNKNOWN))
        return outcomes

    def discard(self, transfer_id: str, now_ms: int, step: Step) -> int:
        """Discard unconfirmed messages of a transfer (`withdrawn`), and return their number."""
        scheduled = self._state.scheduled
        if not scheduled.unconfirmed:
            return 0
        thrown = sorted(
            (at, one) for at, one in scheduled.items() if one.transfer == transfer_id and not one.in_transfer
        )
        for (source, offset), _ in thrown:
            self._schedule.remove(Trigger.DISCARD, source, offset, now_ms, step)
        return len(thrown)

    def _accept(self, transfer_id: str, number: int, offset: int, now_ms: int, step: Step) -> Result:
        scheduled = self._state.scheduled[number, offset]
        if scheduled.in_transfer or scheduled.transfer != transfer_id:
            # It was accepted before and is scheduled now, or it belongs to another transfer.
            return Result.ALREADY_SETTLED if not scheduled.transfer else Result.UNKNOWN
        if scheduled.deadline_ms <= self._decisions.deadlines_count_ms(now_ms):
            return Result.TIME_LIMIT
        self._schedule.release(Trigger.ACCEPT, number, offset, now_ms, step)
        return Result.SETTLED
