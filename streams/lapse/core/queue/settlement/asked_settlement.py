"""A settlement that is carried out: what the command asks for, and the outcomes so far (Q8, C13 to C18)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from lapse.core.queue.decision import Slots
from lapse.core.queue.life.table import Guard, Trigger
from lapse.core.queue.settlement import settlement
from lapse.core.queue.settlement.settlement import Claim, Outcome, Result, SettleAction
from lapse.core.queue.step import Step

_CANCEL: Final = SettleAction.CANCEL  # a look-up in the enumeration takes five times as long


@dataclass(slots=True)
class Settlement:
    """A command that settles messages, and its outcomes.

    Attributes:
        action: the action.
        subscription: id of the settling subscription; sublet leasing allows unknown ones.
        now_ms: the command's instant, ms since the epoch.
        step: receives the decisions.
        until_ms: CANCEL: end of the delay, 0 = no delay; RENEW: end of the leases. Both are ms since the epoch.
        retries: CANCEL: whether the delay of the message or of the queue applies, since the command states none (Q24).
        row_filter: the messages that the user may see besides those that they hold; empty = all (X4).
        fault: EXPIRE: what is wrong with the messages, for their letters and events; empty = not stated.
        quiet: whether nobody asks for the outcomes of messages that were settled, so that these need not be listed.
        has_settled: whether a message was settled whose outcome is not listed.
        outcomes: the outcomes so far, in the order of the claims.
        judged: messages that are to be settled together, ascending by place.
    """

    action: SettleAction
    subscription: str
    now_ms: int
    step: Step
    until_ms: int = 0
    row_filter: str = ""
    retries: bool = False
    fault: str = ""
    quiet: bool = False
    has_settled: bool = False
    outcomes: list[Outcome] = field(default_factory=list)
    judged: Slots = field(default_factory=list)

    @property
    def trigger(self) -> Trigger:
        """The trigger for the messages that it settles."""
        return settlement.TRIGGERS[self.action]

    @property
    def guard(self) -> Guard | None:
        """The guard that chooses the row: DELAY for a cancel with a delay."""
        return Guard.DELAY if self.until_ms and self.action is _CANCEL else None

    def add_result(self, claim: Claim, result: Result) -> None:
        """Add one result for all messages of a claim."""
        self.outcomes.append(Outcome(*claim[:4], result))
