"""Whether any worker runs the shards that do not answer. If none does, the client says so before its timeout (X7)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Final

from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse_client.error import AnswerTimeout
from lapse_client.session.shard import Shard

log = logging.getLogger("lapse_client")

SILENCE_S: Final = 2.0
"""After this time without an answer the client looks whether a worker runs, s."""

_ANSWER_S: Final = 1.5
"""How long that answer is waited for, s: any shard gives it at once, whatever else it does."""

_LEAST_S: Final = 5.0
"""A timeout below this is soon enough, so no look is taken, s."""

_PING: Final = Command(command="depth", top_n=0)
"""It asks for the publish target only, so it costs a shard nothing."""

_LONG: Final = frozenset({"purge", "rewind", "delete"})
"""Commands behind which a shard may be silent for long, as it is behind any with a filter; it does them in their order,
so nobody could ask meanwhile whether it is there."""


class Attendance:
    """Looks whether workers run the shards of entities.

    Args:
        send: sends a command to a shard.
        insists: whether calls go on waiting until their timeouts, for a worker may be about to start; else they end.
        settles: whether waiting has no sense, because all is known that can happen.
    """

    def __init__(self, send: Callable[[Shard, Command], Future[Answer]], insists: bool, settles: bool) -> None:
        self._send = send
        self._insists = insists
        self._settles = settles

    def first_wait_s(self, timeout_s: float) -> float:
        """How long to wait before `check` is called, of a timeout, in seconds."""
        return timeout_s if self._settles or timeout_s <= _LEAST_S else SILENCE_S

    def check_first(self, asked: Sequence[tuple[Shard, Command]], timeout_s: float) -> bool:
        """Look before shards are asked for what takes long; returns whether that was so.

        Raises:
            AnswerTimeout: as `check` does.
        """
        if self.first_wait_s(timeout_s) == timeout_s or not any(_takes_long(command) for _, command in asked):
            return False
        shards = [shard for shard, _ in asked]
        self._check(shards, asked[0][1].command, SILENCE_S + _ANSWER_S, timeout_s, sent=False)
        return True

    def check(self, silent: Sequence[Shard], command: str, timeout_s: float) -> float:
        """Ask silent shards whether a worker runs them; the log tells if none does.

        Args:
            silent: shards that have not answered.
            command: what they were asked.
            timeout_s: how long the answer is waited for in all, in seconds.

        Returns:
            How much of the timeout is left, in seconds.

        Raises:
            AnswerTimeout: nobody attends to them, and to go on waiting is not wanted.
        """
        self._check(silent, command, _ANSWER_S, timeout_s)
        return timeout_s - SILENCE_S - _ANSWER_S

    def _check(
        self, shards: Sequence[Shard], command: str, wait_s: float, timeout_s: float, *, sent: bool = True
    ) -> None:
        asked = [(shard, self._send(shard, _PING)) for shard in shards]
        wait_for([answer for _, answer in asked], wait_s)
        deserted = [shard.partition for shard, answer in asked if not answer.done()]
        for _, answer in asked:
            answer.cancel()
        if deserted:
            told = AnswerTimeout(shards[0].entity, command, deserted, SILENCE_S + _ANSWER_S, sent)
            if not self._insists:
                raise told
            log.warning("%s. Waiting on, %g s in all", told, timeout_s)


def _takes_long(command: Command) -> bool:
    return command.command in _LONG or bool(command.filter)
