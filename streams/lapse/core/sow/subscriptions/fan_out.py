"""Fan-out: makes the messages to a shard's subscribers about updates and removals (S6, S7)."""

from __future__ import annotations

from lapse.core.sow.query.select import Select
from lapse.core.sow.query.view import View
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Kind, OutOfFocus, Step
from lapse.core.sow.updates import delta


class SubscriberFanOut:
    """Makes messages for the subscribers of one shard.

    Args:
        state: the shard's state.
    """

    __slots__ = ("_settings", "_state")

    def __init__(self, state: SowState) -> None:
        self._state = state
        self._settings = state.settings

    def send_update(self, journal_key: bytes, entry: bytes | None, fresh: bytes, step: Step) -> None:
        """Make messages about an update, given the packed record before it (None = none) and after it."""
        state = self._state
        before = None if entry is None else state.view(journal_key, entry)
        after = state.view(journal_key, fresh)
        for subscriber in state.subscribers.values():
            subscription = subscriber.subscription
            seen = before is not None and subscriber.has_seen(before)
            if subscriber.query is not None:
                subscriber.query.forget(journal_key)
            if subscriber.selects(after):
                select = subscriber.select
                is_sure = seen and before is not None and before.facts.sequence > subscription.unsure
                changed = self._changed(before, after, select) if is_sure and subscription.deltas else None
                kind = Kind.PUBLISH if changed is None else Kind.DELTA
                payload = after.selected(select, self._settings) if changed is None else changed
                step.deliveries.append(after.message(kind, subscription.id, payload=payload))
            elif seen and before is not None:
                reason = OutOfFocus.NO_LONGER_MATCHES
                payload = before.selected(subscriber.select, self._settings)
                message = before.message(
                    Kind.OUT_OF_FOCUS, subscription.id, payload=payload, bookmark=after.bookmark, reason=reason
                )
                step.deliveries.append(message)

    def send_removal(self, journal_key: bytes, entry: bytes, reason: OutOfFocus, step: Step) -> None:
        """Make messages about the removal of a packed record for a reason."""
        state = self._state
        before = state.view(journal_key, entry)
        for subscriber in state.subscribers.values():
            if subscriber.has_seen(before):
                payload = before.selected(subscriber.select, self._settings)
                subscription_id = subscriber.subscription.id
                step.deliveries.append(
                    before.message(Kind.OUT_OF_FOCUS, subscription_id, payload=payload, reason=reason)
                )
            if subscriber.query is not None:
                subscriber.query.forget(journal_key)

    def _changed(self, before: View | None, after: View, select: Select | None) -> bytes | None:
        """Return the serialized changes of the selected fields; None if the full record must be sent."""
        if before is None:
            return None
        parse = self._settings.parse_exactly
        try:
            old, new = parse(before.raw), parse(after.raw)
            if select is not None:
                old, new = select.select_from(old), select.select_from(new)
            changed = delta.difference(old, new)
            serialize = self._settings.serialize_delta if select is None else self._settings.serialize_selected
            return None if changed is None else serialize(changed)
        except (ValueError, TypeError, RecursionError):
            return None
