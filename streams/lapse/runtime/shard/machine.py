"""The machine of a shard: connects the core's state machine with records. A runner drives it.

It is the same for queues and SOW topics: admission of commands, messages between shards, the end of an entity, dead
letters, calls of the expiry rule, and the order of a step's effects. `lapse.runtime.queue` and `lapse.runtime.sow`
adapt it to the two kinds of shard: what a record and a command do, and what is delivered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from lapse.core.error_code import Refusal
from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions, run_to_end
from lapse.core.shard.changelog import Items
from lapse.core.shard.contract import Shard, ShardCommands
from lapse.core.shard.retirement import Phase, ShardMessage
from lapse.core.shard.step import Step
from lapse.core.shard.whole_entity import selection_refusal
from lapse.protocol.command import CommandError, Encoding
from lapse.runtime.authorization.admission import Admission
from lapse.runtime.authorization.command_authorizer import Admitted, CommandAuthorizer
from lapse.runtime.letters.expiry_rule import ExpiryRule
from lapse.runtime.letters.letter_retry import LetterRetry
from lapse.runtime.letters.refusal import Write, WriteExpired
from lapse.runtime.letters.shard_letters import LetterSource, ShardLetters
from lapse.runtime.shard import shard_message
from lapse.runtime.shard.effects import Effects, NoteAhead, StepInFlight
from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.shard.long_command import LongCommand
from lapse.runtime.shard.output import ShardOutput
from lapse.runtime.shard.sent_log import TakesBack
from lapse.runtime.shard.shard_message import SHARD_MESSAGE_KEY
from lapse.runtime.shard.step_answers import StepAnswers
from lapse.runtime.shard.under_way import NOTHING_NOTED, UnderWay
from lapse.runtime.tp import TP

C = TypeVar("C", bound=Shard)
"""The kind of shard."""

S = TypeVar("S", bound=Step[Any, Any, Any])
"""The kind of its step."""

F = TypeVar("F", bound=StepInFlight[Any])
"""The kind of its step in flight."""


class ShardMachine(ABC, Generic[C, S, F]):
    """One shard's state machine, with records as inputs and outputs. Inputs collect into a step; `finish` ends it.

    Args:
        shard: the core's state machine.
        output: turns events, letters and answers into records.
        rule: called with each message that leaves; None without an expiry rule (L15).
        source: turns the shard's removals into dead letters.
        left: ids of messages that an earlier epoch kept because their letters were refused.

    Attributes:
        shard: the core's state machine.
        figures: counts what the shard has done.
        rule: the expiry rule; None without one.
        acts_ahead: whether `advance` and `deliver` may be called while the effects of the step before are being
            written, as `arrive` may.
        waits_for_updates: whether commands wait until the logs are read, and not messages for commands (C1).
        step_turns: the greatest number of calls of `advance` in a step.
        delivery_turns: the greatest number of calls of `deliver` in a step.
        delivery_patience_s: how long Kafka may take to accept a delivery. After that the process ends.
        delivery_sendable_s: how long after its decision a delivery under a lease may still be sent (L10).
        merged_by_time: whether messages of all partitions must arrive in the order of their timestamps (Q17, C33).
        long_command: the command that takes several steps, if there is one (C60).
        letters: the shard's dead letters (D3).
        under_way: notes what the machine is handling, so that a record that stops workers can be set aside (X7).
        answers: puts answers into its steps.
        unsent: takes back deliveries under a lease that were never sent; None if no delivery has a lease (C55).
    """

    acts_ahead: ClassVar[bool]
    waits_for_updates: ClassVar[bool] = False
    unsent: TakesBack | None = None
    _commands: ShardCommands
    step_turns: int
    delivery_turns: int
    delivery_patience_s: float
    delivery_sendable_s: float
    merged_by_time: bool

    def __init__(
        self,
        shard: C,
        output: ShardOutput,
        rule: ExpiryRule | None,
        source: LetterSource[F, Any, Any],
        left: Iterable[Hashable],
    ) -> None:
        self.shard = shard
        self.rule = rule
        self.figures = ShardFigures()
        self.under_way: UnderWay = NOTHING_NOTED
        self.long_command = LongCommand()
        settings = shard.settings
        self._shard_output = output
        self._epoch = output.epoch
        self.answers = StepAnswers(output, self.figures)
        self._admission = Admission(settings.name, settings.partition)
        self._flight = self._begin()
        self.letters = ShardLetters(shard, source, left, self.figures)

    def recall(self, epoch: int, journal: Mapping[bytes, bytes]) -> None:
        """Begin to keep answers in the journal, and find earlier ones in the runtime's keys; called before any step."""
        self.answers.recall(epoch, journal)

    # The step

    @property
    @abstractmethod
    def step_records(self) -> int:
        """The greatest number of messages that a step takes in."""

    @property
    @abstractmethod
    def most_at_once(self) -> int:
        """How many messages to take in before others have a turn."""

    @abstractmethod
    def _begin(self) -> F:
        """Return a new step in flight."""

    @property
    def _step(self) -> S:
        """The core's step, with the results of the inputs so far."""
        step: S = self._flight.core
        return step

    def begin_step(self) -> None:
        """Put journal items into the step that must come ahead of it."""
        if self.rule is not None:
            self._flight.ahead += self.rule.forgotten()
        self._flight.ahead += self.answers.forgotten()

    async def hand_on(self, write: Write) -> None:  # only queues forward
        """Write what the last step leased to the forwarder to its target; called first in each step (C38)."""

    async def finish(
        self, write: Write, write_expired: WriteExpired | None = None, note: NoteAhead | None = None
    ) -> Effects:
        """End the step. Write its letters first; messages whose letters are refused stay in the state (D3).

        Args:
            write: writes letters, and returns those that Kafka refuses.
            write_expired: the same, for a step whose letters are all of expired messages.
            note: journals what must be known before anything of the step is written; None for a step without effects.
        """
        self._admission.sum_up()
        if (noted := await self._complete()) and note is not None:
            await note(noted)
        flight, self._flight = self._flight, self._begin()
        step: S = flight.core
        effects = Effects(ahead=flight.ahead)
        await self._hand_over(step, effects, write)
        await self.letters.write(flight, write, write_expired)
        self.letters.let_go(step)
        self._write(flight, effects)
        self.answers.put_verdicts(step, self.instant_ms, flight)
        effects.after += [*flight.answers, *self._admission.written(step.shard_messages)]
        effects.must_arrive |= shard_message.must_arrive(step.shard_messages)
        effects.has_acted, effects.kept = flight.has_acted, flight.kept
        return effects

    async def _complete(self) -> Items:
        """Finish work of the step that waits for a read; return what must be journaled before anything of it (C5)."""
        return []

    async def _hand_over(self, step: S, effects: Effects, write: Write) -> None:
        """Put deliveries that need payloads into the effects. Messages without a record are lost."""

    @abstractmethod
    def _write(self, flight: F, effects: Effects) -> None:
        """Put the step's events, its journal and its other outputs into the effects, and count them."""

    @property
    @abstractmethod
    def instant_ms(self) -> int:
        """The latest instant that the machine knows, ms since the epoch."""

    @abstractmethod
    def set_back(self, now_ms: int) -> None:
        """Go back to an instant, because the broker's clock was set back (C3); called at the beginning of a step."""

    @property
    def retry(self) -> LetterRetry[Any]:
        """The letters that the broker refused and that are tried again (C27)."""
        return self.letters.retry

    # Commands

    def guarded(self, authorizer: CommandAuthorizer) -> None:
        """Have an authorizer check all commands, and answer users on their own topics (X4).

        Call it before any command.
        """
        self._admission.guarded(authorizer)
        self.figures.denied = authorizer.denied
        self._shard_output.users = authorizer.users

    def command(self, record: Any, refused: Refusal | None = None) -> None:
        """Carry out a record of the commands topic at its own instant (C1, C2).

        Args:
            record: the record.
            refused: answer the command with this refusal; None to carry it out.
        """
        at_ms = record.timestamp
        self._reach(at_ms)
        if record.key == SHARD_MESSAGE_KEY:
            heard = self._admission.shard_message(record)
            if heard is not None:
                self._take_shard_message(heard, at_ms, record.offset)
            return
        admitted = self._admission.command(record)
        if isinstance(admitted, CommandError):
            self.answers.refuse_unread(admitted, at_ms, self._flight)
        elif refused is not None:
            self._refuse(admitted, refused)
        else:
            self._take(admitted)

    def _reach(self, at_ms: int) -> None:  # a SOW topic does it for commands of clients only
        """Do what is due before a command's instant, as far as the step has room for it."""

    def _take_shard_message(self, heard: ShardMessage, at_ms: int, offset: int) -> None:
        """Process a message from another shard, at `offset` of the commands topic."""
        self.shard.agreement.receive(heard, at_ms, self._step)

    def _take(self, admitted: Admitted) -> None:
        """Carry out a command, now or when the records that it needs have been read."""
        self._carry_out(admitted)

    def _carry_out(self, admitted: Admitted) -> None:
        """Carry out a command; a deleted entity refuses it (C4)."""
        command = admitted.command
        self.answers.expect(command, self._flight)
        agreement = self.shard.agreement
        if (retirement := agreement.retirement) is not None and retirement.phase is Phase.RETIRED:
            self._refuse(admitted, shard_message.deleted(self.shard.settings.name, retirement))
        elif command.command == "delete":
            asker = shard_message.asker(command, admitted.encoding)
            why_not = selection_refusal(command) or agreement.delete(asker, command.force, admitted.at_ms, self._step)
            if why_not is not None:
                self._refuse(admitted, why_not)
        else:
            self._execute(admitted)
            self._collect(admitted.encoding, admitted.offset)

    def _execute(self, admitted: Admitted) -> None:
        """Carry out a command other than `delete`."""
        self._commands.handle(admitted.command, admitted.at_ms, self._step, admitted.row_filter)

    def _collect(self, encoding: Encoding, offset: int) -> None:
        """Move the core's answers to the command at `offset` of the commands topic out of its step, in its encoding."""
        self.answers.put_all(self._step, encoding, self._flight)

    def _refuse(self, admitted: Admitted, refusal: Refusal) -> None:
        """Answer a command that is not carried out."""
        self.answers.refuse(admitted, refusal, self._flight)

    @property
    def unfinished(self) -> int | None:
        """Offset of the command that takes several steps. No other command is handed over before its end."""
        return self.long_command.offset

    def continue_command(self) -> None:
        """Do the next part of the command that takes several steps (C60)."""
        self.long_command.do_next_part()

    # The end of the entity, and the beginning of an epoch

    @property
    def is_ending(self) -> bool:
        """Whether the end of the entity is asked for or decided, and the shard has still something to write (C4)."""
        return self.shard.agreement.retirement is not None and not self.stopped

    @property
    def stopped(self) -> bool:
        """Whether the entity is deleted and the shard has nothing left to write (C4)."""
        return self.shard.agreement.stopped

    def take_over(self, now_ms: int) -> Items:
        """Do the same as `begin_epoch`, in one go."""
        return run_to_end(self.begin_epoch(now_ms))

    @abstractmethod
    def begin_epoch(self, now_ms: int) -> Portions[Items]:
        """Begin an epoch; return the items that the journal must hold before the first step."""

    def release_memory(self) -> Portions[None]:
        """Free the shard's memory once it is given up, in portions, since all at once takes long (C90)."""
        yield from self.shard.release_memory()

    def _end_of_others(self, now_ms: int) -> None:
        """End subscriptions whose users may not read any more, or not the same records (X4)."""
        for one in list(self.shard.subscriptions()):
            why = self._admission.ended(one)
            if why:
                self.shard.unsubscribe(one.id, now_ms, self._step, why)

    # Messages

    @property
    @abstractmethod
    def waits_for_ends(self) -> bool:
        """Whether commands and timers must wait until the underlying logs are read to where they ended (C1)."""

    @abstractmethod
    def room(self) -> int:
        """Return how many more messages the shard can take in now (Q13)."""

    @abstractmethod
    def room_for(self, topic: str, partition: int) -> int:
        """Return how many more messages of an underlying partition the shard can take in now."""

    @abstractmethod
    def arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        """Take in records of an underlying topic; return how many. The others must be handed over again (C51)."""

    def set_aside(self, topic: str, partition: int, record: Any, why: str) -> None:
        """Make a dead letter of a record that stopped the worker repeatedly, without decoding it (X7)."""
        self.shard.set_aside(topic, partition, record, why, self._step)

    @property
    def step_bytes(self) -> int:
        """About how many bytes the step so far will take in its last RecordBatch."""
        return 0

    # Time

    def next_due_ms(self) -> int:
        """Return the next instant at which `advance` has something to do."""
        return NEVER if self._waits_to_leave else self.shard.next_due_ms()

    def is_due(self, at_ms: int) -> bool:
        """Return whether `advance` has something to do at an instant."""
        return not self._waits_to_leave and self.shard.is_due(at_ms)

    @property
    def _waits_to_leave(self) -> bool:
        """Whether the end of the entity waits for letters or for the expiry rule, so that timers need not act."""
        rule_waits = self.rule is not None and self.rule.waiting
        return bool(self.shard.state.pending or rule_waits) and bool(self.shard.agreement.leaving)

    def waits_for_arrivals(self, at_ms: int) -> bool:
        """Return whether a scheduled message is due by `at_ms` that must come behind earlier arrivals (C76)."""
        return False

    def note_received(self, topic: str, partition: int) -> None:  # both kinds of shard do it, under conditions
        """Note that records of an underlying topic have come, which may have to wait."""

    def note_take(self, ends: Mapping[TP, int]) -> None:  # not needed by SOW topics, which are not replayed
        """Note up to which offsets messages of several partitions were taken in together (X10)."""

    def arrivals_are_in(self, to_ms: int) -> None:  # a SOW topic orders updates by instant (C47)
        """Note that everything that arrived up to an instant was taken in."""

    @abstractmethod
    def advance(self, now_ms: int) -> None:
        """Do what is due. It may stop early, and `next_due_ms` is then still due."""

    @abstractmethod
    def deliver(self, now_ms: int) -> bool:
        """Hand out what can be handed out; return True if there is more."""

    def written(self, effects: Effects, now_ms: int) -> bool:
        """Note that the effects of a step were written at `now_ms`; return whether something waited for that."""
        return False  # few machines need this

    def note_step_time(self, seconds: float) -> None:  # not needed by a machine whose steps are short
        """Note how long the last step took, s, until all was written."""

    # Topics

    def begin_topics(self, replaced: Collection[str], since: Mapping[TP, int]) -> None:
        """Note which topics were created anew, and since which epoch each source exists; called first (C42).

        The sources are all that the shard reads. Commands may name their messages before any of them has come (Q13).
        """

    @abstractmethod
    def replace(self, topics: Collection[str], now_ms: int) -> bool:
        """Close the state of topics that were created anew; return False if the next step must close more."""

    def held_sources(self) -> list[TP]:
        """Return the partitions whose records may still be needed."""
        return []

    def log_begins(self, tp: TP, begin_offset: int, now_ms: int) -> bool:
        """Drop records that Kafka has removed; return False if more are left for the next step (C40)."""
        return True

    def missed(self, tp: TP, first: int, last: int) -> list[tuple[int, int]]:
        """Return the ranges that are a loss, of some that Kafka removed unread. A SOW topic waits for later updates."""
        return []

    def report_unread(self, tp: TP, ranges: Sequence[tuple[int, int]], now_ms: int) -> None:
        """Report records that Kafka removed before they were read (C80)."""

    # Inquiries

    @abstractmethod
    def gauges(self, now_ms: int = -1) -> dict[str, int]:
        """Return current figures by name. With an instant, a queue's are those of a `depth` answer."""

    async def oldest_ms(self, now_ms: int = -1) -> int | None:
        """Return the arrival of the oldest message, ms since the epoch; None without one, and for SOW topics."""
        return None

    def look_up(self, key: bytes, now_ms: int) -> bytes | None:
        """Return the value of a table key; None if there is none, or it has expired."""
        return next((value for found, value in self.look_through(now_ms) if found == key), None)

    @abstractmethod
    def look_through(self, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys and values."""


Machine = ShardMachine[Any, Any, Any]
"""A machine of either kind, as a runner uses it."""
