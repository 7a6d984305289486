"""Settlement commands: settle messages or renew leases, by bookmarks or by a filter (Q8, C13 to C18)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from lapse.core.letter import FORWARDER
from lapse.core.queue.answer import bounded_fields, count_messages
from lapse.core.queue.arrival.target_depth import UNLIMITED
from lapse.core.queue.parts_done import PartsDone
from lapse.core.queue.segments.segment import NOBODY
from lapse.core.queue.settlement import settlement
from lapse.core.queue.settlement.named_settlement import NamedSettlement
from lapse.core.queue.settlement.settlement import SETTLEMENTS, Claim, Outcome, Result, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.shard.refused import CommandRefused
from lapse.core.shard.untaken_fields import UNTAKEN_BY_QUEUES, untaken_fields
from lapse.protocol.command import Command

SETTLED_AT_ONCE: Final = 32_768
"""About how many messages one step of a settlement by filter settles, or an eighth as many ranges (C60)."""

_UNKNOWN: Final = NOBODY - 1
"""The number of a subscription that is not known: nothing was sent to it."""


class SettlementCommands:
    """Carries out settlement commands. Those about very many messages are done in parts (C60).

    Args:
        shard: the shard.
        row_filter: returns the row filter of the command's user; empty = all messages (X4).
        parts: the results so far of the settlement by filter in progress.
    """

    def __init__(self, shard: QueueShard, row_filter: Callable[[], str], parts: PartsDone) -> None:
        self._shard = shard
        self._row_filter = row_filter
        self._parts = parts
        self._by_bookmarks: tuple[Command, NamedSettlement] | None = None
        """The latest settlement by bookmarks, with its command."""
        self._renewed_to_ms = 0

    def claims(self, command: Command) -> Sequence[Claim]:
        """Return the messages that a command names.

        Raises:
            CommandRefused: the command names nothing valid, or the same messages too often.
        """
        if command.filter and command.bookmarks:
            raise CommandRefused(f"{command.command}: name either bookmarks or a filter, not both")
        if command.filter:
            return self._shard.selection.selected(command.filter, self._sent_to(command))
        if not command.bookmarks:
            raise CommandRefused(f"{command.command}: field bookmarks names no message")
        return self._named_settlement(command).claims()

    def _sent_to(self, command: Command) -> int:
        """Return whose sent messages a filter covers: all, or under a row filter only the sender's own (C18, X4)."""
        if not self._row_filter():
            return NOBODY
        known = self._shard.state.subscriptions.get(command.subscription)
        return _UNKNOWN if known is None else known.number

    def _named_settlement(self, command: Command) -> NamedSettlement:
        """Return the settlement of a command's bookmarks, created once for the command."""
        if self._by_bookmarks is None or self._by_bookmarks[0] is not command:
            self._by_bookmarks = command, NamedSettlement(command, self._shard.state)
        return self._by_bookmarks[1]

    def settle_part(self, command: Command, at_ms: int, step: Step) -> bool:
        """Carry out a part of a settlement of very many messages. Return whether another part must follow.

        A part by filter ends at the end of a segment. `settle` or `renew` does the last part, and answers for all.
        """
        if command.bookmarks:
            return self._settle_named_part(command, at_ms, step)
        if command.command not in SETTLEMENTS or not command.filter or is_refused(command):
            return False
        if command.command == "renew" and self._renew_refusal(command) is not None:
            return False
        sent_to = self._sent_to(command)
        claims, at = self._shard.selection.selected_part(
            command.filter, self._parts.settled_to, SETTLED_AT_ONCE, sent_to
        )
        if at is None:
            return False
        self._add(command, self._carry_out(command, claims, at_ms, step))
        self._parts.settled_to = at
        return True

    def _add(self, command: Command, outcomes: list[Outcome]) -> None:
        """Add the outcomes of a part. An answer to a renewal tells all of them."""
        if command.command == "renew":
            self._parts.settled += outcomes
        else:
            self._parts.add(outcomes)

    def _settle_rest(self, command: Command, at_ms: int, step: Step) -> list[Outcome]:
        """Do the last part of a settlement by filter; return the outcomes of all parts."""
        parts = self._parts
        if parts.settled_to < 0:
            claims = self.claims(command)
        else:
            sent_to = self._sent_to(command)
            claims, _ = self._shard.selection.selected_part(command.filter or "", parts.settled_to, UNLIMITED, sent_to)
        self._add(command, self._carry_out(command, claims, at_ms, step))
        return parts.settled

    def settle(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        """Acknowledge, cancel or expire messages. Return the fields of the answer."""
        if not command.filter:
            return bounded_fields(self._settle_named(command, at_ms, step), command, {})
        settled, parts = self._settle_rest(command, at_ms, step), self._parts
        scheduled = self._shard.selection.selected_scheduled(command.filter)  # a filter does not settle them (C16)
        counts = {"settled": count_messages(settled), "skipped": parts.skipped + len(scheduled)}
        answered = bounded_fields(settled, command, counts)
        parts.clear()
        return answered

    def renew(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        """Extend leases. Return the fields of the answer."""
        if (refusal := self._renew_refusal(command)) is not None:
            raise refusal
        if command.filter:
            outcomes = self._settle_rest(command, at_ms, step)
        else:
            outcomes = self._settle_named(command, at_ms, step)
        renewed = any(outcome.result is Result.SETTLED for outcome in outcomes)
        answered = bounded_fields(outcomes, command, {}) | {"lease_until_ms": self._renewed_to_ms if renewed else None}
        if command.filter:
            self._parts.clear()
        return answered

    def _renew_refusal(self, command: Command) -> CommandRefused | None:
        longest_ms = self._shard.settings.max_lease_ms
        if command.lease_ms is not None and command.lease_ms > longest_ms:
            return CommandRefused(
                f"renew: lease_ms is {command.lease_ms}; the queue's max_lease_period is {longest_ms} ms"
            )
        if not command.subscription:
            return CommandRefused("renew: field subscription is required; choose a name that nobody else has")
        return None

    def _settle_named_part(self, command: Command, at_ms: int, step: Step) -> bool:
        if command.command not in SETTLEMENTS or command.filter or _has_wrong_fields(command):
            return False
        if command.command == "renew" and self._renew_refusal(command) is not None:
            return False
        named = self._named_settlement(command)
        if not named.began and named.is_small:
            return False
        if not named.is_read:
            named.read_part()
            return True
        if named.is_last:
            return False
        part = self._without_repeats(named, named.take_part())
        if self._shard.is_due(at_ms):
            self._shard.end_named_leases(part, at_ms, step)  # their due leases may wait behind very many others (C60)
        named.add_outcomes(self._carry_out(command, part, at_ms, step))
        return True

    def _settle_named(self, command: Command, at_ms: int, step: Step) -> list[Outcome]:
        """Settle the messages that bookmarks name, or the last part of them."""
        self.claims(command)
        named = self._named_settlement(command)
        self._by_bookmarks = None
        named.add_outcomes(self._carry_out(command, self._without_repeats(named, named.take_rest()), at_ms, step))
        return named.outcomes_as_named()

    def _without_repeats(self, named: NamedSettlement, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Return claims without messages that an earlier part named with a stale token."""
        return list(settlement.without_repeats(claims, named.outcomes)) if named.outcomes and named.overlaps else claims

    def _carry_out(self, command: Command, claims: Sequence[Claim], at_ms: int, step: Step) -> list[Outcome]:
        if command.filter:
            self._shard.end_named_leases(claims, at_ms, step)  # their due leases may wait behind very many others (C60)
        row_filter = "" if command.filter else self._row_filter()
        if command.command == "renew":
            outcomes, self._renewed_to_ms = self._shard.renew(
                command.subscription, claims, at_ms, step, command.lease_ms, row_filter
            )
            return outcomes
        return self._shard.settle(
            SettleAction(command.command),
            command.subscription,
            claims,
            at_ms,
            step,
            command.delay_ms,
            row_filter,
            command.fault if command.command == "expire" else "",
            not command.filter and command.answer != "all",
        )


def is_refused(command: Command) -> bool:
    """Return whether `handle` will refuse a command that may take several steps, because of its fields."""
    return bool(command.bookmarks) or _has_wrong_fields(command)


def _has_wrong_fields(command: Command) -> bool:
    is_reserved = command.subscription == FORWARDER
    return bool(is_reserved or command.select or command.state or untaken_fields(command, UNTAKEN_BY_QUEUES))
