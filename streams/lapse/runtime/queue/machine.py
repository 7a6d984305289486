"""The machine of a queue shard: the core's state machine with records coming in and going out."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import orjson
from faust.types import TP

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.expression import ExpressionError
from lapse.core.letter import FORWARDER
from lapse.core.lifetime import NEVER
from lapse.core.queue.inquiry import JUDGED_AT_ONCE
from lapse.core.queue.journal import QueueJournal, Restored
from lapse.core.queue.places import size_of
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Delivery, Messages, Removal, Step
from lapse.core.reason import Reason
from lapse.core.shard.retirement import Phase
from lapse.protocol import topic as names
from lapse.protocol.answer import Answer
from lapse.protocol.command import Command, CommandError, Encoding
from lapse.runtime.journal.store import Items
from lapse.runtime.kafka.producer import Output, Packed
from lapse.runtime.letters.expiry_rule import ExpiryRule
from lapse.runtime.letters.letter_retry import LetterRetry, Write
from lapse.runtime.queue.command import QueueCommands, with_row_filter
from lapse.runtime.queue.forwarding import Forwarding
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.unwritten import Noted, Read
from lapse.runtime.shard import shard_message
from lapse.runtime.shard.command_authorizer import Admitted, CommandAuthorizer, admit_all, whose
from lapse.runtime.shard.deaths import STOPPED
from lapse.runtime.shard.effort import Effort, Portion
from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.shard.machine import Effects
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.shard.refusal_log import RefusalLog
from lapse.runtime.shard.shard_message import SHARD_MESSAGE_KEY
from lapse.runtime.shard.under_way import NOTHING_NOTED
from lapse.runtime.timers.clock import BY_THE_BROKER

logger = logging.getLogger(__name__)

_STEP_RECORDS: Final = 10_000

_CROWD_S: Final = 0.02
"""What a step should take while a crowd leaves: what comes in meanwhile waits for two steps at most (C60)."""

_LEAST_OF_CROWD: Final = 512
_FIRST_OF_CROWD: Final = 1_024
_MOST_OF_CROWD: Final = 4_096
"""So many messages of a crowd leave in one step. With fewer, most of the time would go into waiting for Kafka."""

_LETTERS_AT_ONCE: Final = 128
"""After so many letters others have their turn."""

_LEAST_PATIENCE_S: Final = 5.0
"""Shorter than that, a broker's hiccup would end workers, even if the lease is over by then."""

_MOST_PATIENCE_S: Final = 30.0

_BESIDE_A_CROWD: Final = frozenset({"heartbeat", "subscribe", "unsubscribe", "pause", "resume", "depth", "sow"})
"""Commands that nothing depends on of what is due at the same time."""

_CHANGE_BYTES = 64
"""What a change takes in the journal, its places left out."""


