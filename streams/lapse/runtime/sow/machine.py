"""The machine of a SOW shard: the core's state machine with records coming in and going out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from faust.types import TP

from lapse.core.error_code import Refusal
from lapse.core.lifetime import NEVER
from lapse.core.shard.answer import CommandAnswer
from lapse.core.shard.retirement import Phase, Verdict
from lapse.core.sow import journal, pending_letters
from lapse.core.sow.deletion import PORTION
from lapse.core.sow.record import payload_of
from lapse.core.sow.shard import SowShard
from lapse.core.sow.step import DeletionAtWork, QueryAtWork, Removal, Step, encode_changes
from lapse.protocol import topic as names
from lapse.protocol.command import Command, CommandError, Encoding
from lapse.runtime.journal.store import Items
from lapse.runtime.kafka.producer import Output
from lapse.runtime.letters.expiry_rule import ExpiryRule
from lapse.runtime.letters.letter_retry import LetterRetry, Write
from lapse.runtime.shard import shard_message
from lapse.runtime.shard.command_authorizer import Admitted, CommandAuthorizer, admit_all, whose
from lapse.runtime.shard.effort import Effort, Portion
from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.shard.machine import Effects
from lapse.runtime.shard.refusal_log import RefusalLog
from lapse.runtime.shard.shard_message import SHARD_MESSAGE_KEY
from lapse.runtime.shard.under_way import NOTHING_NOTED
from lapse.runtime.sow.output import SowOutput
from lapse.runtime.timers.clock import BY_THE_BROKER

logger = logging.getLogger(__name__)

_JOURNAL_BYTES: Final = 1 << 20
"""Changes beyond this go ahead of the step's last RecordBatch."""

_STEP_RECORDS: Final = 2_500
_MOST_AT_ONCE: Final = 500
"""Small enough that whoever waits for its turn, or for a step's end, waits for milliseconds."""

_PATIENCE_S: Final = 30.0
"""Nothing is leased; what comes so late is of no use to anybody."""

_DELIVERY_TURNS: Final = 4
"""Parts of queries in one step, each as long as a millisecond or two."""

Read = Callable[[str, int, int], Awaitable[Any | None]]
"""Reads one record: topic, partition, offset; None where Kafka no longer has it."""


