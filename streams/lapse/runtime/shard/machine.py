"""The machine of a shard: connects the core's state machine with records; a runner drives it.

It is the same for queues and SOW topics: who may give commands, what shards say to each other, the end of an entity,
dead letters, calls of the expiry rule, and what a step does to the world in which order. `lapse.runtime.queue` and
`lapse.runtime.sow` adapt it to the two kinds of shard: what a record and a command do, and what is delivered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from lapse.core.error_code import Refusal
from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions, whole
from lapse.core.shard.answer import CommandAnswer
from lapse.core.shard.contract import Shard
from lapse.core.shard.retirement import Phase, ShardMessage
from lapse.core.shard.step import Step
from lapse.protocol.command import CommandError, Encoding
from lapse.runtime.journal.changelog import Items
from lapse.runtime.kafka.output import Output
from lapse.runtime.letters.expiry_rule import ExpiryRule
from lapse.runtime.letters.letter_retry import LetterRetry
from lapse.runtime.letters.refusal import Write, WriteExpired
from lapse.runtime.letters.shard_letters import LetterSource, ShardLetters
from lapse.runtime.shard import shard_message
from lapse.runtime.shard.admission import Admission
from lapse.runtime.shard.command_authorizer import Admitted, CommandAuthorizer
from lapse.runtime.shard.effects import Effects, StepInFlight
from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.shard.kept_answers import KeptAnswers
from lapse.runtime.shard.output import ShardOutput
from lapse.runtime.shard.shard_message import SHARD_MESSAGE_KEY
from lapse.runtime.shard.under_way import NOTHING_NOTED, UnderWay
from lapse.runtime.tp import TP

C = TypeVar("C", bound=Shard)
"""A kind of shard."""

S = TypeVar("S", bound=Step[Any, Any, Any])
"""Its step."""

F = TypeVar("F", bound=StepInFlight[Any])
"""That step in flight."""


_QUESTIONS: Final = frozenset(
    {"heartbeat", "depth", "sow", "subscriptions", "subscribe", "unsubscribe"}
    | {"sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"}
)
"""Commands that concern no message or record: carried out once more after a crash, they do no harm."""


class ShardMachine(ABC, Generic[C, S, F]):
    """One shard's state machine, fed with records and writing records.

    Inputs collect into a step; `finish` ends the step.

    Args:
        shard: the state machine.
        output: writes events, letters and answers.
        rule: called with each message that leaves; None = there is none (L15).
        source: knows its dead letters.
        left: names of messages that an earlier epoch kept because their letters were refused.

    Attributes:
        shard: the same.
        figures: counts what the shard has done.
        rule: the same.
        acts_ahead: whether `advance` and `deliver` may come while the effects of the step before are being written, as
            `arrive` may.
        waits_for_updates: whether its commands wait until the logs are read, instead of messages for commands (C1).
        step_turns: how often a step calls `advance` at most.
        delivery_turns: how often a step calls `deliver` at most.
        delivery_patience_s: how long Kafka may take to accept a delivery; after that the process ends.
        merged_by_time: whether messages of all partitions have to arrive in the order of their timestamps (Q17, C33).
        unfinished: offset of the command that takes several steps; no other command is handed over before its end.
        letters: its dead letters (D3).
        under_way: notes what the machine is handling, so that a record that stops workers can be set aside (X7).
        kept_answers: the answers that the journal keeps; None = it keeps none (C55).
    """

    acts_ahead: ClassVar[bool]
    waits_for_updates: ClassVar[bool] = False
    step_turns: int
    delivery_turns: int
    delivery_patience_s: float
    merged_by_time: bool

    def __init__(
        self,
        shard: C,
        output: ShardOutput,
        rule: ExpiryRule | None,
        source: LetterSource[F, S, Any, Any],
        left: Iterable[Hashable],
    ) -> None:
        self.shard = shard
        self.rule = rule
        self.figures = ShardFigures()
        self.under_way: UnderWay = NOTHING_NOTED
        self.kept_answers: KeptAnswers | None = None
        self.unfinished: int | None = None
        settings = shard.settings
        self._answer_output = output
        self._admission = Admission(settings.name, settings.partition)
        self._at_work = self._begin()
        shown = f"{settings.name}, partition {settings.partition}"
        self.letters = ShardLetters(shown, source, left, self.figures)

    # The step

    @property
    @abstractmethod
    def step_records(self) -> int:
        """The greatest number of messages that it takes in with a step."""

    @property
    @abstractmethod
    def most_at_once(self) -> int:
        """How many messages it takes in before others have a turn."""

    @abstractmethod
    def _begin(self) -> F:
        """Begin a step."""

    @property
    def _step(self) -> S:
        """What the core makes of the step's inputs so far."""
        step: S = self._at_work.core
        return step

    def begin_step(self) -> None:
        """Collect what the journal needs before the step."""
        if self.rule is not None:
            self._at_work.ahead += self.rule.forgotten()
        if self.kept_answers is not None:
            self._at_work.ahead += self.kept_answers.forgotten()

    async def finish(self, write: Write, write_expired: WriteExpired | None = None) -> Effects:
        """End the step: its letters are written, and what is refused stays in the state (D3).

        Args:
            write: writes letters, and says which of them Kafka refuses.
            write_expired: the same for a step whose letters are all about messages whose time is over.
        """
        self._admission.sum_up()
        await self._complete()
        at_work, self._at_work = self._at_work, self._begin()
        step: S = at_work.core
        effects = Effects(ahead=at_work.ahead)
        await self._hand_over(step, effects, write)
        await self.letters.write(at_work, write, write_expired)
        self.letters.let_go(step)
        self._write(at_work, effects)
        for verdict in step.verdicts:
            if not verdict.asker.silent:
                self._answer(shard_message.answer(verdict, self._instant_ms), shard_message.encoding(verdict), at_work)
        effects.after += [*at_work.answers, *self._admission.written(step.shard_messages)]
        effects.must_arrive |= shard_message.must_arrive(step.shard_messages)
        effects.has_acted, effects.kept = at_work.has_acted, at_work.kept
        return effects

    async def _complete(self) -> None:  # not every kind of shard has something to wait for
        """Finish work of the step that had to wait for a read."""

    async def _hand_over(self, step: S, effects: Effects, write: Write) -> None:
        """Put deliveries that need payloads into the effects; those without a record are lost."""

    @abstractmethod
    def _write(self, at_work: F, effects: Effects) -> None:
        """Put the step's events, its journal and its other outputs into the effects, and count them."""

    @property
    @abstractmethod
    def _instant_ms(self) -> int:
        """The latest instant that it has heard of, ms since the epoch."""

    @property
    def retry(self) -> LetterRetry[Any]:
        """The letters that the broker refused (C27)."""
        return self.letters.retry

    # Commands

    def guarded(self, authorizer: CommandAuthorizer) -> None:
        """Have an authorizer check all commands, and write to each user's own topic; before the first command (X4)."""
        self._admission.guarded(authorizer)
        self.figures.denied = authorizer.denied
        self._answer_output.users = authorizer.users

    def command(self, record: Any, refused: Refusal | None = None) -> None:
        """Carry out a record of the commands topic at its own instant (C1, C2).

        Args:
            record: the record.
            refused: a refusal with which to answer it instead; None = carry it out.
        """
        at_ms = record.timestamp
        self._reach(at_ms)
        if record.key == SHARD_MESSAGE_KEY:
            heard = self._admission.shard_message(record)
            if heard is not None:
                self._hear(heard, at_ms, record.offset)
            return
        admitted = self._admission.command(record)
        if isinstance(admitted, CommandError):
            self._refuse_unread(admitted, at_ms)
        elif refused is not None:
            self._refuse(admitted, refused)
        else:
            self._take(admitted)

    def _reach(self, at_ms: int) -> None:  # a SOW topic's commands count as of theirs
        """Do what is due before a command's instant, as far as the step has room for it."""

    def _hear(self, heard: ShardMessage, at_ms: int, offset: int) -> None:
        """Take in what another shard says, which stands at an offset of the commands topic."""
        self.shard.agreement.receive(heard, at_ms, self._step)

    def _take(self, admitted: Admitted) -> None:
        """Carry out a command, now or when what it needs has been read."""
        self._carry_out(admitted)

    def _carry_out(self, admitted: Admitted) -> None:
        """Carry out a command; a deleted entity refuses it (C4)."""
        self._at_work.has_acted |= admitted.command.command not in _QUESTIONS
        if self.kept_answers is not None:
            self.kept_answers.expect(admitted.command)
        agreement = self.shard.agreement
        retirement = agreement.retirement
        if retirement is not None and retirement.phase is Phase.RETIRED:
            self._refuse(admitted, shard_message.deleted(self.shard.settings.name, retirement))
        elif admitted.command.command == "delete":
            asker = shard_message.asker(admitted.command, admitted.encoding)
            why_not = agreement.delete(asker, admitted.command.force, admitted.at_ms, self._step)
            if why_not is not None:
                self._refuse(admitted, why_not)
        else:
            self._do(admitted)
            self._collect(admitted.encoding, admitted.offset)

    @abstractmethod
    def _do(self, admitted: Admitted) -> None:
        """Carry out a command that is not about the entity's end."""

    def _collect(self, encoding: Encoding, offset: int) -> None:
        """Take what the core answers out of its step, with the encoding of the command that it belongs to.

        Args:
            encoding: of the command.
            offset: where it stands on the commands topic.
        """
        answers = self._step.answers
        for answer in answers:
            self._answer(answer, encoding)
        answers.clear()

    def _refuse_unread(self, error: CommandError, at_ms: int) -> None:
        """Answer a record that is no command, or whose sender may not give it."""
        if error.silent:
            self.figures.refused_commands += 1
            return
        self._answer(CommandAnswer(error.id, error.command, error.subscription, at_ms, error.refusal), error.encoding)

    def _refuse(self, admitted: Admitted, refusal: Refusal) -> None:
        """Answer a command that is not carried out."""
        command = admitted.command
        if command.answer != "none":
            answer = CommandAnswer(command.id, command.command, command.subscription, admitted.at_ms, refusal)
            self._answer(answer, admitted.encoding)

    def _answer(self, answer: CommandAnswer, encoding: Encoding, at_work: F | None = None) -> None:
        """Put an answer into a step; None = the one that collects."""
        self.figures.refused_commands += answer.refusal is not None
        at_work = at_work or self._at_work
        written = self._answer_output.answer(answer, encoding)
        at_work.answers.append(written)
        at_work.has_acted |= answer.command not in _QUESTIONS
        if self.kept_answers is not None:
            kept = self.kept_answers.keep(answer, written)
            at_work.ahead += kept
            at_work.kept += [key for key, _ in kept]

    def go_on(self) -> None:  # a queue's commands are done at once
        """Do a part of the unfinished command."""

    # The end, and the beginning

    @property
    def stopped(self) -> bool:
        """Whether the entity is deleted and nothing is left to do, so that nothing may be written any more (C4)."""
        return self.shard.agreement.stopped

    def take_over(self, now_ms: int) -> Items:
        """The same as `taking_over`, in one go."""
        return whole(self.taking_over(now_ms))

    @abstractmethod
    def taking_over(self, now_ms: int) -> Portions[Items]:
        """Begin an epoch: what the journal is to hold before the first step."""

    def answers_left(self) -> list[Output]:
        """What the owner before has journaled and clients may not have: answers that nobody can ask for again (C55)."""
        return [] if self.kept_answers is None else self.kept_answers.left(self._answer_output.topics)

    def letting_go(self) -> Portions[None]:
        """Free its memory once the shard is given up, in portions, since much of it takes long (C90)."""
        yield from self.shard.letting_go()

    def _end_of_others(self, now_ms: int) -> None:
        """End subscriptions whose users may not read any more, or not the same (X4)."""
        for one in list(self.shard.subscriptions()):
            why = self._admission.ended(one)
            if why:
                self.shard.unsubscribe(one.id, now_ms, self._step, why)

    # Messages

    @property
    @abstractmethod
    def waits_for_ends(self) -> bool:
        """Whether commands and timers have to wait until the underlying logs are read as far as they reached (C1)."""

    @abstractmethod
    def room(self) -> int:
        """How many more messages it takes now (Q13)."""

    @abstractmethod
    def room_for(self, topic: str, partition: int) -> int:
        """How many more messages of an underlying partition it takes now."""

    @abstractmethod
    def arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        """Take in records of an underlying topic; how many there was room for: the rest has to come again (C51)."""

    def set_aside(self, topic: str, partition: int, record: Any, why: str) -> None:
        """Make a dead letter of a record that stopped the worker repeatedly, without reading it (X7)."""
        self.shard.set_aside(topic, partition, record, why, self._step)

    @property
    def step_bytes(self) -> int:
        """About how many bytes the step takes in its last RecordBatch so far."""
        return 0

    # Time

    def next_due_ms(self) -> int:
        """The next instant at which `advance` has something to do."""
        return NEVER if self._waits_to_leave else self.shard.next_due_ms()

    def is_due(self, at_ms: int) -> bool:
        """Whether `advance` has something to do at an instant."""
        return not self._waits_to_leave and self.shard.is_due(at_ms)

    @property
    def _waits_to_leave(self) -> bool:
        """Whether the end of the entity waits for letters or for the expiry rule, and not for time."""
        rule_waits = self.rule is not None and self.rule.waiting
        return bool(self.shard.state.pending or rule_waits) and bool(self.shard.agreement.leaving)

    def waits_for_arrivals(self, at_ms: int) -> bool:
        """Whether a message is due at an instant that has to stand behind earlier arrivals (C76)."""
        return False

    def took_together(self, ends: Mapping[TP, int]) -> None:  # a SOW topic is not replayed
        """Know how far messages of several partitions were taken in that were merged by time (C33)."""

    def arrivals_are_in(self, to_ms: int) -> None:  # a key's updates count by their instants (C47)
        """Know that everything that arrived up to an instant was taken in."""

    @abstractmethod
    def advance(self, now_ms: int) -> None:
        """Do what is due; may stop early, `next_due_ms` is then still due."""

    @abstractmethod
    def deliver(self, now_ms: int) -> bool:
        """Hand out what can be handed out; True if there is more."""

    def written(self, effects: Effects, now_ms: int) -> bool:
        """Know that the effects of a step are written by an instant, ms since the epoch; whether something waits."""
        return False  # few machines have to know

    def took(self, seconds: float) -> None:  # what is done at once is little
        """Learn how long the last step took, until all was written."""

    # Topics

    def begin_topics(self, replaced: Collection[str], since: Mapping[TP, int]) -> None:
        """Know which topics were created anew, and since which epoch each source exists; called first (C42)."""

    @abstractmethod
    def replace(self, topics: Collection[str], now_ms: int) -> bool:
        """Close the state of topics that were created anew; False if the next step has to close more."""

    def held_sources(self) -> list[TP]:
        """Partitions whose records may still be needed."""
        return []

    def log_begins(self, tp: TP, begin_offset: int, now_ms: int) -> bool:
        """Let go of records that Kafka has removed; False if there are more for the next step (C40)."""
        return True

    def missed(self, tp: TP, first: int, last: int) -> list[tuple[int, int]]:
        """First and last offsets of the records that are missed, of some that Kafka removed unread.

        A SOW topic misses none, because a later update of a key replaces an unread one.
        """
        return []

    def never_read(self, tp: TP, ranges: Sequence[tuple[int, int]], now_ms: int) -> None:
        """Tell of records that Kafka removed before they were read (C80)."""

    # The view from outside

    @abstractmethod
    def gauges(self, now_ms: int = -1) -> dict[str, int]:
        """Current figures, by name; with an instant, a queue's are those that a `depth` command gets."""

    async def oldest_ms(self, now_ms: int = -1) -> int | None:
        """Arrival of the oldest message, ms since the epoch; None without one, and for SOW topics."""
        return None

    @abstractmethod
    def look_up(self, key: bytes, now_ms: int) -> bytes | None:
        """The value of a table key; None if there is none, or it has expired."""

    @abstractmethod
    def look_through(self, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values."""


Machine = ShardMachine[Any, Any, Any]
"""A machine of either kind, as a runner drives it."""