class QueueMachine:
    """One shard of a queue.

    Args:
        settings: the queue's.
        restored: what the changelog held.
        epoch: the epoch.
        payloads: the records behind the messages.
        output: writes events, letters and deliveries.
        publish_target: where a publish to the queue's name goes.
        merged_by_time: whether it has one order over all its partitions and topics (Q17).
        forwarding: where its messages go, if it forwards them (Q21).
        rule: called with each message that leaves (L15).
        clock_ms: the broker's clock, ms since the epoch.
    """

    takes_ahead = False
    """`maintain` writes segments as they stand before a step's messages."""

    unfinished = None
    """Each command is done at once."""

    def __init__(
        self,
        settings: QueueSettings,
        restored: Restored,
        epoch: int,
        payloads: PayloadWindow,
        output: QueueOutput,
        publish_target: str,
        merged_by_time: bool = False,
        rule: ExpiryRule | None = None,
        forwarding: Forwarding | None = None,
        clock_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._clock_ms = clock_ms
        self.merged_by_time = merged_by_time
        self._forwarding = forwarding
        self.rule = rule
        self.under_way = NOTHING_NOTED
        self.figures = ShardFigures()
        self.step_records = self.most_at_once = _STEP_RECORDS
        self.step_turns = self.delivery_turns = 1
        self.delivery_patience_s = min(max(0.9 * settings.lease_ms / 1000, _LEAST_PATIENCE_S), _MOST_PATIENCE_S)
        self._ahead: Items = []
        self.shard = QueueShard(settings, restored.state)
        self._journal = QueueJournal(restored.state, epoch, restored)
        self._epoch = epoch
        self._replaced = False
        self._payloads = payloads
        self._output = output
        self._commands = QueueCommands(self.shard, publish_target)
        self._step = Step()
        self.retry: LetterRetry[tuple[int, int]] = LetterRetry(
            f"{settings.name}, partition {settings.partition}", self._pending_letter, restored.state.pending
        )
        self._answers: list[Output] = []
        self._refusals = RefusalLog(f"{settings.name}, partition {settings.partition}")
        self._waiting: deque[tuple[Admitted, int, int]] = deque()
        self._authorizer: CommandAuthorizer | None = None
        self._admit: Callable[[Any], Admitted] = admit_all
        self._released = restored.released
        self._handed_out = restored.handed_out
        self._now_ms = 0
        self._weighed = (0, 0)
        self._expected_bytes = 0
        self._arrived = False
        self._portion = Portion(JUDGED_AT_ONCE)
        self._crowd = Portion(_MOST_OF_CROWD, _FIRST_OF_CROWD, _LEAST_OF_CROWD, _CROWD_S)
        self._left = self._crowd.size
        """How many more messages expire, return or materialise in this step."""
        self._was_full = False
        self._oldest: tuple[tuple[str, int, int], int | None] | None = None

    def guarded(self, authorizer: CommandAuthorizer) -> None:
        """Let users in by an authorizer only, and tell each what is theirs alone (X4)."""
        self._authorizer, self._admit = authorizer, authorizer.read
        self.figures.denied = authorizer.denied
        self._output.users = authorizer.users

    @property
    def waits_for_ends(self) -> bool:
        """Whether commands wait for the underlying logs: only where it is to be known that nothing is there (L11).

        What they still hold cannot change what is due: a message's deadline is its own (C1). A shard that is full takes
        nothing in before a command makes room.
        """
        return self.shard.agreement.checking and self.shard.room() > 0

    @property
    def stopped(self) -> bool:
        """Whether the queue is deleted and nothing is left to do (C4)."""
        return self.shard.agreement.stopped

    def room(self) -> int:
        """How many more messages may become active; one at a time while a transfer waits for one (Q13)."""
        return self.shard.room() or int(self.shard.advancing)

    def room_for(self, topic: str, partition: int) -> int:
        """How many more messages of an underlying partition may become active."""
        return self.room() if self.merged_by_time else self.shard.room_for(topic, partition)

    def arrive(self, topic: str, partition: int, records: Sequence[Any]) -> int:
        """Take in records of an underlying topic; how many there was room for (C51)."""
        self._payloads.keep(topic, partition, records)
        now_ms = self._now_ms
        if records and getattr(records[-1], "timestamp_type", None) == BY_THE_BROKER:
            # So late it was at the broker, whatever was heard of its clock so far: after a crash, or a pause (C76).
            now_ms = max(now_ms, records[-1].timestamp)
        elif records:
            now_ms = max(now_ms, self._clock_ms())
        taken = self.shard.arrive(topic, partition, records, self._step, now_ms)
        self._arrived = self._arrived or bool(taken)
        return taken

    def set_aside(self, topic: str, partition: int, record: Any, why: str) -> None:
        """Make a dead letter of a record that cannot even be looked at (X7)."""
        self._payloads.keep(topic, partition, [record])
        self.shard.set_aside(topic, partition, record, why, self._step)
        self._arrived = True

    def command(self, record: Any, refused: Refusal | None = None) -> None:
        """Carry out a command at its own instant; timers due by then come first (C1, C2)."""
        at_ms = record.timestamp
        self._now_ms = max(self._now_ms, at_ms)
        if not self._waiting:
            self._advance_to(at_ms)
        name = self.shard.settings.name
        if record.key == SHARD_MESSAGE_KEY:
            self._advance_wholly_to(at_ms)
            heard = shard_message.read(name, record, self._authorizer)
            if heard is not None:
                self.shard.agreement.receive(heard, at_ms, self._step)
            return
        try:
            admitted = self._admit(record)
        except CommandError as error:
            self._refuse_unread(error, record)
            return
        command = admitted.command
        if refused is not None:
            self._refuse(command, admitted.encoding, at_ms, refused)
            return
        self.shard.use(at_ms, self._step)
        if admitted.row_filter is not None:
            try:
                admitted = with_row_filter(admitted)
            except ExpressionError as error:
                self._refuse(command, admitted.encoding, at_ms, _no_filter(command, error))
                return
        if self._waiting or self._commands.needs_a_look(admitted):
            # Its filter needs payloads, or something is to be looked up first; what came behind it stays behind it.
            self._waiting.append((admitted, at_ms, record.offset))
            self._expected_bytes += _CHANGE_BYTES * len(command.bookmarks)
        else:
            self._carry_out(admitted, at_ms)

    def _refuse_unread(self, error: CommandError, record: Any) -> None:
        """Answer a record that is no command, or one of somebody who may not give it."""
        settings = self.shard.settings
        self._refusals.tell(whose(record), record.offset, str(error))
        if error.silent:
            self.figures.refused_commands += 1
            return
        refusal = Answer(
            id=error.id,
            command=error.command,
            status="error",
            error=str(error),
            code=error.code,
            partition=settings.partition,
            at_ms=record.timestamp,
        )
        self._answer(refusal, error.subscription, error.encoding)

    def _advance_to(self, at_ms: int) -> None:
        """Do what is due, as far as this step has room for it (C60)."""
        while self._left > 0 and self.shard.is_due(at_ms):
            self._left -= self.shard.advance(at_ms, self._step, self._left)
        if self._left <= 0:
            self.shard.end_lost(at_ms, self._step)

    def _advance_wholly_to(self, at_ms: int) -> None:
        while self.shard.is_due(at_ms):
            self.shard.advance(at_ms, self._step)

    def _catch_up(self, command: Command, at_ms: int) -> None:
        """Do what is due before a command and matters to it; the rest of a crowd goes on leaving behind it (C60)."""
        if self._left > 0 or not self.shard.is_due(at_ms) or command.command in _BESIDE_A_CROWD:
            return
        named = self._commands.named_by(command)
        if named:
            self.shard.end_leases_of(named, at_ms, self._step)
        else:
            self._advance_wholly_to(at_ms)

    @property
    def step_bytes(self) -> int:
        """About how many bytes the step takes in the journal so far, what waits to be carried out included."""
        changes = self._step.changes
        count, size = self._weighed
        for change in changes[count:]:
            size += _CHANGE_BYTES + size_of(change.places)
            size += 0 if change.deadlines_ms is None else 8 * len(change.deadlines_ms)
        self._weighed = (len(changes), size)
        return size + self._expected_bytes

    def _carry_out(self, admitted: Admitted, at_ms: int) -> None:
        command, encoding, row_filter = admitted
        self._catch_up(command, at_ms)
        retirement = self.shard.state.ending.retirement
        if retirement is not None and retirement.phase is Phase.RETIRED:
            self._refuse(command, encoding, at_ms, shard_message.deleted(self.shard.settings.name, retirement))
            return
        if command.command == "delete":
            asker = shard_message.asker(command, encoding)
            why_not = self.shard.agreement.delete(asker, command.force, at_ms, self._step)
            if why_not is not None:
                self._refuse(command, encoding, at_ms, why_not)
            return
        answer = self._commands.carry_out(command, at_ms, self._step, row_filter)
        if answer is not None:
            self._answer(answer, command.subscription, encoding)

    def _answer(self, answer: Answer, subscription: str, encoding: Encoding) -> None:
        self.figures.refused_commands += answer.status == "error"
        self._answers.append(self._output.answer(answer, subscription, encoding))

    async def _carry_out_waiting(self) -> None:
        """Carry out commands with filters: judge every message first, as far as its payload is needed."""
        while self._waiting:
            admitted, at_ms, offset = self._waiting.popleft()
            command = admitted.command
            noted = names.commands(self.shard.settings.name), self.shard.settings.partition, offset, offset
            self._advance_to(at_ms)
            for topic, partition in self._commands.looks_ahead(command):
                tp = TP(topic, partition)
                self.shard.note_end(topic, partition, (await self._payloads.ends([tp]))[tp])
            if command.command == "depth" and not admitted.row_filter:
                self._commands.oldest_ms = await self.oldest_ms(at_ms)
            try:
                text = self._commands.selection(admitted)
                if text:
                    self.shard.matching.begin_selection(text)
            except ExpressionError as error:
                self._refuse(command, admitted.encoding, at_ms, _no_filter(command, error))
                continue
            effort = Effort()
            for places in self._commands.to_judge(admitted, text) if text else ():
                await self._judge(places, effort)
                if effort.is_spent:
                    break
            if text and not command.filter:
                await self._judge_unplaced(self._commands.unplaced(command), text)
            elif text and not effort.is_spent:
                await self._judge_unplaced(self._commands.scheduled_to_judge(command), text, effort)
            if effort.is_spent:
                self._refuse(command, admitted.encoding, at_ms, effort.refusal(command.command))
            else:
                with self.under_way.noted(*noted):
                    self._carry_out(admitted, at_ms)
            if text:
                self.shard.matching.end_selection(text)

    def _refuse(self, command: Command, encoding: Encoding, at_ms: int, refusal: Refusal) -> None:
        if command.answer != "none":
            self._answer(
                shard_message.refused(command, refusal, self.shard.settings.partition, at_ms),
                command.subscription,
                encoding,
            )

    async def _judge(self, places: Sequence[int], effort: Effort) -> None:
        """Read payloads and evaluate the filters on them; others have their turn meanwhile (X7)."""
        by_source: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for place in places:
            bookmark = self.shard.bookmark_of(place)
            if bookmark is not None:
                by_source.setdefault(bookmark[:2], []).append((bookmark[2], place))
        for (topic, partition), some in by_source.items():
            some.sort()
            records = await self._payloads.get(topic, partition, [offset for offset, _ in some], used=False)
            at = 0
            while at < len(some) and not effort.is_spent:
                stop = min(len(some), at + self._portion.size)
                with effort.spent_on(stop - at, self._portion):
                    self._look_at(
                        [(some[n][1], topic, partition, records[n]) for n in range(at, stop)],
                        [offset for offset, _ in some[at:stop]],
                    )
                at = stop
                if at < len(some):
                    await asyncio.sleep(0)
            lost = [offset for (offset, _), record in zip(some, records, strict=True) if record is None]
            self.shard.truncated(topic, partition, lost, self._now_ms, self._step)

    def _look_at(self, messages: Sequence[tuple[int, str, int, Any | None]], offsets: Sequence[int]) -> None:
        """Evaluate the filters on messages of one source, noted as under way."""
        _, topic, partition, _ = messages[0]
        under_way = self.under_way
        if not under_way.is_suspect(topic, partition, offsets[0], offsets[-1]):
            with under_way.noted(topic, partition, offsets[0], offsets[-1], again=True):
                self.shard.judge(messages)
            return
        for offset, message in zip(offsets, messages, strict=True):
            aside = under_way.is_set_aside(topic, partition, offset)
            with under_way.noted(topic, partition, offset, offset, again=True):
                self.shard.judge([(*message[:3], None) if aside else message])
            if aside:
                self.shard.undecodable(topic, partition, offset, STOPPED, self._now_ms, self._step)

    async def _judge_unplaced(
        self, named: Iterable[tuple[str, int, list[int]]], text: str, effort: Effort | None = None
    ) -> None:
        """Read the records of what has no place, to know what of it matches (X4, C82, C83)."""
        effort = effort or Effort()
        for topic, partition, offsets in named:
            records = await self._payloads.get(topic, partition, offsets, used=False)
            if effort.is_spent:
                return
            with effort.spent_on(len(offsets), self._portion):
                self._judge_bookmarks(topic, partition, offsets, records, text)

    def _judge_bookmarks(
        self, topic: str, partition: int, offsets: list[int], records: Sequence[Any | None], text: str
    ) -> None:
        for offset, record in zip(offsets, records, strict=True):
            # A record that was set aside as one that stops workers is not looked at again.
            if record is not None and not self.under_way.is_set_aside(topic, partition, offset):
                with self.under_way.noted(topic, partition, offset, offset, again=True):
                    self.shard.judge_bookmarks(text, [(topic, partition, record)])

    def go_on(self) -> None:
        """Nothing."""

    def advance(self, now_ms: int) -> None:
        """Do what is due, a bounded amount of it; not before the commands that wait, which count as of before (C1)."""
        if self._waiting or self.next_due_ms() == NEVER:
            return
        self._now_ms = max(self._now_ms, now_ms)
        self._note_arrivals()
        if self._left > 0:
            self._left -= self.shard.advance(now_ms, self._step, self._left)

    def took(self, seconds: float) -> None:
        """Let a crowd leave in parts that take as long as they should (C60)."""
        if self._was_full:
            self._crowd.took(seconds)
        self._left = self._crowd.size

    def deliver(self, now_ms: int) -> bool:
        """Hand messages to subscriptions, a bounded number of them; after the commands that wait (C2)."""
        if self._waiting:
            return True
        self._now_ms = max(self._now_ms, now_ms)
        self._note_arrivals()
        self._let_dying_go(self._step)
        return self.shard.deliver(self._now_ms, self._step)

    def _let_dying_go(self, step: Step) -> None:
        """Let messages go whose letters are safe at last; a barrier may wait for that (C48)."""
        for source, offset in self.retry.safe():
            self.shard.letter_written(source, offset, step)

    def _note_arrivals(self) -> None:
        """What arrived counts as use now: a record's own timestamp may be its producer's, and any."""
        if self._arrived:
            self._arrived = False
            self.shard.use(self._now_ms, self._step)

    def next_due_ms(self) -> int:
        """The next instant at which something is due."""
        return NEVER if self._waits_to_leave else self.shard.next_due_ms()

    def is_due(self, at_ms: int) -> bool:
        """Whether `advance` has something to do at an instant."""
        return not self._waits_to_leave and self.shard.is_due(at_ms)

    @property
    def _waits_to_leave(self) -> bool:
        """Whether time does nothing: a letter that is safe at last wakes the shard, and the rule when it is done."""
        rule_waits = self.rule is not None and self.rule.waiting
        return self.shard.agreement.leaving and bool(self.shard.state.pending or rule_waits)

    def waits_for_arrivals(self, at_ms: int) -> bool:
        """Whether a scheduled message is due, and has to stand behind what arrived before it (C76)."""
        return self.shard.waits_for_arrivals(at_ms)

    def arrivals_are_in(self, to_ms: int) -> None:
        """Know that what arrived up to an instant was taken in."""
        self.shard.arrivals_are_in(to_ms)

    def begin_topics(self, replaced: Collection[str], since: Mapping[TP, int]) -> None:
        """Know which topics were created anew; their old records are not looked for (C42)."""
        self._payloads.gone = frozenset(replaced)
        for tp, epoch in since.items():
            self.shard.topic_begins(tp.topic, tp.partition, epoch)

    def replace(self, topics: Collection[str], now_ms: int) -> bool:
        """Let the messages of topics that were created anew leave, a bounded number of them (C42)."""
        self._now_ms = max(self._now_ms, now_ms)
        if self._waiting:
            return False
        self._replaced = all(self.shard.replace_topic(name, self._epoch, self._now_ms, self._step) for name in topics)
        return self._replaced

    def held_sources(self) -> list[TP]:
        """Partitions of which there are messages."""
        return [TP(source.topic, source.partition) for source in self.shard.state.held_sources()]

    def log_begins(self, tp: TP, begin_offset: int, now_ms: int) -> bool:
        """Let messages leave whose records Kafka has removed, a bounded number of them (C40)."""
        self._now_ms = max(self._now_ms, now_ms)
        return self.shard.log_begins(tp.topic, tp.partition, begin_offset, self._now_ms, self._step)

    def take_over(self, now_ms: int) -> Items:
        """Begin an epoch; what lowered limits take out, and barriers perhaps not sent, follow in its first step."""
        self._now_ms = max(self._now_ms, now_ms)
        items = self._journal.begin()
        self.shard.take_over(now_ms, self._step)
        if self._authorizer is not None:
            self._end_of_others(self._authorizer, now_ms)
        if self._forwarding is not None:
            self._forwarding.begin(self.shard, now_ms, self._step)
        elif FORWARDER in self.shard.state.subscriptions:
            self.shard.unsubscribe(FORWARDER, now_ms, self._step, "the queue forwards no longer")
        for change in self._released:
            self.shard.repeat(change, self._step)
        return items

    async def unwritten(self, noted: Noted, read: Read, now_ms: int) -> list[Output | Packed]:
        """Deliveries that the owner before journaled and did not write, with the same counts and leases (C55).

        To be called before `take_over`, and to be written before the epoch's beginning is durable. What nobody saw and
        whose lease is over does not count as delivered. What a user may not read any more is left out.

        Args:
            noted: what the journal says of deliveries.
            read: reads what was written since.
            now_ms: the instant, ms since the epoch.
        """
        handed_out, self._handed_out = self._handed_out, []
        held = [
            (delivery, places)
            for delivery, places in self.shard.handed_out.deliveries(
                change for sequence, change in handed_out if sequence >= noted.step
            )
            if not self._is_ended(delivery.subscription)
        ]
        if not held:
            return []
        written = await read()
        outputs: list[Output | Packed] = []
        count = 0
        for delivery, places in held:
            at = written.missing(*self._output.address(delivery.subscription), delivery.messages)
            if not at:
                continue
            if 0 < delivery.until_ms <= now_ms:
                self.shard.handed_out.take_back(places[one] for one in at)
                continue
            missing = replace(delivery, messages=delivery.messages.some(np.array(at, np.intp)))
            count += len(at)
            if missing.payload == "reference":
                outputs.append(self._output.reference(missing))
            else:
                outputs.append(self._output.deliveries(missing, await self._records(missing.messages)))
        if count:
            name, partition = self.shard.settings.name, self.shard.settings.partition
            logger.info("%s, partition %d: %d deliveries were journaled and not written", name, partition, count)
        return outputs

    def _is_ended(self, subscription: str) -> bool:
        """Whether nothing may be written to a subscription any more."""
        known = self.shard.state.subscriptions.get(subscription)
        if known is None or subscription == FORWARDER:
            return True
        return self._authorizer is not None and bool(self._authorizer.ended(subscription, known.row_filter))

    def _end_of_others(self, authorizer: CommandAuthorizer, now_ms: int) -> None:
        """End subscriptions whose users may not read any more, or not the same (X4)."""
        for one in list(self.shard.state.subscriptions.values()):
            why = "" if one.id == FORWARDER else authorizer.ended(one.id, one.row_filter)
            if why:
                self.shard.unsubscribe(one.id, now_ms, self._step, why)

    def maintain(self) -> Items:
        """Segments that are due to be written whole; `finish` adds the expiry rule's calls."""
        if self._replaced and self._payloads.gone:
            # Not before the step that closed the old topics has ended: what left in it is not to be looked for either.
            self._payloads.gone = ()
        self._ahead = self._journal.maintain()
        if self.rule is not None:
            self._ahead += self.rule.forgotten()
        return self._ahead

    async def finish(self, write_letters: Write) -> Effects:
        """End the step: read the payloads it needs, write its letters, and say what else is to be written."""
        self._refusals.sum_up()
        await self._carry_out_waiting()
        if self.shard.unjudged:
            await self._judge(self.shard.unjudged, Effort())
        step, self._step = self._step, Step()
        self._was_full = self._left <= 0
        self._weighed = (0, 0)
        self._expected_bytes = 0
        effects = Effects()
        for delivery in step.deliveries:
            messages = delivery.messages
            if delivery.subscription == FORWARDER:
                await self._forward(delivery, step, write_letters)
                continue
            if delivery.payload == "reference" and not delivery.barrier:
                self._payloads.passed_by(messages.topic, messages.partition, np.sort(messages.offsets).tolist())
                effects.after.append(self._output.reference(delivery))
                continue
            effects.must_arrive |= delivery.barrier
            records = await self._records(messages)
            effects.after.append(self._output.deliveries(delivery, records))
            lost = [offset for offset, one in zip(messages.offsets.tolist(), records, strict=True) if one is None]
            if lost:
                self.shard.truncated(messages.topic, messages.partition, sorted(lost), self._now_ms, step, True)
        await self._write_letters(step, write_letters)
        self._let_dying_go(step)
        effects.before += self._output.events(step.events, step.removals)
        effects.step = self.shard.state.sequence
        if step.changes or step.removals:
            effects.journal = self._journal.encode(step)
        self._judged(step)
        effects.after += [
            *self._answers,
            *shard_message.written(self.shard.settings.name, step.shard_messages, self._authorizer),
        ]
        effects.must_arrive |= shard_message.must_arrive(step.shard_messages)
        self._answers = []
        self.figures.queue_step(step)
        return effects

    @property
    def forwards_over(self) -> int:
        """Over how many partitions messages are forwarded; 0 = they are not, as while their topic is missing (C81)."""
        return 0 if self._forwarding is None else self._forwarding.partitions

    async def _forward(self, delivery: Delivery, step: Step, write: Write) -> None:
        """Hand messages on, and take them out of the queue once the target has them.

        A message that the target does not take, such as one that is too large, becomes a dead letter that says why.
        """
        if self._forwarding is None:
            return  # the target went in this step; the subscription has ended, and with it the delivery
        messages, name, partition = delivery.messages, self.shard.settings.name, self.shard.settings.partition
        outputs = self._forwarding.outputs(delivery, await self._records(messages))
        refused = await write([*outputs.values()])
        of_topic = next((one for one in refused.values() if one.of_topic), None)
        if of_topic is not None:
            logger.warning("%s, partition %d: forwards nothing until it can: %s", name, partition, of_topic.why)
            self._forwarding = None
            self.shard.unsubscribe(FORWARDER, self._now_ms, step, of_topic.why)
            return
        handed_on = [*outputs]
        for at, refusal in refused.items():
            why = f"cannot be forwarded: {refusal.why}"
            logger.warning("%s: %s:%d:%d %s", name, messages.topic, messages.partition, handed_on[at], why)
            self.shard.undecodable(
                messages.topic, messages.partition, handed_on[at], why, self._now_ms, step, handed_out=True
            )
        lost = sorted(set(messages.offsets.tolist()) - outputs.keys())
        if lost:
            self.shard.truncated(messages.topic, messages.partition, lost, self._now_ms, step, handed_out=True)
        self._forwarding.settle(self.shard, delivery, self._now_ms, step)

    async def _records(self, messages: Messages) -> list[Any | None]:
        """The records of messages, in their order; they are read in that of the log."""
        offsets = messages.offsets
        if bool((np.diff(offsets) > 0).all()):
            return await self._payloads.get(messages.topic, messages.partition, offsets.tolist())
        order = np.argsort(offsets)
        found = await self._payloads.get(messages.topic, messages.partition, offsets[order].tolist())
        return [found[at] for at in np.argsort(order).tolist()]

    async def _write_letters(self, step: Step, write_letters: Write) -> None:
        """Write the letters of a step; messages whose letters are refused stay, and wait for it (C27, D3)."""
        letters: list[Packed] = []
        of_letters: list[tuple[Removal, int]] = []
        for removal in step.removals:
            if removal.letter or self.rule is not None:
                found = await self._left_behind(removal)
                if removal.letter:
                    for first in range(0, len(found), _LETTERS_AT_ONCE):
                        if first:
                            await asyncio.sleep(0)
                        letters.append(self._output.letters(removal, found, first, first + _LETTERS_AT_ONCE))
                    of_letters += [(removal, at) for at in range(len(removal.messages))]
                if self.rule is not None:
                    self._ahead += self.rule.removed(removal, found)
        if not letters:
            return
        self.figures.letters_waiting = len(of_letters)
        refused = await write_letters(letters)
        self.figures.letters_waiting = 0
        kept: dict[int, tuple[Removal, dict[int, str]]] = {}
        for at, refusal in refused.items():
            removal, index = of_letters[at]
            kept.setdefault(id(removal), (removal, {}))[1][index] = refusal.why
        for removal, why in kept.values():
            self.retry.add(self.shard.keep_pending(removal, why, step))
        if refused:
            name, why_first = self.shard.settings.name, next(iter(refused.values())).why
            logger.warning("%s: %d dead letters refused, to be tried again: %s", name, len(refused), why_first)

    async def _pending_letter(self, name: tuple[int, int]) -> Packed | None:
        """The letter of a dying message, to be tried again."""
        dying = self.shard.state.pending.get(name)
        if dying is None or not self.shard.settings.dead_letter_topic:
            return None
        source = self.shard.state.sources[name[0]]
        # The record of another topic's message may stand there now (C42).
        there = self.shard.state.sources.find(source.topic, source.partition) == name[0]
        there &= Reason.LOG_TRUNCATED not in dying.reasons
        record = await self._payloads.one(source.topic, source.partition, name[1]) if there else None
        return self._output.letters(dying.removal(source.topic, source.partition, name[1]), [record])

    async def _left_behind(self, removal: Removal) -> list[Any | None]:
        """The records of messages that left; none where that is why they did (C40)."""
        messages = removal.messages
        if Reason.LOG_TRUNCATED in removal.reasons:
            return [None] * len(messages)
        return await self._payloads.get(messages.topic, messages.partition, messages.offsets.tolist())

    def _judged(self, step: Step) -> None:
        """Answer those who asked for the queue's deletion."""
        for verdict in step.verdicts:
            if not verdict.asker.silent:
                answer = shard_message.answer(verdict, self.shard.settings.partition, self._now_ms)
                self._answer(answer, verdict.asker.subscription, shard_message.encoding(verdict))

    def gauges(self) -> dict[str, int]:
        """Messages by state, subscriptions (Q15), and where the segments are (Q16)."""
        segments = self.shard.state.segments
        return {
            **self.shard.depth(),
            "subscriptions": len(self.shard.state.subscriptions),
            "segments_memory": segments.in_memory,
            "segments_disk": len(segments) - segments.in_memory,
            "segment_loads": segments.loads,
        }

    async def oldest_ms(self, now_ms: int = -1) -> int | None:
        """Arrival of the first message that has not expired, ms since the epoch; None if there is none (Q15)."""
        place = self.shard.oldest(now_ms)
        bookmark = None if place is None else self.shard.bookmark_of(place)
        if bookmark is None:
            return None
        if self._oldest is None or self._oldest[0] != bookmark:
            self._oldest = bookmark, await self._payloads.timestamp_ms(*bookmark)
        return self._oldest[1]

    def look_up(self, key: bytes, now_ms: int) -> bytes | None:
        """A message's state by its bookmark, as JSON."""
        return next((value for found, value in self.look_through(now_ms) if found == key), None)

    def look_through(self, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
        """Every message: bookmark, and its state as JSON."""
        for one in self.shard.peek(0, 1 << 62):
            if one.deadline_ms is None or one.deadline_ms > now_ms or not self.shard.settings.expiration.enabled:
                yield f"{one.topic}:{one.partition}:{one.offset}".encode(), orjson.dumps({"state": one.stands})


def _no_filter(command: Command, error: ExpressionError) -> Refusal:
    return Refusal(ErrorCode.INVALID_EXPRESSION, f"{command.command}: filter: {error}")
