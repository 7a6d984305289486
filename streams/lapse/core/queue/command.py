"""Commands to a queue: the effect of each on the shard, and its answer (Q3, Q5, Q8, Q15, C13 to C21, X7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.expression import ExpressionError
from lapse.core.letter import FORWARDER
from lapse.core.near_name import did_you_mean
from lapse.core.queue.answer import open_subscription, queued_message
from lapse.core.queue.inquiry.inquiry import PLACED
from lapse.core.queue.inquiry.row_filter import chooses_spare_messages, peeks_by_bookmarks
from lapse.core.queue.modes import Semantics
from lapse.core.queue.parts_done import PartsDone
from lapse.core.queue.rewind.rewind_command import rewind_refusal, stopped
from lapse.core.queue.rewind.rewinding import RewindRequest
from lapse.core.queue.rewind.rewinds import Rewind
from lapse.core.queue.schedule.schedule import SCHEDULED_AT_ONCE
from lapse.core.queue.settlement.settlement import SETTLEMENTS, Claim, SettleAction
from lapse.core.queue.settlement.settlement_command import SettlementCommands, is_refused
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.queue.transfer.transfer_command import TransferCommands
from lapse.core.shard.answer import CommandAnswer, Counts
from lapse.core.shard.refused import CommandRefused
from lapse.core.shard.subscriptions import subscriptions_fields
from lapse.core.shard.untaken_fields import UNTAKEN_BY_QUEUES, check_fields
from lapse.core.shard.whole_entity import selection_refusal
from lapse.protocol.answer import HELD_UP
from lapse.protocol.command import MOST_PEEKED, QUEUE_COMMANDS, Command


class QueueCommands:
    """Carries out commands on one shard.

    Args:
        shard: the shard.
        publish_target: the topic to which a publish to the queue's name goes; part of some answers.
        refused: returns why the broker refuses the dead letter of a message, given its source number and offset.
    """

    def __init__(
        self, shard: QueueShard, publish_target: str, refused: Callable[[tuple[int, int]], str] = lambda name: ""
    ) -> None:
        self._shard = shard
        self._publish_target = publish_target
        self._refused = refused
        self._row_filter: str | None = None
        self.parts = PartsDone()
        """The results so far of the purge or settlement by filter in progress."""
        self.oldest_ms: int | None = None
        """Arrival of the oldest message, ms since the epoch, set before a depth command; None = no message."""
        self.counted: Rewind | None = None
        """A finished dry run of a rewind whose answer is due."""
        self._settling = SettlementCommands(shard, lambda: self._row_filter or "", self.parts)
        self._transfers = TransferCommands(shard, lambda: self._row_filter is None)
        self._handlers: dict[str, Callable[[Command, int, Step], dict[str, Any]]] = {
            **self._transfers.handlers,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "heartbeat": self._heartbeat,
            "acknowledge": self._settling.settle,
            "cancel": self._settling.settle,
            "expire": self._settling.settle,
            "renew": self._settling.renew,
            "depth": self._depth,
            "subscriptions": self._subscriptions,
            "sow": self._peek,
            "pause": self._pause,
            "resume": self._resume,
            "purge": self._purge,
            "rewind": self._rewind,
        }

    def needs_selection(self, command: Command) -> bool:
        """Return whether messages must be judged under a command's own filter before it can be carried out."""
        return bool(command.filter) and command.command in _SELECTING and not _counts_nothing(command)

    def is_sweep(self, command: Command) -> bool:
        """Return whether a command concerns all messages published up to its instant, or all matching ones (C1)."""
        return command.command == "purge" or bool(command.filter and command.command in SETTLEMENTS)

    def sources_named_ahead(self, command: Command) -> list[tuple[str, int]]:
        """Return the sources of which an acknowledgment or a transfer names messages that are not active yet (Q13)."""
        if command.command not in _LOOKING_AHEAD or command.filter or self._shard.settings.target_depth is None:
            return []
        try:
            named = (
                self._settling.claims(command) if command.command == "acknowledge" else self._transfers.claims(command)
            )
            return self._shard.sources_named_ahead(named)
        except ValueError:
            return []

    def needs_preparation(self, command: Command, row_filter: str | None) -> bool:
        """Return whether records must be read or messages judged before a command can be carried out."""
        if self.needs_selection(command) or self.sources_named_ahead(command):
            return True
        if command.command == "depth":
            return not _counts_nothing(command)
        return self._needs_judgment(command, row_filter)

    def _needs_judgment(self, command: Command, row_filter: str | None) -> bool:
        """Return whether the messages that a settlement names must be judged under its user's row filter (X4)."""
        return row_filter is not None and (
            any(self._places_not_held(command)) or any(self.offsets_without_place(command))
        )

    def selection(self, command: Command, row_filter: str | None) -> str:
        """Return the filter under which messages must be judged before a command is carried out; empty = none."""
        if self.needs_selection(command):
            return command.filter or ""
        return (row_filter or "") if self._needs_judgment(command, row_filter) else ""

    def places_to_judge(self, command: Command, text: str, now_ms: int) -> Iterator[Sequence[int]]:
        """Yield places of messages to judge under a selection, some at a time. Judge them before asking for more."""
        if chooses_spare_messages(command):
            yield self._transfers.places_to_judge(command, now_ms)
            return
        if not command.filter:
            yield from self._places_not_held(command)
            return
        if command.state and command.state not in PLACED:  # a peek at others
            return
        while places := self._shard.selection.places_to_judge(text):
            yield places

    def scheduled_to_judge(self, command: Command, text: str) -> Iterator[tuple[str, int, list[int]]]:
        """Yield topic, partition and offsets of messages without a place that a filter covers as well (C82, C83)."""
        judged = command.command in _ABOUT_SCHEDULED and command.filter and not chooses_spare_messages(command)
        return self._shard.selection.scheduled_to_judge(text) if judged else iter(())

    def _places_not_held(self, command: Command) -> Iterator[Sequence[int]]:
        """Yield places of messages that a settlement names and that its subscription does not hold (X4)."""
        yield from self._shard.places_not_held(command.subscription, self.named_messages(command))

    def offsets_without_place(self, command: Command) -> Iterator[tuple[str, int, list[int]]]:
        """Yield topic, partition and offsets of messages that a settlement names and that have no place (X4)."""
        yield from self._shard.offsets_without_place(command.subscription, self.named_messages(command))

    def named_messages(self, command: Command) -> Sequence[Claim]:
        """Return the messages that a settlement or peek names by bookmarks; none if it has a filter or is malformed."""
        if command.filter or not (command.command in SETTLEMENTS or peeks_by_bookmarks(command)):
            return []
        try:
            return self._settling.claims(command)
        except ValueError:
            return []

    def note_use(self, command: Command, at_ms: int, step: Step) -> None:
        """Note a command as use of the queue (Q18).

        A look at messages of topics that the queue has not read is none: `lapse explain` asks several queues whether
        they have a message.
        """
        looked_at = self.named_messages(command) if peeks_by_bookmarks(command) else []
        find = self._shard.state.sources.find
        if not looked_at or any(find(claim.topic, claim.partition) is not None for claim in looked_at):
            self._shard.note_use(at_ms, step)

    def handle(self, command: Command, at_ms: int, step: Step, row_filter: str | None = None) -> None:
        """Carry out a command as of an instant. A refused command changes nothing.

        The messages that the command concerns must have been judged under its `selection` before.

        Args:
            command: the command.
            at_ms: its instant, ms since the epoch.
            step: receives the command's effects and its answer.
            row_filter: an expression that limits what its user may see and change; None = no limit (X4).
        """
        shard = self._shard
        self._row_filter = row_filter
        is_reserved = command.subscription == FORWARDER
        if command.subscription and not is_reserved:
            shard.note_heartbeat(command.subscription, at_ms)
        context = command.id, command.command, command.subscription, at_ms
        handler = self._handlers.get(command.command)
        try:
            if handler is None:
                known = sorted(QUEUE_COMMANDS - {"tick"})
                meant = did_you_mean(command.command, known)
                raise CommandRefused(
                    f"queue {shard.settings.name}: unknown command {command.command!r}{meant}; known are "
                    f"{', '.join(known)}",
                    ErrorCode.UNKNOWN_COMMAND,
                )
            if is_reserved:
                raise CommandRefused(f"the queue itself forwards as {FORWARDER!r}; choose another name")
            check_fields(command, UNTAKEN_BY_QUEUES)
            if command.select:
                raise CommandRefused(
                    f"{command.command} of a queue takes no select: messages are delivered as they were published"
                )
            if (whole := selection_refusal(command)) is not None:
                raise CommandRefused(whole.text, whole.code)
            if command.state and command.command != "sow":
                raise CommandRefused(f"{command.command} takes no state: it is about messages in any state")
            facts = handler(command, at_ms, step)
        except CommandRefused as error:
            self.parts.clear()  # an earlier owner may have done some, by other settings
            if command.answer != "none":
                step.answers.append(CommandAnswer(*context, error.refusal))
            return
        refusal: Refusal | None = facts.pop("refusal", None)
        is_error = bool(refusal or facts.get("settlements"))
        if command.answer == "none" or (command.answer == "errors" and not is_error):
            return
        counts: Counts = facts.pop("counts", {})
        step.answers.append(CommandAnswer(*context, refusal, counts=tuple(counts.items()), facts=tuple(facts.items())))

    def _named(self, command: Command) -> str:
        if not command.subscription:
            raise CommandRefused(
                f"{command.command}: field subscription is required; choose a name that nobody else has"
            )
        return command.subscription

    def _subscribe(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        name = self._named(command)
        if command.bookmarks or command.keys:
            raise CommandRefused("subscribe takes a filter, neither keys nor bookmarks")
        settings = self._shard.settings
        try:
            subscription = self._shard.subscribing.subscribe(
                name,
                command.client,
                1 if command.max_backlog is None else command.max_backlog,
                command.heartbeat_timeout_ms or settings.heartbeat_timeout_ms,
                command.filter or "",
                at_ms,
                step,
                command.payload,
                self._row_filter or "",
            )
        except ExpressionError as error:
            raise CommandRefused(f"subscribe: filter: {error}", ErrorCode.INVALID_EXPRESSION) from error
        counts = {
            "max_backlog": subscription.max_backlog,
            "heartbeat_timeout_ms": subscription.heartbeat_timeout_ms,
            "lease_ms": settings.lease_ms,
            "outstanding": subscription.outstanding,
        }
        if settings.semantics is Semantics.AT_LEAST_ONCE:
            limits = {"max_deliveries": settings.max_deliveries, "max_cancels": settings.max_cancels}
            counts |= {name: limit for name, limit in limits.items() if limit}
        if settings.max_backlog is not None:
            counts["max_per_subscription_backlog"] = settings.max_backlog
        return {"counts": counts, "publish_target": self._publish_target}

    def _unsubscribe(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        if not self._shard.unsubscribe(self._named(command), at_ms, step):
            raise CommandRefused(
                f"unknown subscription {command.subscription!r}: it ended before, or never began here",
                ErrorCode.UNKNOWN_SUBSCRIPTION,
            )
        return {}

    def _heartbeat(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        if not self._shard.note_heartbeat(self._named(command), at_ms):
            raise CommandRefused(
                f"unknown subscription {command.subscription!r}: it was not heard of for too long; subscribe again",
                ErrorCode.UNKNOWN_SUBSCRIPTION,
            )
        return {}

    def _pause(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        self._shard.pause(at_ms, step)
        return {}

    def _resume(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        self._shard.resume(at_ms, step)
        return {}

    def _purge(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        if command.bookmarks:
            raise CommandRefused("purge takes a filter, not bookmarks, and without one it takes everything; use expire")
        removed, left = self._shard.purge(at_ms, step, command.leased, command.filter or "")
        removed = {state: count + self.parts.purged[state] for state, count in removed.items()}
        self.parts.clear()
        stayed = {f"skipped_{state}": count for state, count in left.items()}
        return {"counts": {"removed": sum(removed.values()), "skipped": sum(left.values()), **removed, **stayed}}

    def carry_out_part(self, command: Command, at_ms: int, step: Step, row_filter: str | None) -> bool:
        """Carry out a part of a purge or settlement of very many messages. Return whether another part must follow."""
        self._row_filter = row_filter
        return self._purge_part(command, at_ms, step) or self._settling.settle_part(command, at_ms, step)

    def _purge_part(self, command: Command, at_ms: int, step: Step) -> bool:
        """Carry out a part of a purge of very many messages. Return whether another part must follow (C60).

        A part removes up to `PURGED_AT_ONCE` messages with places and `SCHEDULED_AT_ONCE` scheduled ones. `handle`
        removes the rest.
        """
        if command.command != "purge" or is_refused(command):
            return False
        state, text = self._shard.state, command.filter or ""
        if sum(state.outline(index).occupied for index in state.segments) > PURGED_AT_ONCE:
            gone = self._shard.purge_placed(at_ms, step, command.leased, text, PURGED_AT_ONCE)
            self.parts.purged.update(gone)
            if sum(gone.values()) >= PURGED_AT_ONCE:
                return True
        if len(state.scheduled) <= SCHEDULED_AT_ONCE:
            return False
        gone = self._shard.purge_scheduled(at_ms, step, text, SCHEDULED_AT_ONCE)
        self.parts.purged.update(gone)
        return sum(gone.values()) == SCHEDULED_AT_ONCE

    def rewind(self, command: Command, at_ms: int, offset: int) -> RewindRequest | None:
        """Return the request of a rewind command; None if it is refused or done, so that it can be answered at once.

        Args:
            command: the command.
            at_ms: its instant, ms since the epoch.
            offset: its offset in the commands topic.
        """
        known = self._shard.state.rewinds.get(command.id)
        if rewind_refusal(command, self._shard, at_ms) is not None or (known is not None and known.done):
            return None
        kept = command.lifetimes == "kept"
        return RewindRequest(
            command.id, at_ms, offset, {}, command.filter or "", kept, command.handed_over, command.dry_run
        )

    def _rewind(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        refusal = rewind_refusal(command, self._shard, at_ms)
        if refusal is not None:
            raise refusal
        counted, self.counted = self.counted, None
        done = self._shard.state.rewinds.get(command.id) or counted
        assert done is not None
        return {"counts": dict(done.counts), "refusal": stopped(done)}

    def _depth(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        if _counts_nothing(command):
            lifetimes = int(self._shard.settings.expiration.enabled)
            return {"counts": {"lifetimes": lifetimes}, "publish_target": self._publish_target}
        if command.filter:
            return {"counts": self._shard.depth(command.filter, at_ms), "publish_target": self._publish_target}
        counts: Counts = {
            **self._shard.depth(now_ms=at_ms),
            **dict.fromkeys(HELD_UP, 0),
            **self._shard.held_up(at_ms),
            "paused": int(self._shard.state.paused),
        }
        counts["subscriptions"] = len(self._shard.state.subscriptions)
        counts["oldest_age_ms"] = None if self.oldest_ms is None else max(0, at_ms - self.oldest_ms)
        return {"counts": counts, "publish_target": self._publish_target}

    def _subscriptions(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        known = self._shard.state.subscriptions.values()
        return subscriptions_fields(
            command,
            (open_subscription(one, at_ms, self._shard.settings.lease_ms) for one in known),
            len(known),
            self._row_filter,
        )

    def _peek(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        if command.keys:
            raise CommandRefused("sow of a queue takes a filter or bookmarks, and no keys")
        if command.bookmarks and command.state:
            raise CommandRefused("sow: name either bookmarks or a state; bookmarks find messages in any state")
        if command.bookmarks:
            found = self._shard.find_named(self._settling.claims(command), at_ms, self._refused, self._row_filter or "")
            all_seen = self._row_filter is None
            return {"messages": tuple(queued_message(one, all_seen) for one in islice(found, MOST_PEEKED))}
        skip, limit = command.skip or 0, min(command.top_n if command.top_n is not None else MOST_PEEKED, MOST_PEEKED)
        found = self._shard.peek(skip, limit, command.filter or "", at_ms, self._refused, command.state)
        messages = [queued_message(one, self._row_filter is None) for one in found]
        counted = (command.filter or "") if self._row_filter is not None else ""
        counts = self._shard.depth(counted, at_ms) | ({} if counted else self._shard.held_up(at_ms))
        return {"messages": tuple(messages), "counts": counts}


PURGED_AT_ONCE: Final = 65_536
"""About how many messages with places leave in one step of a purge. One event of ranges takes milliseconds."""

_SELECTING = SETTLEMENTS | {"purge", "sow", "depth", "transfer"}
_ABOUT_SCHEDULED = _SELECTING - {SettleAction.RENEW}
"""Commands whose filters reach messages that are not visible yet."""

_LOOKING_AHEAD = frozenset({"acknowledge", "transfer", "transfer_accept"})


def _counts_nothing(command: Command) -> bool:
    """Return whether a depth command asks only about the queue and needs no count of its messages."""
    return command.command == "depth" and command.top_n == 0
