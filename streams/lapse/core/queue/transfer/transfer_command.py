"""Transfer commands: the effect of each on the shard, and its answer (Q17)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from lapse.core.error_code import ErrorCode
from lapse.core.generation import position_of
from lapse.core.queue.answer import queued_message, requested_settlements
from lapse.core.queue.settlement.settlement import Claim, Outcome, Result
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.queue.transfer.transfers import HandOver
from lapse.core.shard.refused import CommandRefused
from lapse.protocol import hand_over as wire
from lapse.protocol.answer import FilterDemand
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.command import Command

MOST_JUDGED: Final = 5_000
"""How many messages one command may have judged under a filter, so that other work can go on (C60)."""

MOST_TRANSFERRING: Final = 2_000
"""The greatest number of messages that a shard holds for one transfer, since one answer names them all."""

COMMANDS: Final = frozenset(
    "transfer transfer_confirm transfer_finish transfer_cancel transfer_accept transfer_discard".split()
)

Handler = Callable[[Command, int, Step], dict[str, Any]]


class TransferCommands:
    """Carries out transfer commands on one shard.

    Args:
        shard: the shard.
        sees_all: returns whether the command's user may see all messages. Others do not learn the filters of
            subscriptions (X4).
    """

    def __init__(self, shard: QueueShard, sees_all: Callable[[], bool] = lambda: True) -> None:
        self._shard = shard
        self._sees_all = sees_all

    @property
    def handlers(self) -> dict[str, Handler]:
        """The handler of each command, by its name."""
        return {
            "transfer": self._hold,
            "transfer_confirm": self._confirm,
            "transfer_finish": self._finish,
            "transfer_cancel": self._cancel,
            "transfer_accept": self._accept,
            "transfer_discard": self._discard,
        }

    def claims(self, command: Command) -> list[Claim]:
        """Return the messages that a command names: by bookmarks, by filter, by both, or all that were read.

        Raises:
            ValueError: a bookmark is invalid.
        """
        named = [_claim(BookmarkRange.parse(text)) for text in command.bookmarks]
        if command.filter:
            selection = self._shard.selection
            selected = selection.selected(command.filter) + selection.selected_scheduled(command.filter)
            return [both for one in selected for both in _intersect(one, named)] if named else selected
        if named or command.command != "transfer":
            return named
        return [
            Claim(one.topic, one.partition, position_of(0, generation), position_of(one.next_offset - 1, generation))
            for one in self._shard.state.sources.current()
            for generation in range(one.generation + 1)
            if one.next_offset or not generation
        ]

    def _transfer_id(self, command: Command) -> str:
        try:
            return wire.transfer_id(command.transfer)
        except ValueError as error:
            raise CommandRefused(f"{command.command}: field transfer: {error}") from error

    def _claims(self, command: Command) -> list[Claim]:
        try:
            return self.claims(command)
        except ValueError as error:
            raise CommandRefused(f"{command.command}: {error}") from error

    def _hold(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        transfer_id, shard = self._transfer_id(command), self._shard
        if shard.agreement.frozen:  # it has said that nothing is under way (C77)
            name = shard.settings.name
            raise CommandRefused(f"transfer: {name} is about to be deleted", ErrorCode.DELETE_IN_PROGRESS)
        known = shard.state.transfers.get(transfer_id)
        if known is not None and command.to and known.target != command.to:
            raise CommandRefused(
                f"transfer {transfer_id} goes to {known.target}, not to {command.to}; choose another id",
                ErrorCode.TRANSFER_CONFLICT,
            )
        most = MOST_TRANSFERRING if command.top_n is None else min(command.top_n, MOST_TRANSFERRING)
        outcomes: list[Outcome] = []
        more = False
        if command.spare and command.bookmarks:
            raise CommandRefused("transfer: spare chooses by itself; leave out bookmarks")
        unseen = False
        if most:
            if command.spare:
                claims, unseen = shard.transfer_source.spare.claims(
                    most, command.least_life_ms, at_ms, command.handed_over, command.filter or ""
                )
            else:
                claims = self._claims(command)
                if not command.filter:
                    shard.activate_up_to(claims, most)
            outcomes, more = shard.transfer_source.hold(transfer_id, command.to, claims, most, at_ms, step)
            outcomes = shard.with_advancing(outcomes)
            if command.bookmarks:
                outcomes = shard.state.rewinds.with_stale_results(outcomes)
        messages = tuple(queued_message(one) for one in shard.transfer_source.messages(transfer_id))
        counts = {"transferring": len(messages), "more": int(more)}
        if advancing := _count_advancing(outcomes):
            counts["advancing"] = advancing
        asks: dict[str, Any] = {}
        if command.spare:
            counts |= {"wanted": shard.transfer_source.spare.unfiltered_demand(), "unseen": int(unseen)}
            asks = self._demand_fields()
        sources = tuple(
            str(Bookmark(one.topic, one.partition, position_of(one.next_offset, one.generation)))
            for one in shard.state.sources.current()
        )
        answer = {"settlements": requested_settlements(outcomes, command), "messages": messages, "counts": counts}
        return {**answer, "sources": sources, **asks, **self._hand_over_fields(transfer_id)}

    def places_to_judge(self, command: Command, now_ms: int) -> list[int]:
        """Return places to judge before spare messages are chosen by a filter, some at a time if there are many."""
        most = MOST_TRANSFERRING if command.top_n is None else min(command.top_n, MOST_TRANSFERRING)
        spare, text = self._shard.transfer_source.spare, command.filter or ""
        return spare.places_to_judge(most, command.least_life_ms, now_ms, command.handed_over, text, MOST_JUDGED)

    def _demand_fields(self) -> dict[str, Any]:
        """Return the fields of an answer for subscriptions with filters: their demands, and the format of payloads."""
        demands = self._shard.transfer_source.spare.demands() if self._sees_all() else ()
        return {
            "demands": tuple(FilterDemand(filter=one.filter, wanted=one.wanted) for one in demands),
            "value_format": self._shard.settings.value_format,
        }

    def _confirm(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        transfer_id = self._transfer_id(command)
        try:
            parsed = [wire.HandOver.parse(text) for text in command.bookmarks]
        except ValueError as error:
            raise CommandRefused(f"{command.command}: {error}") from error
        given = [_from_wire(one) for one in parsed]
        outcomes = self._shard.transfer_source.confirm(transfer_id, given, at_ms, step)
        return {"settlements": requested_settlements(outcomes, command)} | self._hand_over_fields(transfer_id)

    def _finish(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        self._shard.transfer_source.finish(self._transfer_id(command), step)
        return {}

    def _cancel(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        transfer_id = self._transfer_id(command)
        left = self._hand_over_fields(transfer_id)["handed_over"]
        if left:
            raise CommandRefused(
                f"transfer {transfer_id}: {left[0]} has left already, so it cannot be cancelled; resume it instead",
                ErrorCode.TRANSFER_CONFLICT,
            )
        return {"counts": {"returned": self._shard.transfer_source.give_back(transfer_id, at_ms, step)}}

    def _accept(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        if command.filter:
            raise CommandRefused("transfer_accept takes bookmarks, and no filter")
        transfer_id, claims = self._transfer_id(command), self._claims(command)
        self._shard.activate_up_to(claims, MOST_TRANSFERRING)
        outcomes = self._shard.with_advancing(self._shard.transfer_target.accept(transfer_id, claims, at_ms, step))
        answer: dict[str, Any] = {"settlements": requested_settlements(outcomes, command)}
        if advancing := _count_advancing(outcomes):
            answer["counts"] = {"advancing": advancing}
        return answer

    def _discard(self, command: Command, at_ms: int, step: Step) -> dict[str, Any]:
        return {"counts": {"removed": self._shard.transfer_target.discard(self._transfer_id(command), at_ms, step)}}

    def _hand_over_fields(self, transfer_id: str) -> dict[str, tuple[str, ...]]:
        transfer = self._shard.state.transfers.get(transfer_id)
        left = [] if transfer is None else transfer.confirmed
        return {"handed_over": tuple(str(_to_wire(one)) for one in left)}


def _count_advancing(outcomes: Sequence[Outcome]) -> int:
    """Return how many messages beyond the target depth will become active soon (C85)."""
    return sum(one.last - one.first + 1 for one in outcomes if one.result is Result.ADVANCING)


def _claim(named: BookmarkRange) -> Claim:
    return Claim(named.topic, named.partition, named.first, named.last)


def _intersect(one: Claim, named: Sequence[Claim]) -> list[Claim]:
    """Return the parts of a claim that the command names as well."""
    common: list[Claim] = []
    for other in named:
        first, last = max(one.first, other.first), min(one.last, other.last)
        if one[:2] == other[:2] and first <= last:
            common.append(one._replace(first=first, last=last))
    return common


def _from_wire(one: wire.HandOver) -> HandOver:
    here, there = one.messages, one.records
    return HandOver(here.topic, here.partition, here.first, len(here), there.topic, there.partition, there.first)


def _to_wire(one: HandOver) -> wire.HandOver:
    last = one.count - 1
    return wire.HandOver(
        BookmarkRange(one.topic, one.partition, one.first, one.first + last),
        BookmarkRange(one.to_topic, one.to_partition, one.to_first, one.to_first + last),
    )