class SowMachine:
    """One shard of a SOW topic.

    What subscribers are told, and the compacted topic, are written before the journal: after a crash both may be told
    again with the same bookmarks, but nothing is left out. A step may be journaled in several RecordBatches: doing it
    again from the old offsets on leads to the same records.

    Args:
        shard: the state machine, restored.
        output: writes state, messages, events and letters.
        read: reads one record of an underlying topic back, beside the shard.
        rule: called with each record that leaves (L15).
        clock_ms: the broker's clock, ms since the epoch.
    """

    takes_ahead = True
    """What a step holds is its own: `finish` hands it over, and begins another."""

    def __init__(
        self,
        shard: SowShard,
        output: SowOutput,
        read: Read,
        rule: ExpiryRule | None = None,
        clock_ms: Callable[[], int] = lambda: NEVER,
    ) -> None:
        self.shard = shard
        self._clock_ms = clock_ms
        self.rule = rule
        self.under_way = NOTHING_NOTED
        self.figures = ShardFigures()
        self.step_records = _STEP_RECORDS
        self.most_at_once = _MOST_AT_ONCE
        self.step_turns = _STEP_RECORDS // _MOST_AT_ONCE
        self.delivery_turns = _DELIVERY_TURNS
        self.delivery_patience_s = _PATIENCE_S
        self.merged_by_time = shard.settings.home.shared
        """Updates of one key may stand on several partitions: they count in the order of their stamps (C46)."""
        self._output = output
        self._read = read
        settings, left = shard.settings, shard.state.pending
        in_order = sorted(left, key=lambda name: self._letter(name).at_ms)
        self.retry: LetterRetry[bytes] = LetterRetry(settings.name, self._pending_letter, in_order)
        self._step = Step()
        self._ahead: Items = []
        self._queries: deque[tuple[QueryAtWork, Encoding, int, Effort]] = deque()
        self._scan = Portion(settings.max_scan, settings.max_scan)
        self._portion = Portion(PORTION)
        self._command_offset = -1
        self._refusals = RefusalLog(f"{settings.name}, partition {settings.partition}")
        self._deletion: tuple[DeletionAtWork, bool, Encoding] | None = None
        self.unfinished: int | None = None
        self._answers: list[Output] = []
        self._took_over_ms = -1
        self._authorizer: CommandAuthorizer | None = None
        self._admit: Callable[[Any], Admitted] = admit_all

    def guarded(self, authorizer: CommandAuthorizer) -> None:
        """Let users in by an authorizer only, and tell each what is theirs alone (X4)."""
        self._authorizer, self._admit = authorizer, authorizer.read
        self.figures.denied = authorizer.denied
        self._output.users = authorizer.users

    @property
    def waits_for_ends(self) -> bool:
        """Whether commands and timers wait for the logs: an update in them may give a record a new deadline (C1).

        A shard that has agreed to end takes no updates in, and waits for the others' messages only.
        """
        return not self.shard.agreement.frozen

    @property
    def stopped(self) -> bool:
        """Whether the SOW topic is deleted and nothing is left to do (C4)."""
        return self.shard.agreement.stopped

    def room(self) -> int:
        """As many as come; none once the shard has agreed to end."""
        return 0 if self.shard.agreement.frozen else 1 << 62

    def room_for(self, topic: str, partition: int) -> int:
        """As many as come."""
        return 1 << 62

    def arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        """Take in records of an underlying topic, all of them."""
        taken = 0
        # Stamps of the broker's own are never ahead of it, whatever was heard of its clock so far.
        by_the_broker = bool(records) and getattr(records[-1], "timestamp_type", None) == BY_THE_BROKER
        clock_ms = NEVER if by_the_broker else self._clock_ms()
        while taken < len(records):
            # A step that is cut goes on as the same one: `finish` splits its changes.
            taken += self.shard.arrive(topic, partition, records[taken:] if taken else records, self._step, clock_ms)
        return taken

    def set_aside(self, topic: str, partition: int, record: Any, why: str) -> None:
        """Make a dead letter of a record that cannot even be looked at (X7)."""
        self.shard.set_aside(topic, partition, record, why, self._step)

    def command(self, record: Any, refused: Refusal | None = None) -> None:
        """Carry out a command at its own instant (C1)."""
        name = self.shard.settings.name
        self._command_offset = record.offset
        if record.key == SHARD_MESSAGE_KEY:
            heard = shard_message.read(name, record, self._authorizer)
            if heard is not None:
                self.shard.agreement.receive(heard, record.timestamp, self._step)
            return
        try:
            command, encoding, row_filter = self._admit(record)
        except CommandError as error:
            self._refusals.tell(whose(record), record.offset, str(error))
            if not error.silent:
                refusal = CommandAnswer(error.id, error.command, error.subscription, record.timestamp, error.refusal)
                self._answers.append(self._output.answer(refusal, error.encoding))
            self.figures.refused_commands += 1
            return
        ends, why_not = (True, refused) if refused else self._ends(command, encoding, record.timestamp)
        if why_not is not None and command.answer != "none":
            self._step.answers.append(
                CommandAnswer(command.id, command.command, command.subscription, record.timestamp, why_not)
            )
        elif not ends:
            self.shard.command(command, record.timestamp, self._step, row_filter)
        for deletion, answered in self._step.deletions:
            self._deletion = deletion, answered, encoding
            self.unfinished = record.offset
        self._step.deletions.clear()
        self._collect(encoding)

    def go_on(self) -> None:
        """Do a part of the deletion that the last command has begun."""
        if self._deletion is None:
            return
        deletion, answered, encoding = self._deletion
        offset = -1 if self.unfinished is None else self.unfinished
        settings = self.shard.settings
        size = self._portion.size
        noted = self.under_way.noted(names.commands(settings.name), settings.partition, offset, offset)
        with noted, Effort().spent_on(size, self._portion):
            self.shard.go_on(deletion, answered, self._step, size)
        self._collect(encoding)
        if deletion.finished:
            self._deletion = self.unfinished = None

    def _ends(self, command: Command, encoding: Encoding, at_ms: int) -> tuple[bool, Refusal | None]:
        """Carry out a command that is about the topic's end, or comes after it: whether it is one, and why not."""
        retirement = self.shard.state.retirement
        if retirement is not None and retirement.phase is Phase.RETIRED:
            return True, shard_message.deleted(self.shard.settings.name, retirement)
        if command.command != "delete":
            return False, None
        asker = shard_message.asker(command, encoding)
        return True, self.shard.agreement.delete(asker, command.force, at_ms, self._step)

    @property
    def step_bytes(self) -> int:
        """Nothing that counts: a step's changes are journaled in as many batches as they take."""
        return 0

    def advance(self, now_ms: int) -> None:
        """Do what is due, a bounded amount of it."""
        if self.next_due_ms() == NEVER:
            return
        self.shard.advance(now_ms, self._step, _MOST_AT_ONCE)

    def took(self, seconds: float) -> None:
        """Nothing: what is done at once is little."""

    def deliver(self, now_ms: int) -> bool:
        """Send the next batch of the query whose turn it is, once what expired meanwhile is gone (S9, C45)."""
        if self.next_due_ms() <= self._took_over_ms:
            return False
        while self._queries:
            query, encoding, offset, effort = self._queries.popleft()
            if query.finished:
                continue
            name, partition = self.shard.settings.name, self.shard.settings.partition
            scan = self._scan.size
            noted = self.under_way.noted(names.commands(name), partition, offset, offset)
            with noted, effort.spent_on(scan, self._scan):
                self.shard.pull(query, now_ms, self._step, scan)
            if effort.is_spent:
                self.shard.refuse(query, now_ms, self._step, effort.refusal(query.command))
            self._collect(encoding)
            if not query.finished:
                self._queries.append((query, encoding, offset, effort))
            break
        return bool(self._queries)

    def next_due_ms(self) -> int:
        """The next instant at which something is due."""
        if self.shard.agreement.leaving and (self.shard.state.pending or (self.rule is not None and self.rule.waiting)):
            return NEVER  # both wake the shard: a letter that is safe at last, and the rule when it is done
        due_ms = self.shard.next_due_ms()
        return NEVER if due_ms is None else due_ms

    def is_due(self, at_ms: int) -> bool:
        """Whether something is due at an instant."""
        return self.next_due_ms() <= at_ms

    def waits_for_arrivals(self, at_ms: int) -> bool:
        """No: a key's updates count by their instants, in whatever order they are read (C47)."""
        return False

    def arrivals_are_in(self, to_ms: int) -> None:
        """Nothing."""

    def begin_topics(self, replaced: Collection[str], since: Mapping[TP, int]) -> None:
        """Nothing: records are the shard's own, and settled by nobody."""

    def replace(self, topics: Collection[str], now_ms: int) -> bool:
        """Let the bookmarks of topics that were created anew name new updates only; the records stay (C42)."""
        for topic in topics:
            self.shard.replace_topic(topic, self._step)
        return True

    def held_sources(self) -> list[TP]:
        """None: records and scheduled versions are kept whole."""
        return []

    def log_begins(self, tp: TP, begin_offset: int, now_ms: int) -> bool:
        """Nothing: records are kept whole."""
        return True

    def take_over(self, now_ms: int) -> Items:
        """Begin an epoch."""
        self._took_over_ms = now_ms
        if self._authorizer is not None:
            self._end_of_others(self._authorizer, now_ms)
        self.shard.take_over(now_ms, self._step)
        self._collect("avro")
        return []

    def _end_of_others(self, authorizer: CommandAuthorizer, now_ms: int) -> None:
        """End subscriptions whose users may not read any more, or not the same (X4)."""
        for one in self.shard.subscriptions():
            why = authorizer.ended(one.id, one.row_filter)
            if why:
                self.shard.unsubscribe(one.id, now_ms, self._step, why)

    def maintain(self) -> Items:
        """What goes ahead of the step's last RecordBatch: empty now, filled by `finish`."""
        self._ahead = [] if self.rule is None else self.rule.forgotten()
        return self._ahead

    def gauges(self) -> dict[str, int]:
        """Records, letters that wait, and subscriptions."""
        state = self.shard.state
        return {
            "records": len(state.entries),
            "dying": len(state.pending),
            "subscriptions": len(state.subscribers),
        }

    async def oldest_ms(self) -> int | None:
        """Of no meaning: a record's age is no backlog."""
        return None

    async def finish(self, write_letters: Write) -> Effects:
        """End the step: write its letters, and say what else is to be written."""
        self._refusals.sum_up()
        step, self._step = self._step, Step()
        effects = Effects()
        await self._write_letters(step, write_letters)
        for name in self.retry.safe():
            self.shard.retain(name, step)
        effects.before += self._output.events(step.events, self.shard.state.sources)
        if step.changes:
            effects.before.append(self._output.state(step.changes, step.state_deletes, self.shard.state.sources))
        if step.deliveries:
            effects.before += self._output.messages(step.deliveries, self.shard.state.sources)
        changes = encode_changes(step)
        effects.journal = self._split(changes) if step.change_bytes > _JOURNAL_BYTES else changes
        if self.rule is not None:
            self._ahead += self.rule.copied(step.removals)
        for verdict in step.verdicts:
            if not verdict.asker.silent:
                answer = _answer_of(verdict, self.shard.state.now_ms)
                self._answers.append(self._output.answer(answer, shard_message.encoding(verdict)))
        effects.after += [
            *self._answers,
            *shard_message.written(self.shard.settings.name, step.shard_messages, self._authorizer),
        ]
        effects.must_arrive = shard_message.must_arrive(step.shard_messages)
        self._answers = []
        self.figures.sow_step(step)
        return effects

    async def _write_letters(self, step: Step, write_letters: Write) -> None:
        """Write the letters of a step; those that are refused are kept, and tried again (C27, D3)."""
        removals = step.letters
        letters = self._output.letters(removals)
        if not letters:
            return
        self.figures.letters_waiting = len(letters)
        refused = await write_letters(letters)
        self.figures.letters_waiting = 0
        if refused:
            why = next(iter(refused.values())).why
            name = self.shard.settings.name
            logger.warning("%s: %d dead letters refused, to be tried again: %s", name, len(refused), why)
            kept = [(removals[at], refusal.why) for at, refusal in refused.items()]
            self.retry.add(self.shard.keep_pending(kept, step))

    def _letter(self, name: bytes) -> Removal:
        state = self.shard.state
        return pending_letters.unpack(state.pending[name], pending_letters.place_of(name, state.sources))

    async def _pending_letter(self, name: bytes) -> Output | None:
        """A letter that waits, to be tried again."""
        if name not in self.shard.state.pending:
            return None
        letter = self._letter(name)
        if letter.in_log:
            record = await self._read(*letter.place)
            if record is not None:
                letter = letter._replace(key=record.key, value=record.value, headers=tuple(record.headers))
        return next(iter(self._output.letters([letter])), None)

    def look_up(self, key: bytes, now_ms: int) -> bytes | None:
        """A record's payload by its key."""
        entry = self.shard.state.entries.get(journal.RECORD + key)
        return None if entry is None or self.shard.state.is_due(entry, now_ms) else payload_of(entry)

    def look_through(self, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
        """Every record: key and payload."""
        for name, entry in list(self.shard.state.entries.items()):
            if not self.shard.state.is_due(entry, now_ms):
                yield name[1:], payload_of(entry)

    def _collect(self, encoding: Encoding) -> None:
        """Take answers and new queries out of the step, with the encoding of the command that they belong to."""
        step = self._step
        self._queries.extend((query, encoding, self._command_offset, Effort()) for query in step.queries)
        step.queries.clear()
        self._answers += [self._output.answer(answer, encoding) for answer in step.answers]
        self.figures.refused_commands += sum(1 for answer in step.answers if answer.error)
        step.answers.clear()

    def _split(self, changes: Items) -> Items:
        """Keep the last changes for the batch that has the source offsets; the others go ahead of it.

        Message ids are among the last: were they durable without the offsets, a crash would have the shard read the
        same records again, and take them for repeats.
        """
        changes.sort(key=lambda item: item[0][:1] == journal.IDS)
        size = 0
        for at in range(len(changes) - 1, -1, -1):
            key, value = changes[at]
            size += len(key) + len(value or b"") + 64
            if size > _JOURNAL_BYTES:
                self._ahead += changes[: at + 1]
                return changes[at + 1 :]
        return changes


def _answer_of(verdict: Verdict, at_ms: int) -> CommandAnswer:
    asker = verdict.asker
    counts = tuple(verdict.counts.items())
    return CommandAnswer(asker.command_id, "delete", asker.subscription, at_ms, verdict.refusal, counts)
