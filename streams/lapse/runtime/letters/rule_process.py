"""Starts and controls the process in which an expiry rule runs (L15, C26)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pickle
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lapse.runtime.letters.expired_message import ExpiredMessage
from lapse.runtime.letters.rule_child import FRAME

logger = logging.getLogger(__name__)

_START_S: Final = 60.0
_RESTART_PAUSE_S: Final = 1.0
_LOG_EVERY_S: Final = 1.0
_FRAME_MESSAGES: Final = 64
_FRAME_BYTES: Final = 4 << 20
_ANSWER_BYTES: Final = 1 << 18
"""More than the longest answer takes, bytes: a character may take twelve of them."""


@dataclass(slots=True)
class RuleFigures:
    """How the calls of one entity's rule went since the worker started.

    Attributes:
        done: calls that returned.
        failed: calls that raised an exception, or ended the process.
        timed_out: calls that exceeded the time limit.
    """

    done: int = 0
    failed: int = 0
    timed_out: int = 0


class RuleEndedError(Exception):
    """The process of the rule ended."""


class RuleProcess:
    """Calls a function in a separate process, message by message, and kills the process if a call takes too long.

    Args:
        entity: name of the entity.
        function: `package.module:function`.
        timeout_ms: time limit of one call, ms.
    """

    def __init__(self, entity: str, function: str, timeout_ms: int) -> None:
        self.entity = entity
        self.function = function
        self.figures = RuleFigures()
        self._timeout_s = timeout_ms / 1000
        self._process: asyncio.subprocess.Process | None = None
        self._killed: list[asyncio.subprocess.Process] = []
        self._lock = asyncio.Lock()
        self._logged_at = 0.0
        self._unlogged = 0

    async def call(self, messages: Sequence[ExpiredMessage]) -> None:
        """Call the function for each message; return when each call has ended, in whatever way."""
        async with self._lock:
            try:
                for frame in _frames(messages):
                    rest = list(frame)
                    while rest:
                        rest = rest[await self._call_some(rest) :]
            except BaseException:
                # Answers that are still to come would be taken for those to the next messages.
                self._kill()
                raise

    async def stop(self) -> None:
        """Kill the process. The shard's next owner repeats a call that is under way."""
        self._kill()
        while self._killed:
            await self._killed.pop().wait()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        self._killed = [one for one in self._killed if one.returncode is None] + [process]

    async def _call_some(self, messages: Sequence[ExpiredMessage]) -> int:
        """Call the function until a call ends the process; return how many messages are done."""
        failure = "cannot be started"
        try:
            process = await self._started()
            failure = "did not take the next messages, so it is started again"
            await self._hand_over(process, messages)
        except (RuleEndedError, TimeoutError, OSError) as error:
            # No call was made: these messages wait for a process that takes them.
            self._log_error("%s: %s", failure, str(error) or "no answer in time")
            await self.stop()
            await asyncio.sleep(_RESTART_PAUSE_S)
            return 0
        for at, message in enumerate(messages):
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._answer(process)
            except TimeoutError:
                self.figures.timed_out += 1
                self._log_error("%s: not done within %.1f s, given up", message.bookmark, self._timeout_s)
                await self.stop()
                return at + 1
            except RuleEndedError as error:
                self.figures.failed += 1
                self._log_error("%s: %s", message.bookmark, error)
                await self.stop()
                return at + 1
            if "error" in answer:
                self.figures.failed += 1
                self._log_error("%s: %s\n%s", message.bookmark, answer["error"], answer["traceback"])
            else:
                self.figures.done += 1
        return len(messages)

    async def _hand_over(self, process: asyncio.subprocess.Process, messages: Sequence[ExpiredMessage]) -> None:
        """Send messages to the process; return when it has taken them, and is about to call the function.

        Raises:
            RuleEndedError: the process ended before, for instance while it had nothing to do.
            TimeoutError: it stands still.
        """
        assert process.stdin is not None
        body = pickle.dumps(list(messages), protocol=pickle.HIGHEST_PROTOCOL)
        with contextlib.suppress(ConnectionError):  # the missing answer shows the error
            process.stdin.write(FRAME.pack(len(body)) + body)
        async with asyncio.timeout(_START_S):
            await self._answer(process)

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "lapse.runtime.letters.rule_child",
                self.function,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
                limit=_ANSWER_BYTES,
            )
            async with asyncio.timeout(_START_S):
                await self._answer(self._process)
        return self._process

    async def _answer(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            raise RuleEndedError(f"its process ended with code {await process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _log_error(self, text: str, *arguments: object) -> None:
        """Log an error, once a second at most: a rule that always fails must not flood the log."""
        if time.monotonic() - self._logged_at < _LOG_EVERY_S:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more since the last message)" if self._unlogged else ""
        logger.warning("%s, on_expire %s: %s%s", self.entity, self.function, text % arguments, more)
        self._logged_at, self._unlogged = time.monotonic(), 0


def _frames(messages: Sequence[ExpiredMessage]) -> Iterable[list[ExpiredMessage]]:
    """Yield messages in frames of limited size."""
    frame: list[ExpiredMessage] = []
    size = 0
    for message in messages:
        own = len(message.value or b"")
        if frame and (len(frame) == _FRAME_MESSAGES or size + own > _FRAME_BYTES):
            yield frame
            frame, size = [], 0
        frame.append(message)
        size += own
    if frame:
        yield frame
