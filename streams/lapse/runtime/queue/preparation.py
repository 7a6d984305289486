"""Preparation: reads what a command needs before it can be carried out (Q8, Q13, Q15, X4, X7)."""

from __future__ import annotations

from lapse.core.error_code import Refusal
from lapse.core.expression import ExpressionError
from lapse.core.queue.command import QueueCommands
from lapse.core.queue.inquiry.matching import MOST_PAGED, MOST_TRAVELLING
from lapse.core.queue.inquiry.row_filter import invalid_filter_refusal, with_row_filter
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.runtime.authorization.command_authorizer import Admitted
from lapse.runtime.queue.filter_evaluation import FilterEvaluator
from lapse.runtime.queue.sweep_horizon import SweepHorizon
from lapse.runtime.queue.view import QueueView
from lapse.runtime.shard.command_work import CommandWork
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.tp import TP


class Preparation:
    """Prepares one command at a time: looks up the ends of logs and the oldest message, and judges messages.

    Args:
        shard: the shard.
        commands: knows what a command needs.
        payloads: the records behind the messages.
        judge: finds the messages that match a filter.
        view: finds the oldest message.
        horizon: finds the messages that are younger than a command.
    """

    def __init__(
        self,
        shard: QueueShard,
        commands: QueueCommands,
        payloads: PayloadWindow,
        judge: FilterEvaluator,
        view: QueueView,
        horizon: SweepHorizon,
    ) -> None:
        self._shard = shard
        self._commands = commands
        self._payloads = payloads
        self._judge = judge
        self._view = view
        self._horizon = horizon
        self._text = ""
        """The filter under which messages are judged for the command; empty without one."""

    def admit(self, admitted: Admitted) -> tuple[Admitted, Refusal | None]:
        """Combine a command with its user's row filter; return a refusal if a filter cannot be used."""
        if admitted.row_filter is not None:
            try:
                admitted = admitted._replace(command=with_row_filter(admitted.command, admitted.row_filter))
            except ExpressionError as error:
                return admitted, invalid_filter_refusal(admitted.command, error)
        if admitted.command.command != "subscribe":
            return admitted, None
        return admitted, self._judge.filters.refusal(admitted.command.filter)

    def is_needed(self, admitted: Admitted) -> bool:
        """Return whether a command must be prepared."""
        command = admitted.command
        if self._commands.is_sweep(command) and self._horizon.is_open(admitted.at_ms):
            return True
        return self._commands.needs_preparation(command, admitted.row_filter)

    async def begin(self, admitted: Admitted, now_ms: int, step: Step) -> Refusal | None:
        """Prepare a command; return a refusal if it cannot be carried out. Call `end` once the command is done.

        Args:
            admitted: the command.
            now_ms: the latest instant that the shard knows, ms since the epoch.
            step: gets messages that turn out lost or undecodable.
        """
        command, row_filter = admitted.command, admitted.row_filter
        if self._commands.is_sweep(command) and (refusal := await self._horizon.set(admitted.at_ms)) is not None:
            return refusal
        for source in self._commands.sources_named_ahead(command):
            for tp, end in (await self._payloads.ends([TP(*source)])).items():
                self._shard.note_end(*tp, end)
        if command.command == "depth" and not row_filter:
            self._commands.oldest_ms = await self._view.oldest_ms(admitted.at_ms)
        try:
            text = self._commands.selection(command, row_filter)
            if not text:
                return None
            most_kept = MOST_TRAVELLING if command.spare else MOST_PAGED if command.command == "sow" else 0
            self._shard.matching.begin_selection(text, most_kept)
        except ExpressionError as error:
            return invalid_filter_refusal(command, error)
        self._text = text
        work = CommandWork()
        await self._judge.judge_for_command(self._commands, command, text, work, now_ms, step)
        return work.refusal(command.command) if work.is_spent else None

    def end(self) -> None:
        """Forget which messages were judged for the command, and which are younger than it."""
        self._shard.horizon.ends = {}
        if self._text:
            self._shard.matching.end_selection(self._text)
            self._text = ""
