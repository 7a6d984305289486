"""The settler of a queue subscription: it sends settlements in time, and reports their results (Q8)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, get_args

from lapse.protocol.answer import Answer, Settlement
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.command import Command
from lapse.protocol.command_field import MOST_NAME_CHARACTERS
from lapse_client.argument import check_choice
from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import Lot
from lapse_client.delivery.referenced import Referenced
from lapse_client.error import AlreadySettled, Closed, refusal
from lapse_client.kafka.clock import elapsed_ms
from lapse_client.publisher.publication import Headers
from lapse_client.publisher.record_publisher import Payload
from lapse_client.request.replier import Replier
from lapse_client.session.session import Session
from lapse_client.session.shard import Shard
from lapse_client.subscriber.acknowledgments import Acknowledgments
from lapse_client.subscriber.credit import Credits
from lapse_client.subscriber.refusals import Refusals
from lapse_client.subscriber.settlement import NOT_SENT, SettlementBatch, SettlementResult, chunks, results
from lapse_client.subscriber.settler import Settling
from lapse_client.subscriber.terms import check
from lapse_client.tracing import Tracing
from lapse_client.transaction.atomic_work import AtomicWork
from lapse_client.transaction.transaction import Transaction

log = logging.getLogger("lapse_client")

_SHOWN: Final = 5
"""The most ranges that a log line names."""


class SubscriptionSettler:
    """Sends the settlements of a subscription's deliveries. Every method may be called from any thread.

    Args:
        session: session of the subscription.
        credits: counts the settled deliveries.
        ack_batch_size: most acknowledgments in one command.
        on_refused: called with each settlement that was refused or not sent, and that no call waits for.
        replier: sends replies.

    Attributes:
        work: commits transactions.
        refusals: reports them to the application.
        tracing: makes the spans of processing and settling; None = no spans.
    """

    def __init__(
        self,
        session: Session[Lot | Referenced | None],
        credits: Credits,  # noqa: A002  # the field's word
        ack_batch_size: int,
        on_refused: Callable[[SettlementResult], None] | None,
        replier: Replier,
        tracing: Tracing | None = None,
    ) -> None:
        self._replier = replier
        self.tracing = tracing
        self.work: AtomicWork | None = None
        self._session = session
        self._credits = credits
        self._most = ack_batch_size
        self.refusals = Refusals(on_refused)
        self._acknowledgments = Acknowledgments(
            session.shards, self._batch_size, self._send_acks, self.refusals.held_back
        )

    def own(self, deliveries: Iterable[Delivery]) -> Sequence[Delivery]:
        """Return deliveries as a sequence, because they are looked at more than once.

        Raises:
            TypeError: they are no deliveries, or a single one.
            ValueError: one is another subscriber's. Its place in the backlog there would never become free.
        """
        given: object = deliveries
        if not isinstance(given, Iterable):
            raise TypeError(f"deliveries = {given!r}: expected several deliveries, such as a list")
        several = deliveries if isinstance(deliveries, list | tuple) else tuple(deliveries)
        foreign: object = None
        try:
            foreign = next((one for one in several if one.lot.settler is not self), None)
        except AttributeError as error:  # no check of each delivery's type: this is the hot path
            raise TypeError(
                f"{several[:1]!r}: expected deliveries; a `Queue` settles messages by their bookmarks"
            ) from error
        if foreign is not None:
            raise ValueError(
                f"{foreign!r} was received by another subscriber: settle it there, or with its own methods, such as "
                "`delivery.acknowledge()`"
            )
        return several

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Collect acknowledgments. Those of a shard are sent when they are enough, or old enough.

        After the end of the subscription, they are reported as not sent, and the deliveries stay unsettled.
        """
        if self.tracing is not None:
            with self.tracing.settling("acknowledge", deliveries):
                self._acknowledge(deliveries)
        else:
            self._acknowledge(deliveries)

    def _acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        if not self._acknowledgments.add(deliveries):
            self._report_closed("acknowledge", deliveries)

    def reply(self, request: Delivery, value: Any, key: Payload, headers: Headers | None) -> Bookmark:
        """Send a reply, and wait until Kafka has it; the arguments are those of `Delivery.reply`."""
        return self._replier.reply(request, value, key, headers)

    def transaction(self, deliveries: Sequence[Delivery]) -> Transaction:
        """Return a transaction over deliveries; see `AtomicWork.begin`."""
        assert self.work is not None
        return self.work.begin(deliveries)

    def settled(
        self,
        how: Settling,
        deliveries: Sequence[Delivery],
        timeout_s: float,
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        fault: str = "",
    ) -> list[SettlementResult]:
        """Settle deliveries, wait up to `timeout_s` seconds for the answers, and return the results.

        The other arguments are those of `command`.

        Raises:
            AlreadySettled: a delivery was settled before.
            AnswerTimeout: a shard did not answer.
            CommandFailed: a shard refused the whole command.
            Closed: the subscription has ended. The deliveries are not settled then.
        """
        with self._acknowledgments.lock:
            renewing = _leases_by_shard(deliveries) if how == "renew" else {}
        asked = self.command(how, deliveries, delay_ms=delay_ms, lease_ms=lease_ms, fault=fault, answer=True)
        if not asked:
            return []
        for shard, leases in renewing.items():
            self._credits.renewing(shard.index, leases)
        try:
            answers = self._session.channel.sender.ask(asked, timeout_s)
            for answer in answers:
                self._note_renewal(answer, deliveries)
        except Closed:
            for delivery in deliveries:
                delivery.settled_as = ""
            raise
        finally:
            for shard, leases in renewing.items():
                self._credits.renewal_answered(shard.index, leases)
        return [result for answer in answers for result in results(answer)]

    def flush(self) -> None:
        """Send all collected acknowledgments."""
        self._acknowledgments.flush_all()

    def flush_older(self, age_ms: float) -> None:
        """Send the acknowledgments of each shard whose first one has waited for `age_ms`."""
        self._acknowledgments.flush_older(age_ms)

    def grow(self, count: int) -> None:
        """Add room for `count` new shards. Called before they join the subscription."""
        self._acknowledgments.grow(count)

    def close(self) -> None:
        """Send all collected acknowledgments, and accept no more."""
        self._acknowledgments.close()

    def command(
        self,
        how: Settling,
        deliveries: Sequence[Delivery],
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        fault: str = "",
        answer: bool = False,
    ) -> list[tuple[Shard, Command]]:
        """Settle deliveries at once, without collecting.

        Args:
            how: name of the settle action.
            deliveries: the deliveries to settle.
            delay_ms: for cancel: delay before the next delivery, in ms.
            lease_ms: for renew: length of the lease from now, in ms.
            fault: for expire: what is wrong with the messages. It is cut to the length that a command allows.
            answer: whether to return the commands unsent, for `CommandSender.ask`.

        Returns:
            The unsent commands; none without `answer`.

        Raises:
            ValueError: there is no such action, or an option is out of range. The deliveries are not settled then.
            AlreadySettled: a delivery was settled before.
            Closed: with `answer`, after the end of the subscription. Otherwise they are reported as not sent.
        """
        _check(how, delay_ms, lease_ms, fault)  # a delivery that is marked as settled, and is not, would be lost to all
        spanned = nullcontext() if self.tracing is None else self.tracing.settling(how, deliveries)
        with spanned, self.refusals.held_back(), self._session.lifecycle.gate:
            if self._session.lifecycle.is_open:
                fields = {"delay_ms": delay_ms, "lease_ms": lease_ms, "fault": fault[:MOST_NAME_CHARACTERS]}
                return self._settle(how, deliveries, fields, answer)
        self._report_closed(how, deliveries, raising=answer)
        return []

    def report_refused(self, answer: Answer) -> None:
        """Report the settlements that an answer refuses."""
        refused = [result for result in results(answer) if not result.settled]
        for result in refused:
            log.info("%s of %s: %s", answer.command, result.messages, result.result)
        self.refusals.report(refused)

    def _note_renewal(self, answer: Answer, deliveries: Sequence[Delivery]) -> None:
        """Set the new end of the leases that an answer reports as renewed."""
        if answer.lease_until_ms is None:
            return
        settled = {str(place) for result in results(answer) if result.settled for place in result.messages}
        renewed = [delivery for delivery in deliveries if str(delivery.bookmark) in settled]
        with self._acknowledgments.lock:
            for delivery in renewed:
                if not delivery.settled_as:  # a settled one was counted by its old end of lease
                    self._credits.renewed(delivery.shard.index, delivery.lease_ends_ms, answer.lease_until_ms)
                delivery.lease_ends_ms = answer.lease_until_ms
                delivery.lot.is_renewed = True

    def _settle(
        self, how: Settling, deliveries: Sequence[Delivery], fields: Mapping[str, Any], answer: bool
    ) -> list[tuple[Shard, Command]]:
        asked: list[tuple[Shard, Command]] = []
        with self._acknowledgments.lock:
            groups = _by_shard(how, deliveries)
            leases = _leases_by_shard(deliveries)
        for shard, group in groups.items():
            batch = SettlementBatch()
            for delivery in group:
                batch.add(delivery.lot.source, delivery.token, delivery.lot.offsets[delivery.at])
            want = "all" if answer or how == "renew" else "errors"
            for bookmarks in chunks(batch.take()):
                command = self._session.command(how, bookmarks=bookmarks, answer=want, **fields)
                if answer:
                    asked.append((shard, command))
                    continue
                if shard.gone:
                    self._too_late(how, bookmarks)
                    continue
                future = self._session.channel.sender.send(shard, command)
                self._report_failure(how, bookmarks, future)
                if how == "renew":
                    self._credits.renewing(shard.index, leases[shard])
                    future.add_done_callback(partial(self._renewed, shard, group, leases[shard]))
            if how != "renew":
                self._credits.settled(shard.index, leases[shard], elapsed_ms())
        return asked

    def _batch_size(self, shard: Shard) -> int:
        """Return how many acknowledgments are worth a command: at most half the credit, so that no shard waits.

        Once the subscription takes no more, no shard waits for them.
        """
        if not self._credits.max_backlog:
            return self._most
        return min(self._most, max(1, self._credits.credit(shard.index) // 2))

    def _send_acks(self, shard: Shard, ranges: list[str], leases: Mapping[float, int]) -> None:
        if shard.gone:
            self._too_late("acknowledge", ranges)
            return
        for bookmarks in chunks(ranges):
            command = self._session.command("acknowledge", bookmarks=bookmarks, answer="errors")
            self._report_failure("acknowledge", bookmarks, self._session.channel.sender.send(shard, command))
        self._credits.settled(shard.index, leases, elapsed_ms())

    def _renewed(
        self, shard: Shard, deliveries: Sequence[Delivery], leases: Mapping[float, int], future: Future[Answer]
    ) -> None:
        try:
            if not future.cancelled() and future.exception() is None:
                answer = future.result()
                self._note_renewal(answer, deliveries)
                self.report_refused(answer)
                if answer.status != "ok":
                    log.warning("%s", refusal(shard.entity, answer))
        finally:
            self._credits.renewal_answered(shard.index, leases)

    def _too_late(self, how: str, bookmarks: Iterable[str]) -> None:
        """Report settlements of messages whose queue was deleted as `already_settled`."""
        settlements = tuple(Settlement(bookmarks=text, result="already_settled") for text in bookmarks)
        self.report_refused(Answer(id="", command=how, status="ok", settlements=settlements))

    def _report_closed(self, how: str, deliveries: Iterable[Delivery], raising: bool = False) -> None:
        """Report or raise that a settlement came after the end. The deliveries stay unsettled."""
        batch = SettlementBatch()
        for delivery in deliveries:
            delivery.check_unsettled()
            if not delivery.is_barrier:
                batch.add(delivery.lot.source, delivery.token, delivery.lot.offsets[delivery.at])
        if raising:
            raise self._session.lifecycle.end_error()
        self._not_sent(how, batch.take(), "the subscriber is closed; settle before close()")

    def _report_failure(self, how: str, bookmarks: Sequence[str], future: Future[Answer]) -> None:
        """Report a settlement as not sent if its command fails."""

        def done(sent: Future[Answer]) -> None:
            if not sent.cancelled() and (error := sent.exception()) is not None:
                self._not_sent(how, bookmarks, error)

        future.add_done_callback(done)

    def _not_sent(self, how: str, bookmarks: Sequence[str], why: object) -> None:
        if not bookmarks:
            return
        shown = ", ".join(bookmarks[:_SHOWN]) + (f" and {len(bookmarks) - _SHOWN} more" if bookmarks[_SHOWN:] else "")
        log.warning("%s of %s was not sent; they come again when their leases end: %s", how, shown, why)
        self.refusals.report([SettlementResult(BookmarkRange.parse(text), NOT_SENT) for text in bookmarks])


def _check(how: object, delay_ms: object, lease_ms: object, fault: object) -> None:
    """Check the options of a settlement.

    Raises:
        ValueError: see `SubscriptionSettler.command`.
    """
    check_choice("settle", how, get_args(Settling))
    check("delay_ms", delay_ms)
    check("lease_ms", lease_ms)
    check("fault", fault[:MOST_NAME_CHARACTERS] if isinstance(fault, str) else fault)


def _leases_by_shard(deliveries: Iterable[Delivery]) -> dict[Shard, Counter[float]]:
    """Count deliveries by shard and end of lease."""
    leases: dict[Shard, Counter[float]] = {}
    for delivery in deliveries:
        if not delivery.is_barrier:
            leases.setdefault(delivery.shard, Counter())[delivery.lease_ends_ms] += 1
    return leases


def _by_shard(how: Settling, deliveries: Sequence[Delivery]) -> dict[Shard, list[Delivery]]:
    """Mark deliveries as settled, all or none, and return them by shard.

    Raises:
        AlreadySettled: a delivery was settled before, or is there twice.
    """
    known: set[int] = set()
    for delivery in deliveries:
        delivery.check_unsettled()
        if id(delivery) in known and how != "renew":
            raise AlreadySettled(delivery.bookmark, how)
        known.add(id(delivery))
    groups: dict[Shard, list[Delivery]] = {}
    for delivery in deliveries:
        delivery.mark(how)
        if not delivery.is_barrier:
            groups.setdefault(delivery.shard, []).append(delivery)
    return groups
