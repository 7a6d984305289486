"""What a peek, the depth and a filter show (Q15, C12, C18)."""

from __future__ import annotations

from unit.core.queue.expected.message import FILTERS, WAITING, Bookmark, Ends, is_in_reach
from unit.core.queue.expected.state import State


class Inquiries(State):
    """What can be seen without a change."""

    def shown(self, text: str) -> list[tuple]:
        """What a peek shows, row by row (Q15)."""
        later = sorted(self.scheduled(), key=lambda m: (m.at_ms, m.bookmark))
        later = [m for m in later if FILTERS[text](m.body)]
        rows = []
        for m in [*(self.messages[b] for b in self.selected(text)), *later]:
            state, until_ms = m.state, m.at_ms if m.state in ("scheduled", "held") else m.until_ms
            if state == "available":
                until_ms = None
            elif m.transfer:
                state = {"early": "transferring"}.get(m.state, m.state)
                until_ms = (m.until_ms if m.state == "transferring" else m.then_ms) or None
            since_ms = m.since_ms if state == "leased" else None
            holder = m.holder or m.transfer
            rows.append((m.bookmark, state, m.deadline_ms, m.deliveries, m.cancels, holder, until_ms, since_ms))
        sources = list(self.next_offset)
        last = sorted(self.pending.values(), key=lambda g: (g.at_ms, sources.index(g.bookmark[:2]), g.bookmark))
        dying = [
            (gone.bookmark, "dying", gone.deadline_ms, gone.deliveries, gone.cancels, "", None, None) for gone in last
        ]
        return rows if text else rows + dying

    def depth(self) -> dict[str, int]:
        """How many messages are in each state (Q15, C12)."""
        counts = {state: len(self.in_state(state)) for state in ("available", "leased", "delayed", "transferring")}
        later = [m.state for m in self.scheduled()]
        return {
            **counts,
            "transferring": counts["transferring"] + later.count("early"),
            "scheduled": later.count("scheduled"),
            "held": later.count("held"),
            "unconfirmed": later.count("unconfirmed"),
            "dying": len(self.pending),
            "depth": sum(counts.values()),
        }

    def selected(self, text: str, ends: Ends | None = None, sent_to: str | None = None) -> list[Bookmark]:
        """What a filter covers, and what was sent to a subscription, or to any (`""`), when it settles (C18)."""
        found = self.in_state("leased", "transferring", *WAITING, *(() if sent_to is None else ("sent",)))
        found = [m for m in found if m.state != "sent" or sent_to in ("", m.holder)]
        return [m.bookmark for m in found if FILTERS[text](m.body) and is_in_reach(m.bookmark, ends)]
