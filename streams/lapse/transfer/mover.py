"""The process behind `lapse transfer`: hold here, put there, confirm here, accept there, round by round (Q17).

It keeps no state. The shards here know what is held and what has left, and a topic has the order. So a transfer that
was interrupted at any point can be finished by its id.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from lapse.protocol.answer import Answer, QueuedMessage
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.command import Command
from lapse.protocol.hand_over import HandOver, join_neighbours
from lapse.transfer.acceptance import UNREAD, accept
from lapse.transfer.copier import Copier, TransferError
from lapse.transfer.order import Order, Orders, ranges_to_end
from lapse.transfer.outcome import Choice as Choice
from lapse.transfer.outcome import Outcome as Outcome
from lapse.transfer.side import Side
from lapse_client.error import UnknownEntity
from lapse_client.kafka.connection import Connection
from lapse_client.queue.named_partitions import NamedPartitions
from lapse_client.subscriber.settlement import STALE

logger = logging.getLogger(__name__)

_UNREAD_S: Final = 2.0
"""How long a shard may take to read a message, s. After that there is none: transaction markers have offsets, too."""

_PAUSE_S: Final = 0.02


class _Unknown(TransferError):
    """This side knows no transfer with the id."""


class Mover:
    """Carries out one transfer; a context manager.

    Args:
        here: the cluster that hands over.
        queue: its queue.
        there: the cluster that takes over.
        to_queue: the queue there.
        to_topic: its underlying topic; None for its publish target.
        transfer: the transfer's id.
        progress: called after each round with the number of messages that were handed over.
        timeout_s: how long to wait for answers, s.
        only_cancels: whether the transfer is only cancelled, so that the queue there need not exist.
        is_target_gone: whether the transfer is only cancelled, and the deployment there is gone, so that it is not
            asked.

    Attributes:
        begun: whether there is something that `resume` could finish.
        lacks_target: whether the queue there does not exist.
        is_target_gone: see above.
        progress: see above.
        outcome: the result so far.
    """

    def __init__(
        self,
        here: Connection,
        queue: str,
        there: Connection,
        to_queue: str,
        to_topic: str | None,
        transfer: str,
        progress: Callable[[int], None] = lambda _: None,
        timeout_s: float = 30.0,
        only_cancels: bool = False,
        is_target_gone: bool = False,
    ) -> None:
        self._source_side = Side(here, queue, timeout_s)
        self._target_side = Side(there, to_queue, timeout_s)
        self._topic = to_topic
        self._transfer = transfer
        self.progress = progress
        self._opened = ExitStack()
        self._copier: Copier | None = None
        self._stuck: set[str] = set()
        self._too_large: set[Bookmark] = set()
        self._refused = False
        self._foreign = 0
        self._orders = Orders(here, queue)
        self._only_cancels = only_cancels
        self.is_target_gone = self.lacks_target = is_target_gone
        self._ordered_target = ""
        self.begun = False
        self.outcome = Outcome()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            here, there = opened.enter_context(self._source_side), self._target_side
            if self.is_target_gone:
                self._opened = opened.pop_all()
                return self
            try:
                opened.enter_context(there)
            except UnknownEntity:
                self.lacks_target = True
                if not self._only_cancels:
                    raise
                self._opened = opened.pop_all()
                return self
            if (here.cluster, here.queue) == (there.cluster, there.queue):
                raise TransferError(f"{here.queue} cannot be handed over to itself; name another queue or deployment")
            self._topic = self._topic or there.publish_target
            if not self._topic:
                raise TransferError(f"queue {there.queue} has no default_publish_target; name a topic: --to-topic")
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._copier is not None:
            self._copier.close()
        self._opened.close()

    @property
    def target(self) -> str:
        """The target, for people and for the shards. A transfer's id belongs to one target.

        The id of a cluster that is gone is unknown, so what the order says counts. It is empty without an order.
        """
        if self.is_target_gone:
            return self._ordered_target
        return self._target_side.name

    def run(self, choice: Choice) -> Outcome:
        """Hand messages over until none of the chosen ones is left, or can be taken.

        Raises:
            TransferError: it cannot go on.
            LapseError: a shard refused, or did not answer.
            KafkaException: one of the clusters does not answer.
        """
        self._load()
        ranges = self._ranges_by_shard(choice)
        order = Order(ranges, choice.filter, listed=bool(choice.bookmarks), target=self.target)
        self._orders.write(self._transfer, order)
        self.begun = True
        self._carry_out(order)
        return self._finish(resumed=False)

    def resume(self) -> Outcome:
        """Finish everything that an earlier run was asked for. This may raise the same errors as `run`.

        Raises:
            TransferError: no transfer with this id was begun, it has another target, or it was cancelled.
        """
        order = self._begun()
        if order is not None and order.cancelled:
            raise TransferError(
                f"transfer {self._transfer} was cancelled; what it held is back in {self._source_side.queue}"
            )
        self.begun = True
        self._load()
        while self._hand_over_round(self._source_side.ask(self._hold((), "", top_n=0))):
            pass
        if order is not None:
            self._carry_out(order)
        return self._finish(resumed=True)

    def cancel(self) -> int:
        """Return held messages to the queue here, and discard what was put there; return how many came back.

        If this side no longer knows the transfer, nothing can confirm its records there any more, so they are
        discarded. The queue there reads them again after it was deleted and created anew, also those that it accepted.
        If that queue or its topic is gone, what has left is given up: a queue is not deleted before it has it (C77).
        If the whole deployment is gone, nobody knows whether it had it.

        Raises:
            TransferError: a message has left already, no transfer with this id was begun, or it has another target.
        """
        try:
            order = self._begun()
        except _Unknown:
            if not self.lacks_target:
                self._discard()
            if not self.outcome.discarded:
                raise
            return 0
        shards = self._source_side.ask(self._hold((), "", top_n=0))
        left = [HandOver.parse(text) for answer in shards.values() for text in answer.handed_over]
        if left:
            if not self.lacks_target and not self._target_side.has_lost([one.records for one in left]):
                raise TransferError(
                    f"transfer {self._transfer} cannot be cancelled: {left[0].messages} has left already; "
                    f"bring it to its end: --resume {self._transfer}"
                )
            self.outcome.given_up = [one.messages for one in left]
            self._source_side.ask(Command(command="transfer_finish", transfer=self._transfer))
        answers = self._source_side.ask(Command(command="transfer_cancel", transfer=self._transfer))
        if not self.lacks_target:
            self._discard()
        self._orders.write(self._transfer, replace(order or Order({}), cancelled=True))
        return sum(answer.counts.get("returned", 0) for answer in answers.values())

    # Parts

    def _begun(self) -> Order | None:
        """Return the order; None if only the shards know the transfer.

        Raises:
            TransferError: nobody knows it, or it has another target.
        """
        order = self._orders.read(self._transfer)
        if self.is_target_gone:
            self._ordered_target = "" if order is None else order.target
        elif order is not None and order.target not in ("", self.target):
            raise TransferError(
                f"transfer {self._transfer} goes to {order.target}, not to {self.target}; name that one"
            )
        if order is None:
            answers = self._source_side.ask(self._hold((), "", top_n=0)).values()
            if not any(answer.messages or answer.handed_over for answer in answers):
                raise _Unknown(f"queue {self._source_side.queue} has begun no transfer {self._transfer}; check the id")
        return order

    def _carry_out(self, order: Order) -> None:
        """Hold and hand over the messages of an order, round by round, until none is left that can go."""
        open_shards = {shard: texts for shard, texts in order.named.items() if texts}
        unread_since: dict[int, float] = {}
        while open_shards:
            commands = {shard: self._hold(texts, order.filter) for shard, texts in open_shards.items()}
            answers = self._source_side.ask_each(commands)
            moved = self._hand_over_round(answers)
            for shard, answer in answers.items():
                if shard in moved:
                    unread_since.pop(shard, None)
                elif self._unread(answer) and not order.filter:
                    since = unread_since.setdefault(shard, time.monotonic())
                    if time.monotonic() - since > _UNREAD_S:
                        del open_shards[shard]
                        self._note_left(answer, order)
                else:
                    del open_shards[shard]
                    self._note_left(answer, order)
            if not moved:
                time.sleep(_PAUSE_S)

    def _hold(self, bookmarks: Sequence[str], text: str, top_n: int | None = None) -> Command:
        return Command(
            command="transfer",
            transfer=self._transfer,
            to=self.target,
            bookmarks=tuple(bookmarks),
            filter=text or None,
            top_n=top_n,
        )

    def _load(self, work: str = "") -> None:
        """Connect to the other cluster. An earlier process of this transfer can put nothing from now on."""
        assert self._topic is not None
        there = self._target_side.connection.partitions(self._topic)
        if self._topic not in there:
            raise TransferError(f"the deployment that takes over has no topic {self._topic}; run `lapse apply` there")
        self._check_is_read(self._topic)
        self._copier = Copier(
            self._source_side.connection,
            self._target_side.connection,
            self._target_side.queue,
            self._topic,
            there[self._topic],
            self._transfer,
            self._source_side.cluster,
            self._source_side.name,
            work,
        )

    def _check_is_read(self, topic: str) -> None:
        """Check that the queue there reads the topic. Otherwise what is put there would be in no queue.

        Raises:
            TransferError: it does not.
        """
        command = Command(command="transfer", transfer=self._transfer, top_n=0)
        answers = self._target_side.ask(command).values()
        known = sorted({Bookmark.parse(source).topic for answer in answers for source in answer.sources})
        if topic not in known:
            raise TransferError(
                f"queue {self.target} does not read the topic {topic}; name one of its underlying topics with "
                f"--to-topic: {', '.join(known) or 'it reads none yet'}"
            )

    def _ranges_by_shard(self, choice: Choice) -> dict[int, tuple[str, ...]]:
        """Return the bookmark ranges to hold, by shard."""
        if choice.bookmarks:
            try:
                NamedPartitions(self._source_side.connection).check(choice.bookmarks)
            except ValueError as error:
                raise TransferError(str(error)) from error
            named: dict[int, list[str]] = {}
            for one in choice.bookmarks:
                named.setdefault(self._source_side.shards_of(one.partition)[0], []).append(str(one))
            return {shard: tuple(texts) for shard, texts in named.items()}
        answers = self._source_side.ask(self._hold((), "", top_n=0))
        consumer = self._source_side.connection.consumer()
        try:
            return {
                shard: tuple(
                    text for source in answer.sources for text in ranges_to_end(consumer, Bookmark.parse(source))
                )
                for shard, answer in answers.items()
            }
        finally:
            consumer.close()

    def _hand_over_round(self, answers: dict[int, Answer]) -> set[int]:
        """Hand over what is held; return the shards that had something."""
        assert self._copier is not None
        held = {
            shard: [one for one in answer.messages if one.bookmark not in self._stuck]
            for shard, answer in answers.items()
        }
        busy = {shard for shard, answer in answers.items() if held[shard] or answer.handed_over}
        if not busy:
            return busy
        holders = {one.bookmark: shard for shard, some in held.items() for one in some}
        by_shard: dict[int, list[tuple[Bookmark, Bookmark]]] = {shard: [] for shard in busy}
        for here, there in self._put([one for some in held.values() for one in some]):
            by_shard[holders[str(here)]].append((here, there))
        confirmed = self._source_side.ask_each({shard: self._confirmation(some) for shard, some in by_shard.items()})
        gone = [HandOver.parse(text) for answer in confirmed.values() for text in answer.handed_over]
        for answer in confirmed.values():
            self._note_refused(answer)
        self._accept([one.records for one in gone])
        self._source_side.ask_each(
            {
                shard: Command(command="transfer_finish", transfer=self._transfer)
                for shard, answer in confirmed.items()
                if answer.handed_over
            }
        )
        count = sum(len(one.messages) for one in gone)
        self.outcome.transferred += count
        self.progress(count)
        return busy

    def _put(self, messages: list[QueuedMessage]) -> list[tuple[Bookmark, Bookmark]]:
        if not messages:
            return []
        assert self._copier is not None
        put = self._copier.put(messages)
        self._foreign += len(put.foreign)
        for lost in put.lost:
            self._stuck.add(str(lost))
            self.outcome.left["lost"] += 1
        for large in put.too_large:
            self._stuck.add(str(large))
            self.outcome.left["too_large"] += 1
            if large not in self._too_large:
                logger.warning(
                    "%s stays: it is too large for %s there; raise its max.message.bytes", large, self._topic
                )
        self._too_large.update(put.too_large)
        return put.pairs

    def _confirmation(self, pairs: Iterable[tuple[Bookmark, Bookmark]]) -> Command:
        texts = tuple(str(one) for one in join_neighbours(pairs))
        if not texts:  # only messages that left before
            return self._hold((), "", top_n=0)
        return Command(command="transfer_confirm", transfer=self._transfer, bookmarks=texts)

    def _note_refused(self, answer: Answer) -> None:
        for one in answer.settlements if answer.command == "transfer_confirm" else ():
            if one.result == "settled":
                continue
            messages = BookmarkRange.parse(one.bookmarks)
            self._stuck.update(map(str, messages))
            if one.result == "time_limit":
                self.outcome.expired += len(messages)
            else:
                self._refused = True
                self.outcome.left[one.result] += len(messages)

    def _accept(self, records: list[BookmarkRange]) -> None:
        accept(self._target_side, self._transfer, records, self._topic or "")

    def _unread(self, answer: Answer) -> bool:
        return any(one.result in UNREAD for one in answer.settlements)

    def _note_left(self, answer: Answer, order: Order) -> None:
        """Count messages that stayed. Of an order that lists messages, count also those that do not exist so."""
        for one in answer.settlements:
            if one.result in ("leased", "transferring") or (order.listed and one.result in (*UNREAD, STALE)):
                named = BookmarkRange.parse(one.bookmarks)
                self.outcome.left[one.result] += len(named)
                self.outcome.stale += [named] if one.result == STALE else []

    def _finish(self, resumed: bool) -> Outcome:
        if self.outcome.left["lost"] or self.outcome.left["too_large"]:
            # The messages go back to the queue, which finds out itself what Kafka no longer has (C40).
            self._source_side.ask(Command(command="transfer_cancel", transfer=self._transfer))
        if resumed or self._refused:
            self._discard()
        return self.outcome

    def _discard(self) -> None:
        answers = self._target_side.ask(Command(command="transfer_discard", transfer=self._transfer))
        self.outcome.discarded += sum(answer.counts.get("removed", 0) for answer in answers.values())
