"""Checks whether any worker runs the silent shards. If none does, the client says so before its timeout (X7)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Final

from lapse.protocol.answer import Answer
from lapse.protocol.command import DEFINITION_COMMANDS, Command
from lapse_client.error import AnswerTimeout, ConnectionFailed
from lapse_client.session.shard import Shard

log = logging.getLogger("lapse_client")

SILENCE_S: Final = 2.0
"""After this time without an answer the client checks whether a worker runs, in seconds."""

_ANSWER_S: Final = 1.5
"""How long the check waits for its answer, in seconds. A shard that runs answers it at once."""

_REACH_S: Final = 3.0
"""How long brokers may take to answer a question before they are called silent, in seconds."""

_LEAST_S: Final = 5.0
"""Calls with a timeout up to this one make no check, in seconds: they fail soon enough anyway."""

_PING: Final = Command(command="depth", top_n=0)
"""A question that costs a shard nothing, because it asks for the publish target only."""

_LONG: Final = frozenset({"purge", "rewind", "delete"}) | DEFINITION_COMMANDS
"""Commands that may keep a shard busy for long, as every command with a filter may. A shard carries out commands in
order, so until then it cannot answer a check. So does the worker that carries out definitions."""


class Attendance:
    """Checks whether workers run the shards of entities.

    Args:
        send: sends a command to a shard.
        insists: whether calls wait until their timeouts even if no worker runs, because one may be about to start.
        settles: whether the transport knows that nothing more can happen, so that waiting is pointless.
        lacking: returns those topics of an entity that are missing, and without which no worker can serve it.
        reach: waits for an answer of the brokers, for a number of seconds, and raises `ConnectionFailed`.
        user: the user of lapse who asks; empty = none.
    """

    def __init__(
        self,
        send: Callable[[Shard, Command], Future[Answer]],
        insists: bool,
        settles: bool,
        lacking: Callable[[str], Sequence[str]],
        reach: Callable[[float], None],
        user: str = "",
    ) -> None:
        self._user = user
        self._reach = reach
        self._lacking = lacking
        self._send = send
        self._insists = insists
        self._settles = settles

    def first_wait_s(self, timeout_s: float) -> float:
        """Return how much of a timeout to wait before `check` is called, in seconds."""
        return timeout_s if self._settles or timeout_s <= _LEAST_S else SILENCE_S

    def check_first(self, asked: Sequence[tuple[Shard, Command]], timeout_s: float) -> bool:
        """Check the shards before a command that may take long; return whether the check was made.

        Raises:
            AnswerTimeout: as `check` does.
        """
        if self.first_wait_s(timeout_s) == timeout_s or not any(_may_take_long(command) for _, command in asked):
            return False
        shards = [shard for shard, _ in asked]
        self._check(shards, asked[0][1].command, SILENCE_S + _ANSWER_S, timeout_s, sent=False)
        return True

    def check(self, silent: Sequence[Shard], command: str, timeout_s: float) -> float:
        """Ask silent shards whether a worker runs them, and log a warning if none does.

        Args:
            silent: shards that have not answered.
            command: name of the command that they have not answered.
            timeout_s: timeout of the call in all, in seconds.

        Returns:
            The rest of the timeout, in seconds.

        Raises:
            AnswerTimeout: no worker runs them, and the connection does not insist; or none can, as a topic is missing.
            ConnectionFailed: not even the brokers answer, and the connection does not insist.
        """
        self._check(silent, command, _ANSWER_S, timeout_s)
        return timeout_s - SILENCE_S - _ANSWER_S

    def _check(
        self, shards: Sequence[Shard], command: str, wait_s: float, timeout_s: float, *, sent: bool = True
    ) -> None:
        pings = [(shard, self._send(shard, _PING)) for shard in shards]
        wait_for([answer for _, answer in pings], wait_s)
        deserted = [shard.partition for shard, answer in pings if not answer.done()]
        for _, answer in pings:
            answer.cancel()
        if deserted:
            entity = shards[0].entity
            why = self.why_silent(entity, command, deserted, SILENCE_S + _ANSWER_S, sent=sent)
            if not self._insists or (isinstance(why, AnswerTimeout) and why.lacking):
                raise why
            log.warning("%s. Waiting for %g s in all", why, timeout_s)

    def why_silent(
        self, entity: str, command: str, partitions: Sequence[int], seconds: float, *, sent: bool = True
    ) -> AnswerTimeout | ConnectionFailed:
        """Return the error for shards that have not answered a command: no broker answers, or no worker does.

        Args:
            entity: the entity.
            command: name of the command.
            partitions: partitions of the silent shards.
            seconds: how long they were waited for, in seconds.
            sent: whether the command itself was sent.
        """
        if not self._settles:
            try:
                self._reach(_REACH_S)
            except ConnectionFailed as error:
                return error.with_unanswered(command if sent else "")
        return AnswerTimeout(entity, command, partitions, seconds, sent, self._lacking(entity), self._user)


def _may_take_long(command: Command) -> bool:
    return command.command in _LONG or bool(command.filter)
