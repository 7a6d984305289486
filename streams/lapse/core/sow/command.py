"""Commands to a SOW topic: the effect of each on the shard, and its answer (S3, S5, S6, L5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypedDict

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.near_name import did_you_mean
from lapse.core.shard.answer import CommandAnswer, Counts
from lapse.core.shard.event import EventKind, ShardEvent
from lapse.core.shard.refused import CommandRefused
from lapse.core.shard.subscriptions import subscriptions_fields
from lapse.core.shard.untaken_fields import UNTAKEN_BY_SOW_TOPICS, check_fields
from lapse.core.sow import journal
from lapse.core.sow.query.candidates import Candidates
from lapse.core.sow.query.query import Query, QueryRequest
from lapse.core.sow.query.ranking import Order
from lapse.core.sow.query.select import Select
from lapse.core.sow.records.record_names import Walk
from lapse.core.sow.removal.deletion import Bookmarks, Deletion, DeletionByKeys, SelectiveDeletion
from lapse.core.sow.removal.removal import Removals
from lapse.core.sow.state import SowState
from lapse.core.sow.step import RunningQuery, Step
from lapse.core.sow.subscriptions.subscription import Predicate, Subscriber, Subscription, predicates
from lapse.core.sow.updates.record_updates import RecordUpdates
from lapse.core.sow.updates.scheduled_updates import Listing, Withdrawal, check_state
from lapse.protocol.command import SOW_COMMANDS, Command

_WITH_RECORDS: Final = frozenset({"sow_and_subscribe", "sow_and_delta_subscribe"})
"""Subscriptions that begin with the current records."""

_WITH_DELTAS: Final = frozenset({"delta_subscribe", "sow_and_delta_subscribe"})
"""Subscriptions that get only the changed fields of records that they have seen."""

_SELECTS: Final = frozenset({"sow", "subscribe"}) | _WITH_RECORDS | _WITH_DELTAS
"""Commands that return records, or some of their fields."""


class _SeenFrom(TypedDict, total=False):
    """The values of `Subscription` that say what it has seen."""

    since: int
    unsure: int
    unsure_ms: int


class SowCommands:
    """Carries out commands on one shard.

    Args:
        state: the shard's state.
        updates: applies updates to records.
        removals: removes records.
        note_use: notes a use of the topic at an instant (Q18).
    """

    __slots__ = ("_began_at", "_began_ms", "_candidates", "_note_use", "_removals", "_settings", "_state", "_updates")

    def __init__(
        self, state: SowState, updates: RecordUpdates, removals: Removals, note_use: Callable[[int, Step], None]
    ) -> None:
        self._state = state
        self._settings = state.settings
        self._candidates = Candidates(state)
        self._updates = updates
        self._removals = removals
        self._note_use = note_use
        self._began_ms, self._began_at = -1, 0
        """When the owner's epoch began, ms since 1970, and the sequence of the last update then."""

    def handle(self, command: Command, at_ms: int, step: Step, row_filter: str | None = None) -> None:
        """Carry out a command as of an instant. Records that have expired by then do not exist for it (L10, L11).

        `SowShard.advance` removes them. Its caller knows whether the shard has read all records that the logs held at
        that instant. Until then an update with a timestamp before the deadline may still arrive (C1). A refused command
        changes nothing.

        Args:
            command: the command.
            at_ms: the command's instant, ms since the epoch.
            step: receives changes and outputs, among them the answer, or a query to pull.
            row_filter: an expression that limits what its user may see and change; None = no limit (X4).
        """
        self._state.now_ms = max(self._state.now_ms, at_ms)
        self._note_use(at_ms, step)
        try:
            check_fields(command, UNTAKEN_BY_SOW_TOPICS)
            if command.select and command.command not in _SELECTS:
                raise CommandRefused(f"{command.command} takes no select; there is nothing to return fields of")
            check_state(command)
            counts = self._carry_out(command, at_ms, step, row_filter)
        except CommandRefused as error:
            self._refuse(command, at_ms, step, error.refusal)
            return
        except ValueError as error:
            self._refuse(command, at_ms, step, Refusal(ErrorCode.INVALID_EXPRESSION, str(error)))
            return
        if counts is not None and command.answer == "all":
            answer = CommandAnswer(
                command.id, command.command, command.subscription, at_ms, counts=tuple(counts.items())
            )
            if command.command == "depth":
                answer = answer._replace(facts=(("publish_target", self._settings.publish_target),))
            step.answers.append(answer)

    @staticmethod
    def _refuse(command: Command, at_ms: int, step: Step, refusal: Refusal) -> None:
        if command.answer != "none":
            step.answers.append(CommandAnswer(command.id, command.command, command.subscription, at_ms, refusal))

    def set_back(self, now_ms: int) -> None:
        """Let the epoch have begun by now, because the broker's clock was set back (C3)."""
        self._began_ms = min(self._began_ms, now_ms)

    def resume(self, now_ms: int, step: Step) -> None:
        """Begin an epoch: every subscription gets a full timeout, and unfinished queries begin again (C5)."""
        self._began_ms, self._began_at = now_ms, self._state.sequence
        for subscriber in list(self._state.subscribers.values()):
            if subscriber.fault:
                self.end(subscriber.subscription.id, now_ms, step, subscriber.fault)
                continue
            subscriber.heard_ms = max(subscriber.heard_ms, now_ms)
            if subscriber.subscription.querying:
                self._begin_query(subscriber, now_ms, step)

    def end_lost(self, subscription_id: str, now_ms: int, step: Step) -> None:
        """End a subscription that was silent for too long."""
        subscriber = self._state.subscribers[subscription_id]
        silence_ms = now_ms - subscriber.heard_ms
        self.end(subscription_id, now_ms, step, f"silent for {silence_ms} ms")

    def note_query_finished(self, query: RunningQuery, step: Step) -> None:
        """Note that a query is finished, so that a take-over does not begin it again for its subscription.

        A query that withholds an expired record which is not removed yet does begin again. Otherwise the record would
        be missed if expiration is off in the next epoch (L9, S6).
        """
        subscriber = self._state.subscribers.get(query.subscription)
        if subscriber is not None and subscriber.query is query and not query.withholds_any:
            subscriber.query = None
            self._store_subscription(replace(subscriber.subscription, querying=False), step)

    # --- commands --------------------------------------------------------------------------------------------

    def _carry_out(self, command: Command, at_ms: int, step: Step, row_filter: str | None) -> Counts | None:
        """Carry out a command. Return the counts of its answer, or None if the answer comes later."""
        match command.command:
            case "sow":
                self._sow(command, at_ms, step, row_filter)
                return None
            case "sow_delete":
                return self._sow_delete(command, at_ms, step, row_filter)
            case "subscribe" | "sow_and_subscribe" | "delta_subscribe" | "sow_and_delta_subscribe":
                subscription = self._subscribe(command, at_ms, step, row_filter)
                # If records are queried first, the answer follows them, with the same counts.
                return None if subscription.querying else {"heartbeat_timeout_ms": subscription.heartbeat_timeout_ms}
            case "unsubscribe":
                self._subscriber(command, at_ms, step)
                self.end(command.subscription, at_ms, step, "")
                return {}
            case "heartbeat":
                subscriber = self._subscriber(command, at_ms, step)
                subscriber.heard_ms = max(subscriber.heard_ms, at_ms)
                return {}
            case "depth":
                if command.top_n == 0:
                    return {}  # only the publish target is asked for
                if row_filter or command.filter:
                    self._count_matching(command, at_ms, step, row_filter)
                    return None
                return {
                    "records": self._state.depth(at_ms),
                    "dying": len(self._state.pending),
                    "scheduled": len(self._state.schedule),
                    "subscriptions": len(self._state.subscribers),
                }
            case "subscriptions":
                self._list_subscriptions(command, at_ms, step, row_filter)
                return None
            case _:
                meant = did_you_mean(command.command, SOW_COMMANDS - {"tick"})
                raise CommandRefused(
                    f"{command.command!r} is no command of a SOW topic{meant}; there are sow, sow_delete, subscribe, "
                    "sow_and_subscribe, delta_subscribe, sow_and_delta_subscribe, unsubscribe, heartbeat, "
                    "depth, subscriptions, delete",
                    ErrorCode.UNKNOWN_COMMAND,
                )

    def _list_subscriptions(self, command: Command, at_ms: int, step: Step, row_filter: str | None) -> None:
        known = self._state.subscribers.values()
        self._add_answer(
            command,
            at_ms,
            step,
            subscriptions_fields(command, (one.as_listed for one in known), len(known), row_filter),
        )

    def _add_answer(self, command: Command, at_ms: int, step: Step, facts: dict[str, Any]) -> None:
        if command.answer == "all":
            counts = tuple(facts.pop("counts").items())
            step.answers.append(
                CommandAnswer(
                    command.id, command.command, command.subscription, at_ms, counts=counts, facts=tuple(facts.items())
                )
            )

    def _sow(self, command: Command, at_ms: int, step: Step, row_filter: str | None) -> None:
        if command.bookmarks or (command.data and (command.keys or command.state)):
            raise CommandRefused(
                "sow takes keys, data or a filter, no bookmarks; data neither with keys nor with state"
            )
        compiled = predicates(command.filter, row_filter, self._settings.compile_filter)
        if command.state:
            listing = Listing(self._state, command, at_ms, compiled)
            listing.pull(at_ms, step)  # a short list is answered at once
            if not listing.finished:
                step.queries.append(listing)
            return
        order = None if command.order_by is None else Order.parse(command.order_by, self._settings.compile_value)
        request = QueryRequest(
            command_id=command.id,
            command=command.command,
            subscription=command.subscription,
            candidates=self._candidates.named(command)
            if command.keys or command.data
            else self._candidates.find_indexed(compiled),
            predicates=compiled,
            order=order,
            skip=command.skip or 0,
            top_n=command.top_n,
            batch_size=command.batch_size or self._settings.batch_size,
            at_ms=at_ms,
            answered=command.answer == "all",
            select=_read_select(command),
        )
        Query.begin(self._state, request, step)

    def _sow_delete(self, command: Command, at_ms: int, step: Step, row_filter: str | None) -> Counts | None:
        given = [bool(command.keys), bool(command.data), command.filter is not None, bool(command.bookmarks)]
        if sum(given) != 1:
            raise CommandRefused(
                f"sow_delete takes exactly one of keys, data, filter and bookmarks; {sum(given)} are given "
                "(to delete everything, send the filter TRUE)"
            )
        seen = predicates(None, row_filter, self._settings.compile_filter)
        asked = predicates(command.filter, None, self._settings.compile_filter)
        self._candidates.check_data(command)
        if command.state:
            bookmarks = self._candidates.offsets(command.bookmarks) if command.bookmarks else None
            deletion: Deletion = self._withdrawal(command, at_ms, (*asked, *seen), bookmarks)
        elif command.keys or command.data:
            deletion = DeletionByKeys(self._state, self._removals, command, at_ms, seen)
        else:
            deletion = self._selection(command, at_ms, asked, seen)
        deletion.examine_next(step)
        if not deletion.finished:
            step.deletions.append(deletion)
            self._updates.deletion = deletion
        elif deletion.is_answered:
            step.answers.append(deletion.answer)
        return None

    def _selection(
        self,
        command: Command,
        at_ms: int,
        asked: tuple[Predicate, ...],
        seen: tuple[Predicate, ...],
    ) -> SelectiveDeletion:
        withdrawal, bookmarks = None, None
        if command.bookmarks:
            bookmarks = self._candidates.offsets(command.bookmarks)
            if self._state.schedule:
                withdrawal = self._withdrawal(command, at_ms, seen, bookmarks)
        indexed = self._candidates.find_indexed((*asked, *seen))
        none_named = bookmarks is not None and not bookmarks
        walk = Walk(()) if none_named else self._state.record_names.walk() if indexed is None else Walk(indexed)
        return SelectiveDeletion(
            self._state,
            self._removals,
            command,
            at_ms,
            walk,
            seen,
            predicates=asked,
            bookmarks=bookmarks,
            withdrawal=withdrawal,
        )

    def _withdrawal(
        self, command: Command, at_ms: int, meant: tuple[Predicate, ...], bookmarks: Bookmarks | None
    ) -> Withdrawal:
        """Return the withdrawal of scheduled updates that a command names and its user may see (L5, C82)."""
        return Withdrawal(self._state, self._removals, self._updates, command, at_ms, meant, bookmarks)

    def _subscribe(self, command: Command, at_ms: int, step: Step, row_filter: str | None) -> Subscription:
        if not command.subscription:
            raise CommandRefused("a subscription needs a name: set the field subscription")
        if command.keys or command.bookmarks or command.data:
            raise CommandRefused(f"{command.command} takes a filter, no keys, bookmarks or data")
        if command.order_by is not None or command.top_n is not None or command.skip is not None:
            raise CommandRefused(f"{command.command} takes no order_by, top_n or skip; use sow for a part")
        compiled = predicates(command.filter, row_filter, self._settings.compile_filter)
        _read_select(command)
        queried, known = command.command in _WITH_RECORDS, self._state.subscribers.get(command.subscription)
        if known is not None:  # records of its query may not match the new filter, so they could not go out of focus
            self._end_query(known, step, "began once more", unless=command.id)
        subscription = Subscription(
            id=command.subscription,
            client=command.client,
            command_id=command.id,
            filter=command.filter,
            row_filter=row_filter,
            deltas=command.command in _WITH_DELTAS,
            **self._seen_from(known, command, at_ms, row_filter, queried=queried),
            heartbeat_timeout_ms=command.heartbeat_timeout_ms or self._settings.heartbeat_timeout_ms,
            querying=queried,
            batch_size=command.batch_size or self._settings.batch_size,
            select=command.select,
            began_ms=at_ms if known is None else known.subscription.began_ms,
        )
        self._store_subscription(subscription, step)
        subscriber = self._state.subscribers[command.subscription]
        subscriber.predicates = compiled
        subscriber.heard_ms = at_ms
        subscriber.query = None
        step.events.append(
            ShardEvent(EventKind.SUBSCRIBED, at_ms, subscription=command.subscription, detail=command.client)
        )
        if queried:
            self._begin_query(subscriber, at_ms, step, command)
        return subscription

    def _seen_from(
        self, known: Subscriber | None, command: Command, at_ms: int, row_filter: str | None, *, queried: bool
    ) -> _SeenFrom:
        """Return which updates a subscription counts as seen.

        A client sends an unanswered `subscribe` again after a take-over (C55). Meanwhile the first one may have got
        updates, whose records must go out of focus, too. The same holds for a `subscribe` that a former owner carried
        out without journaling it: what came behind it may have been sent (S7).
        """
        last = self._state.sequence
        if queried:
            return _SeenFrom(since=-1)
        if known is not None and known.query is None:
            one = known.subscription
            if (one.filter, one.row_filter, one.select) == (command.filter, row_filter, command.select):
                return _SeenFrom(since=one.since, unsure=one.unsure, unsure_ms=one.unsure_ms)
        if at_ms >= self._began_ms or last == self._began_at:
            return _SeenFrom(since=last)
        return _SeenFrom(since=self._began_at, unsure=last, unsure_ms=at_ms)

    def _count_matching(self, command: Command, at_ms: int, step: Step, row_filter: str | None) -> None:
        """Count the records that match, and that the user may see, by examining every record in portions (X4)."""
        seen = predicates(command.filter, row_filter, self._settings.compile_filter)
        request = QueryRequest(
            command_id=command.id,
            command=command.command,
            subscription=command.subscription,
            predicates=seen,
            batch_size=self._settings.max_scan,
            at_ms=at_ms,
            answered=command.answer == "all",
            only_counts=True,
            scheduled=self._state.schedule.versions(),
        )
        Query.begin(self._state, request, step)

    def refuse(self, query: RunningQuery, now_ms: int, step: Step, refusal: Refusal) -> None:
        """End a query that takes too much work, and the subscription that it belongs to. The answer says why (X7)."""
        query.abandon()
        subscriber = self._state.subscribers.get(query.subscription)
        if subscriber is not None and subscriber.query is query:
            self.end(query.subscription, now_ms, step, refusal.text)
        step.answers.append(CommandAnswer(query.command_id, query.command, query.subscription, query.at_ms, refusal))

    # --- helpers ---------------------------------------------------------------------------------------------

    def _begin_query(self, subscriber: Subscriber, at_ms: int, step: Step, command: Command | None = None) -> None:
        subscription = subscriber.subscription
        request = QueryRequest(
            command_id=subscription.command_id,
            command="sow_and_delta_subscribe" if subscription.deltas else "sow_and_subscribe",
            subscription=subscription.id,
            follows=True,
            candidates=self._candidates.find_indexed(subscriber.predicates),
            predicates=subscriber.predicates,
            batch_size=subscription.batch_size,
            at_ms=at_ms,
            heartbeat_timeout_ms=subscription.heartbeat_timeout_ms,
            answered=command is None or command.answer == "all",
            select=subscriber.select,
        )
        subscriber.query = Query.begin(self._state, request, step)

    def _store_subscription(self, subscription: Subscription, step: Step) -> None:
        journal_key = journal.SUBSCRIPTION + subscription.id.encode("utf-8", "surrogatepass")
        self._state.apply_change(step, journal_key, subscription.pack())

    def end(self, subscription_id: str, at_ms: int, step: Step, detail: str) -> None:
        """End a subscription. `detail` says why in the event."""
        journal_key = journal.SUBSCRIPTION + subscription_id.encode("utf-8", "surrogatepass")
        self._end_query(self._state.subscribers[subscription_id], step, "ended")
        self._state.apply_change(step, journal_key, None)
        step.events.append(ShardEvent(EventKind.UNSUBSCRIBED, at_ms, subscription=subscription_id, detail=detail))

    @staticmethod
    def _end_query(subscriber: Subscriber, step: Step, what: str, unless: str | None = None) -> None:
        """End the unfinished query of a subscription. Its command is refused, but for a repeated one's id."""
        query = subscriber.query
        if query is None or query.finished:
            return
        query.abandon()
        if query.is_answered and query.command_id != unless:
            text = f"subscription {query.subscription!r} {what} before its query was finished"
            refusal = Refusal(ErrorCode.UNKNOWN_SUBSCRIPTION, text)
            step.answers.append(
                CommandAnswer(query.command_id, query.command, query.subscription, query.at_ms, refusal)
            )

    def _subscriber(self, command: Command, at_ms: int, step: Step) -> Subscriber:
        if not command.subscription:
            raise CommandRefused(f"{command.command} needs the name of a subscription: set the field subscription")
        subscriber = self._state.subscribers.get(command.subscription)
        if subscriber is not None and subscriber.lost_at_ms <= at_ms:
            self.end_lost(command.subscription, at_ms, step)
            subscriber = None
        if subscriber is None:
            raise CommandRefused(
                f"unknown subscription {command.subscription!r}: it ended before, or was silent for too long; "
                "subscribe again",
                ErrorCode.UNKNOWN_SUBSCRIPTION,
            )
        return subscriber


def _read_select(command: Command) -> Select | None:
    try:
        return Select.parse(command.select)
    except ValueError as error:
        raise CommandRefused(f"{command.command}: {error}") from error
