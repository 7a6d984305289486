"""The process behind `lapse transfer --follow`: messages go where consumers wait (Q26, C73, C74).

Each start is a generation with a transfer of its own. First it cleans up earlier generations: messages that have left
are accepted there, held ones come back, and records that were never confirmed are discarded. Nothing can be confirmed
under the id of a transfer whose messages came back, so a process that stood still does no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from typing import Final

from confluent_kafka import KafkaException

from lapse.core.error_code import ErrorCode
from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse.transfer.copier import TakenOver, TransferError
from lapse.transfer.mover import Mover
from lapse.transfer.order import Order
from lapse.transfer.skew import Skew
from lapse_client.error import CommandFailed, LapseError
from lapse_client.kafka.connection import Connection

logger: Final = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
"""How often to ask both sides while nothing can be handed over, s."""

_AT_ONCE: Final = 500
"""How many messages go in one round: few enough to arrive before their consumers have asked elsewhere."""

_FOREIGN_S: Final = 10.0
"""How long to wait before looking again for messages to send back, s, after foreign ones were found."""

_MOST_FILTERS: Final = 16
"""For how many filters a round looks for messages. The others have their turn in the next round."""

_FORMATS_S: Final = 10.0
"""How often to check that both sides read payloads alike, s."""

_REFUSED_S: Final = 60.0
"""For how long a filter is not used that a shard here has refused, s."""

_OF_FILTERS: Final = (ErrorCode.TOO_COSTLY, ErrorCode.INVALID_EXPRESSION)


class Follower(Mover):
    """Hands messages over when consumers there have room for them; a context manager.

    Args:
        here: the cluster that hands over.
        queue: its queue.
        there: the cluster that takes over.
        to_queue: the queue there.
        to_topic: its underlying topic; None for its publish target.
        max_clock_skew_ms: a greater difference between the clocks of the clusters is logged, ms.
        progress: called after each round with the number of messages that were handed over.

    Attributes:
        generation: the generation that `follow` began; 0 if none.
    """

    def __init__(
        self,
        here: Connection,
        queue: str,
        there: Connection,
        to_queue: str,
        to_topic: str | None,
        max_clock_skew_ms: int = 1_000,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(here, queue, there, to_queue, to_topic, "", progress)
        self.generation = 0
        self._skew = Skew(max_clock_skew_ms)
        self._nothing_back_until = 0.0
        self._refused_until: dict[str, float] = {}
        self._served_last = ""
        self._formats_differ = False
        self._formats_known_until = 0.0

    def follow(self, stopping: threading.Event, own_generation: int = 0) -> None:
        """Hand over by demand until `stopping` is set.

        Args:
            stopping: ends it.
            own_generation: the generation that this process began last; 0 if none.

        Raises:
            TakenOver: another process follows for the same two queues, and began later.
            NotRead: the queue there has not read for long what was put there.
            TransferError: one of the queues cannot be used.
            LapseError: a shard refused, or did not answer.
            KafkaException: one of the clusters does not answer.
        """
        work = "follow-" + hashlib.blake2b(self.target.encode(), digest_size=6).hexdigest()
        known = self._orders.read(work)
        first, last = (0, 0) if known is None else known.unfinished
        if own_generation and last > own_generation:
            raise TakenOver(f"{work}-{own_generation}")
        # Noted before it is written: a broker that does not answer may have written it.
        self.generation = last = last + 1
        self._orders.write(work, Order({}, unfinished=(first, last)))
        self._transfer = f"{work}-{last}"
        self._load(work)
        for generation in range(max(1, first), last):
            self._clean_up(f"{work}-{generation}")
        self._transfer = f"{work}-{last}"
        # The next start cleans up the last generation once more: its process may notice only now that it was replaced.
        self._orders.write(work, Order({}, unfinished=(last - 1, last)))
        self.begun = True
        try:
            while not stopping.is_set():
                if not self._step():
                    stopping.wait(_LOOK_S)
        except (LapseError, KafkaException, TransferError):
            self._give_back()
            raise

    def _step(self) -> bool:
        """Hand over what is wanted there and spare here; return whether to go on at once."""
        assert self._copier is not None
        answers, unseen = {}, False
        demands = self._demands()
        for back in (False, True):
            self._copier.only_from = self.target if back else ""
            if back and time.monotonic() <= self._nothing_back_until:
                break
            for text, wanted in demands.items():
                answers = self._hold_for(text, wanted, back)
                unseen |= any(answer.counts.get("unseen") for answer in answers.values())
                if _has_messages(answers):
                    self._served_last = text
                    break
            if _has_messages(answers):
                break
        if not _has_messages(answers):
            return unseen
        before = self.outcome.transferred
        self._hand_over_round(answers)
        if self._foreign:
            self._foreign, self._nothing_back_until = 0, time.monotonic() + _FOREIGN_S
            self._give_back()
        if self.outcome.left["lost"] or self.outcome.left["too_large"]:
            # The messages go back to the queue, which finds out itself what Kafka no longer has (C40).
            self._give_back()
            self.outcome.left["lost"] = self.outcome.left["too_large"] = 0
        if self._refused or self._stuck:
            self._discard()
            self._refused = False
            self._stuck.clear()
        return self.outcome.transferred > before

    def _demands(self) -> dict[str, int]:
        """Return how many messages the consumers there would take, by filter, beginning behind the filter served last.

        Messages that wait at one shard count against the room at another, since a consumer's backlog spans all of them.
        """
        command = Command(command="transfer", transfer=self._transfer, spare=True, top_n=0)
        there = self._target_side.ask(command).values()
        wanted = Counter({"": sum(int(answer.counts["wanted"]) for answer in there)})
        for answer in there:
            wanted.update({one.filter: one.wanted for one in answer.demands})
        texts = sorted(text for text, count in wanted.items() if count > 0 and not self._is_refused(text))
        if any(texts) and not self._same_format({answer.value_format for answer in there}):
            texts = [text for text in texts if not text]
        at = bisect_right(texts, self._served_last)
        return {text: min(_AT_ONCE, wanted[text]) for text in (texts[at:] + texts[:at])[:_MOST_FILTERS]}

    def _is_refused(self, text: str) -> bool:
        return time.monotonic() < self._refused_until.get(text, 0.0)

    def _same_format(self, there: set[str]) -> bool:
        """Return whether both sides read payloads alike, so that a filter means the same; log a new difference."""
        if time.monotonic() < self._formats_known_until:
            return not self._formats_differ
        self._formats_known_until = time.monotonic() + _FORMATS_S
        command = Command(command="transfer", transfer=self._transfer, spare=True, top_n=0)
        here = {answer.value_format for answer in self._source_side.ask(command).values()}
        if here != there and not self._formats_differ:
            logger.warning(
                "%s reads payloads as %s, and queue %s here as %s. So subscriptions with a filter get nothing "
                "handed over; set the same value_format on both sides",
                self.target,
                ", ".join(sorted(there)),
                self._source_side.queue,
                ", ".join(sorted(here)),
            )
        self._formats_differ = here != there
        return not self._formats_differ

    def _hold_for(self, text: str, wanted: int, back: bool) -> dict[int, Answer]:
        """Hold messages that match a filter; return answers by shard. Do not use a refused filter for a while."""
        try:
            return self._hold_spare(text, wanted, back)
        except CommandFailed as error:
            if not text or error.code not in _OF_FILTERS:
                raise
            logger.warning(
                "A subscription of %s gets nothing handed over for %.0f s: %s", self.target, _REFUSED_S, error
            )
            self._refused_until[text] = time.monotonic() + _REFUSED_S
            self._give_back()
            return {}

    def _hold_spare(self, text: str, wanted: int, handed_over: bool) -> dict[int, Answer]:
        """Hold at most `wanted` messages that nobody here takes, shard by shard; return the answers.

        With `handed_over` only messages that came from another deployment, without it none of them.
        """
        least_life_ms, answers = ceil(self._skew_ms()), {}
        for shard in self._source_side.shards:
            held = replace(
                self._hold((), text, top_n=wanted), spare=True, least_life_ms=least_life_ms, handed_over=handed_over
            )
            answer = answers[shard] = self._source_side.ask_each({shard: held})[shard]
            wanted -= len(answer.messages)
            if wanted <= 0:
                break
        return answers

    def _skew_ms(self) -> float:
        """Return the difference between the clocks of the two clusters, ms."""
        here, there = self._source_side.connection.clock, self._target_side.connection.clock
        return self._skew.of(here, there, self._source_side.cluster, self.target)

    def _clean_up(self, transfer: str) -> None:
        """Finish what an earlier generation has left."""
        self._transfer = transfer
        answers = self._source_side.ask(self._hold((), "", top_n=0))
        self._hand_over_round({shard: replace(answer, messages=()) for shard, answer in answers.items()})
        self._source_side.ask(Command(command="transfer_cancel", transfer=transfer))
        self._discard()

    def _give_back(self) -> None:
        """Return held messages to the queue. The next generation accepts those that have left already."""
        with contextlib.suppress(LapseError, KafkaException):
            self._source_side.ask(Command(command="transfer_cancel", transfer=self._transfer))


def _has_messages(answers: Mapping[int, Answer]) -> bool:
    return any(answer.messages for answer in answers.values())
