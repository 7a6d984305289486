"""Handing over to, and taking over from, another deployment (Q17, Q26, C73, C74)."""

from __future__ import annotations

from collections.abc import Callable

from lapse.core.generation import offset_of
from unit.core.queue.expected.delivery import Deliveries
from unit.core.queue.expected.due import Due
from unit.core.queue.expected.message import FILTERS, LATER, NEVER, Bookmark, Message, MessageEvent


class Transfers(Due, Deliveries):
    """Both sides of a transfer."""

    def mine(self, transfer: str, *states: str) -> list[Message]:
        """What a transfer holds, or has put here."""
        return [m for m in self.messages.values() if m.transfer == transfer and m.state in states]

    def judge_hold(self, transfer: str, bookmark: Bookmark, now_ms: int) -> str:
        if self.is_unheard_of(bookmark):
            return "unknown"
        message = self.messages.get(bookmark)
        if message is None or message.state in ("gone", "never was", "sent"):
            return "already_settled"
        if message.state in ("transferring", "early") and message.transfer != transfer:
            return "time_limit" if message.state == "transferring" and self.late(message, now_ms) else "transferring"
        if message.state in ("leased", "unconfirmed"):
            return "leased" if message.state == "leased" else "scheduled"
        return "time_limit" if message.state == "expired" or self.late(message, now_ms) else "settled"

    def hold(
        self, transfer: str, claims: list[list[Bookmark]], most: int, now_ms: int
    ) -> tuple[dict[Bookmark, str], bool]:
        """Hold messages: of each claim those with places first; what each bookmark would be answered without limit."""
        answers = {b: self.judge_hold(transfer, b, now_ms) for claim in claims for b in claim}
        room = most - len(self.mine(transfer, "transferring", "early"))
        for claim in claims:
            for later in (False, True):
                for bookmark in claim:
                    message = self.messages.get(bookmark)
                    if message is None or answers[bookmark] != "settled":
                        continue
                    if message.state in ("transferring", "early") or (message.state in LATER) is not later:
                        continue
                    if room <= 0:
                        return answers, True
                    room -= 1
                    self.events.append(MessageEvent("transferring", bookmark))
                    self.transfers.setdefault(transfer, [])
                    message.transfer = transfer
                    if later:
                        message.state, message.then_ms, message.at_ms = "early", message.at_ms, NEVER
                    else:
                        message.until_ms = message.until_ms if message.state == "delayed" else 0
                        message.state, message.last = "transferring", -1
        return answers, False

    def confirm(self, transfer: str, pairs: list[tuple[Bookmark, Bookmark]], now_ms: int) -> list[tuple[Bookmark, str]]:
        answers = []
        for bookmark, there in pairs:
            result = self.judge_hold(transfer, bookmark, now_ms)
            message = self.messages.get(bookmark)
            if result == "settled":
                if message.state not in ("transferring", "early"):
                    result = "scheduled" if message.state in ("scheduled", "held") else "not_leased"
                else:
                    self.events.append(MessageEvent("transferred", bookmark))
                    self.transfers[transfer].append((bookmark, there))
                    self.elsewhere.add((*bookmark[:2], offset_of(bookmark[2])))
                    message.state = "gone" if message.state == "transferring" else "never was"
                    message.transfer = ""
            elif message is not None and message.state in ("scheduled", "held"):
                result = "scheduled"
            answers.append((bookmark, result))
        return answers

    def finish(self, transfer: str) -> None:
        if transfer in self.transfers:
            self.transfers[transfer] = []
            if not self.mine(transfer, "transferring", "early"):
                del self.transfers[transfer]

    def hand_back(self, transfer: str, now_ms: int) -> int:
        placed = self.mine(transfer, "transferring")
        self.events += [
            MessageEvent("transfer_cancelled", m.bookmark) for m in self.mine(transfer, "transferring", "early")
        ]
        for message in placed:
            message.transfer = ""
            message.state = "delayed" if message.until_ms > now_ms else "available"
            self._leave_or_stay(message, now_ms)
        later = sorted(self.mine(transfer, "early"), key=lambda m: (m.then_ms, m.bookmark))
        for message in later:
            self.let_go(message, now_ms)
        self.finish(transfer)
        return len(placed) + len(later)

    def let_go(self, message: Message, now_ms: int) -> None:
        message.transfer = ""
        if self.late(message, now_ms):
            self._gone(message, now_ms, "time_limit")
            message.state = "never was"
        elif message.then_ms <= now_ms:
            if self.room() and not any(m.state == "held" for m in self.messages.values()):
                self.enter(message, now_ms)
            else:
                self.events.append(MessageEvent("held", message.bookmark))
                message.at_ms = message.then_ms if message.state == "early" else now_ms
                message.state = "held"
        else:
            message.state, message.at_ms = "scheduled", message.then_ms

    def accept(self, transfer: str, bookmarks: list[Bookmark], now_ms: int) -> list[tuple[Bookmark, str]]:
        answers = []
        for bookmark in bookmarks:
            message = self.messages.get(bookmark)
            if bookmark[2] >= self.next_offset.get(bookmark[:2], 0):
                result = "unknown"
            elif message is None or message.state not in ("unconfirmed", "early"):
                result = "already_settled"
            elif message.state == "early" or message.transfer != transfer:
                result = "unknown"
            elif self.late(message, now_ms):
                result = "time_limit"
            else:
                result = "settled"
                self.events.append(MessageEvent("transfer_confirmed", bookmark))
                self.let_go(message, now_ms)
            answers.append((bookmark, result))
        return answers

    def spare(self, least_life_ms: int, now_ms: int, came: bool, text: str = "") -> list[Bookmark]:
        """What nobody takes here now, in the order of delivery (Q26, C73, C74)."""
        asking = [one for one in self.subscribers.values() if came or self.space(one)]
        there = [] if self.paused else self.before_the_barrier()
        there.sort(key=self.urgency)
        return [
            message.bookmark
            for message in there
            if message.state == "available"
            and message.came is came
            and FILTERS[text](message.body)
            and not self.late(message, now_ms + least_life_ms)
            and not any(FILTERS[one.filter](message.body) for one in asking)
        ]

    def wanted(self) -> int:
        """How many messages more the subscriptions would take that take anything (Q26)."""
        space = sum(0 if self.paused or one.filter else self.space(one) for one in self.subscribers.values())
        waiting = [one for one in self.messages.values() if one.state in ("available", "unconfirmed", "held")]
        return space - len(waiting)

    def demands(self, not_matched: Callable[[str, Bookmark], bool]) -> dict[str, int]:
        """The same by filter; which waiting messages a filter is known not to match, tells the caller."""
        demands = {one.filter: 0 for one in self.subscribers.values() if one.filter and not self.paused}
        for text in demands:
            space = sum(self.space(one) for one in self.subscribers.values() if one.filter == text)
            waiting = [
                one
                for one in self.messages.values()
                if one.state in ("unconfirmed", "held")
                or (one.state == "available" and not not_matched(text, one.bookmark))
            ]
            demands[text] = space - len(waiting)
        return demands

    def matches(self, text: str, bookmark: Bookmark) -> bool:
        return FILTERS[text](self.messages[bookmark].body)

    def discard(self, transfer: str, now_ms: int) -> int:
        thrown = self.mine(transfer, "unconfirmed")
        for message in thrown:
            self._gone(message, now_ms, "withdrawn", *(["time_limit"] if self.late(message, now_ms) else []))
            message.state, message.transfer = "never was", ""
        return len(thrown)
