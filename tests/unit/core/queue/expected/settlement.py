"""What a settlement is answered, and what it does (Q8, Q9, C13 to C18)."""

from __future__ import annotations

from lapse.core.generation import offset_of
from lapse.core.queue.settings import Leasing
from unit.core.queue.expected.message import FILTERS, WAITING, Bookmark, Message, MessageEvent, Restricted
from unit.core.queue.expected.subscriptions import Subscriptions


class Settlements(Subscriptions):
    """Acknowledgments, cancels, expirations, renewals."""

    def judge(
        self,
        action: str,
        bookmark: Bookmark,
        subscription: str,
        token: int | None,
        now_ms: int,
        alone: bool,
        log_ends: dict[tuple[str, int], int],
    ) -> str:
        topic, partition, offset = bookmark
        if self.is_unheard_of(bookmark):
            inactive = self.settings.target_depth is not None and offset < log_ends.get((topic, partition), 0)
            if action != "acknowledge" or not inactive:
                return "unknown"
            return "already_settled" if bookmark in self.remembered else "settled"
        message = self.messages.get(bookmark)
        if message is None or message.state in ("gone", "never was"):
            return "already_settled"
        strict = self.settings.leasing is Leasing.STRICT
        never = token is not None and token > message.deliveries
        stale = token is not None and token != message.deliveries
        match message.state:
            case "scheduled" | "held":
                return self.judge_unseen(action, message, now_ms, alone)
            case "early" | "unconfirmed" | "transferring":
                return self.judge_under_way(message, now_ms)
            case "expired":
                return "time_limit"
            case "sent":
                if action == "renew":
                    return "not_leased"
                return "not_holder" if strict and message.holder != subscription else "settled"
            case "leased":
                if (strict or action == "renew") and message.holder != subscription:
                    return "not_holder"
                if never or (stale and (strict or action != "acknowledge")):
                    return "stale"
                return "settled"
        if self.late(message, now_ms):
            return "time_limit"
        if strict or action in ("cancel", "renew"):
            return "not_leased"
        return "stale" if never or (action == "expire" and stale) else "settled"

    def spared(self, bookmark: Bookmark, alone: bool, result: str) -> str:
        """Only its own bookmark takes a barrier that waits (C86)."""
        message = self.messages.get(bookmark)
        waits = message is not None and message.barrier and self.settings.traits.barrier and message.state in WAITING
        return "not_leased" if waits and not alone and result == "settled" else result

    def hides(self, bookmark: Bookmark, subscription: str, with_row_filter: Restricted) -> bool:
        """Whether a message is not there for a user who may not see it, and does not hold it (X4)."""
        message = self.messages.get(bookmark)
        if message is not None and message.state in ("leased", "sent") and message.holder == subscription:
            return False
        row_filter, bodies = with_row_filter
        bookmark = (*bookmark[:2], offset_of(bookmark[2]))
        return bookmark not in bodies or not FILTERS[row_filter](bodies[bookmark])

    def judge_unseen(self, action: str, message: Message, now_ms: int, alone: bool) -> str:
        """What a settlement is told of a message before its instant, or one that is held."""
        if action == "acknowledge" and message.state == "held":
            return "settled"
        if action == "cancel" and alone:
            return "time_limit" if self.late(message, now_ms) else "settled"
        return "scheduled"

    def judge_under_way(self, message: Message, now_ms: int) -> str:
        """What a settlement is told of a message that is being transferred."""
        if message.state == "unconfirmed":
            return "scheduled"
        late = message.state == "transferring" and self.late(message, now_ms)
        return "time_limit" if late else "transferring"

    def settle(
        self,
        action: str,
        subscription: str,
        named: list[tuple[Bookmark, int | None, int | None, bool]],
        now_ms: int,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        log_ends: dict[tuple[str, int], int] | None = None,
        with_row_filter: Restricted | None = None,
    ) -> list[tuple[Bookmark, str]]:
        answers = []
        log_ends = {} if with_row_filter or log_ends is None else log_ends  # what is not read yet cannot be judged
        for bookmark, token, epoch, alone in named:
            of_another = epoch is not None and epoch < self.since.get(bookmark[0], 0)
            if of_another or (bookmark, "stale") in answers:
                answers.append((bookmark, "stale"))
                continue
            if with_row_filter and self.hides(bookmark, subscription, with_row_filter):
                result = "unknown"
            else:
                result = self.judge(action, bookmark, subscription, token, now_ms, alone, log_ends)
                result = self.spared(bookmark, alone, result)
                if result in ("already_settled", "time_limit") and self.left_behind(bookmark):
                    answers.append((bookmark, "stale"))
                    continue
            answers.append((bookmark, result))
            if result != "settled":
                continue
            if bookmark not in self.messages:
                self.remembered.add(bookmark)
                self.events.append(MessageEvent("acknowledged", bookmark, subscription))
                continue
            message = self.messages[bookmark]
            if message.state in ("scheduled", "held"):
                if action == "acknowledge":
                    self.events.append(MessageEvent("acknowledged", bookmark, subscription))
                else:
                    self._gone(message, now_ms, "withdrawn")
                message.state = "never was"
            elif message.state == "sent" or action == "acknowledge":
                if message.state != "sent":
                    self.events.append(MessageEvent("acknowledged", bookmark, subscription))
                message.state, message.holder = "gone", ""
            elif action == "renew":
                self.events.append(MessageEvent("renewed", bookmark, subscription))
                asked_ms = self.settings.lease_ms if lease_ms is None else min(lease_ms, self.settings.max_lease_ms)
                message.until_ms = now_ms + asked_ms
            elif action == "expire":
                late = ["time_limit"] if self.late(message, now_ms) else []
                self._gone(message, now_ms, "forced_expire", *late)
            else:
                message.cancels += 1
                self.events.append(MessageEvent("cancelled", bookmark, subscription))
                self.give_back(message, now_ms, self.back_off("cancel", message) if delay_ms is None else delay_ms)
        return answers
