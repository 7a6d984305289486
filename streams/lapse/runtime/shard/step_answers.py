"""The answers of a shard's steps: each becomes a record, and the journal keeps those that nobody can ask for again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lapse.core.error_code import Refusal
from lapse.core.shard.answer import CommandAnswer
from lapse.core.shard.changelog import Items
from lapse.core.shard.step import Step
from lapse.protocol.command import Command, CommandError, Encoding
from lapse.runtime.authorization.command_authorizer import Admitted
from lapse.runtime.kafka.output import Output
from lapse.runtime.shard import shard_message
from lapse.runtime.shard.effects import StepInFlight
from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.shard.kept_answers import KeptAnswers
from lapse.runtime.shard.output import ShardOutput

_QUESTIONS: Final = frozenset(
    {"heartbeat", "depth", "sow", "subscriptions", "subscribe", "unsubscribe"}
    | {"sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"}
)
"""Commands that change no message or record, so that it does no harm to carry them out again after a crash."""


class StepAnswers:
    """Puts answers into the steps of one shard.

    Args:
        output: turns answers into records.
        figures: counts refused commands.

    Attributes:
        kept: the answers that the journal keeps; None if it keeps none (C55).
    """

    def __init__(self, output: ShardOutput, figures: ShardFigures) -> None:
        self.kept: KeptAnswers | None = None
        self._output = output
        self._figures = figures

    def recall(self, epoch: int, journal: Mapping[bytes, bytes]) -> None:
        """Begin to keep answers in the journal, and find those that earlier epochs left there.

        Args:
            epoch: the shard's epoch.
            journal: the runtime's keys of the changelog.
        """
        self.kept = KeptAnswers(epoch, journal)

    def expect(self, command: Command, flight: StepInFlight[Any]) -> None:
        """Note that a step carries out a command."""
        flight.has_acted |= command.command not in _QUESTIONS
        if self.kept is not None:
            self.kept.expect(command)

    def put(self, answer: CommandAnswer, encoding: Encoding, flight: StepInFlight[Any]) -> None:
        """Put an answer into a step in flight."""
        self._figures.refused_commands += answer.refusal is not None
        written = self._output.answer(answer, encoding)
        flight.answers.append(written)
        flight.has_acted |= answer.command not in _QUESTIONS
        if self.kept is not None:
            items = self.kept.keep(answer, written)
            flight.ahead += items
            flight.kept += [key for key, _ in items]

    def put_all(self, step: Step[Any, Any, Any], encoding: Encoding, flight: StepInFlight[Any]) -> None:
        """Move the answers of the core's step into the step in flight, each with the encoding of its command."""
        for answer in step.answers:
            self.put(answer, encoding, flight)
        step.answers.clear()

    def put_verdicts(self, step: Step[Any, Any, Any], at_ms: int, flight: StepInFlight[Any]) -> None:
        """Answer requests for the deletion of the entity, unless they ask for no answer (C4)."""
        for verdict in step.verdicts:
            if not verdict.asker.silent:
                self.put(shard_message.answer(verdict, at_ms), shard_message.encoding(verdict), flight)

    def refuse(self, admitted: Admitted, refusal: Refusal, flight: StepInFlight[Any]) -> None:
        """Answer a command that is not carried out."""
        command = admitted.command
        if command.answer != "none":
            answer = CommandAnswer(command.id, command.command, command.subscription, admitted.at_ms, refusal)
            self.put(answer, admitted.encoding, flight)

    def refuse_unread(self, error: CommandError, at_ms: int, flight: StepInFlight[Any]) -> None:
        """Answer a record that is no command, or whose sender may not give it."""
        if error.silent:
            self._figures.refused_commands += 1
            return
        answer = CommandAnswer(error.id, error.command, error.subscription, at_ms, error.refusal)
        self.put(answer, error.encoding, flight)

    def forgotten(self) -> Items:
        """Return journal items that remove answers that Kafka has."""
        return [] if self.kept is None else self.kept.forgotten()

    def written(self, keys: Iterable[bytes]) -> None:
        """Note that Kafka has the answers that the journal keeps under these keys."""
        if self.kept is not None:
            self.kept.written(keys)

    def left(self) -> list[Output]:
        """Return answers that the previous owner journaled and clients may lack, since nobody can ask again (C55)."""
        return [] if self.kept is None else self.kept.left(self._output.topics)
