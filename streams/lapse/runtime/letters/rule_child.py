"""The process in which an expiry rule runs: reads messages from standard input, and answers how each call went.

It is separate from the worker, so that a function that hangs, leaks or crashes does not harm the shards (L15, C26). Its
output goes to the worker's log.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from lapse.config.expiry_function import resolve
from lapse.parent_death import end_with_parent

FRAME: Final = struct.Struct(">I")
"""Precedes the pickled messages of a frame: their size in bytes."""

MOST_TEXT: Final = 4_000


def main(name: str) -> None:
    """Call the function for every message, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker handles Ctrl-C
    end_with_parent()
    # The original standard output is for answers only, so the function's output goes to standard error.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    function = resolve(name)
    _answer(answers, {"ready": True})
    while (head := sys.stdin.buffer.read(FRAME.size)) and len(head) == FRAME.size:
        (size,) = FRAME.unpack(head)
        body = sys.stdin.buffer.read(size)
        _answer(answers, {"taken": True})  # if this process ends before, no call was made
        for message in pickle.loads(body):  # noqa: S301  # written by our parent process
            _answer(answers, _call(function, message))


def _call(function: Callable[[Any], object], message: Any) -> dict[str, object]:
    try:
        function(message)
    except BaseException as error:  # noqa: BLE001  # SystemExit too must not end this process
        text = "".join(traceback.format_exception(error))
        return {"error": f"{type(error).__name__}: {error}"[:MOST_TEXT], "traceback": text[-MOST_TEXT:]}
    return {}


def _answer(answers: BinaryIO, answer: dict[str, object]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
