"""The fan-out of a shard: its subscribers, and what they are told of an update or a removal (S6, S7)."""

from __future__ import annotations

from lapse.core.sow import delta
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Kind, OutOfFocus, Step
from lapse.core.sow.view import View


class SubscriberFanOut:
    """Tells the subscribers of one shard.

    Args:
        state: the shard's memory.
    """

    __slots__ = ("_settings", "_state")

    def __init__(self, state: SowState) -> None:
        self._state = state
        self._settings = state.settings

    def tell(self, name: bytes, entry: bytes | None, fresh: bytes, step: Step) -> None:
        """Tell of an update: its journal key, the packed record that it found (None = none), and what it made of it."""
        state = self._state
        before = None if entry is None else state.view(name, entry)
        after = state.view(name, fresh)
        for subscriber in state.subscribers.values():
            subscription = subscriber.subscription
            seen = before is not None and subscriber.has_seen(before)
            if subscriber.query is not None:
                subscriber.query.forget(name)
            if subscriber.selects(after):
                changed = self._changed(before, after) if seen and subscription.deltas else None
                kind = Kind.PUBLISH if changed is None else Kind.DELTA
                step.deliveries.append(after.message(kind, subscription.id, payload=changed))
            elif seen and before is not None:
                reason = OutOfFocus.NO_LONGER_MATCHES
                message = before.message(Kind.OUT_OF_FOCUS, subscription.id, place=after.place, reason=reason)
                step.deliveries.append(message)

    def tell_removal(self, name: bytes, entry: bytes, reason: OutOfFocus, step: Step) -> None:
        """Tell of a removal: its journal key, the packed record that leaves, and why."""
        state = self._state
        before = state.view(name, entry)
        for subscriber in state.subscribers.values():
            if subscriber.has_seen(before):
                step.deliveries.append(before.message(Kind.OUT_OF_FOCUS, subscriber.subscription.id, reason=reason))
            if subscriber.query is not None:
                subscriber.query.forget(name)

    def _changed(self, before: View | None, after: View) -> bytes | None:
        """The changed fields, written; None if only the full record can tell."""
        if before is None:
            return None
        parse = self._settings.parse_exactly
        try:
            changed = delta.difference(parse(before.raw), parse(after.raw))
            return None if changed is None else self._settings.serialize_delta(changed)
        except (ValueError, TypeError, RecursionError):
            return None
