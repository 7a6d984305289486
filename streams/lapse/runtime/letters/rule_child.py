"""The process in which an expiry rule runs: reads messages from its standard input, says of each how the call went.

Apart from the worker, so that a function that hangs, leaks or crashes costs the shards nothing (L15, C26). What it
prints goes to the worker's log.
"""

from __future__ import annotations

import ctypes
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

FRAME: Final = struct.Struct(">I")
"""In front of the pickled messages of one frame: their size in bytes."""

MOST_TEXT: Final = 4_000
_PR_SET_PDEATHSIG: Final = 1


def main(name: str) -> None:
    """Call the function for every message that comes, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the worker's to handle
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The pipe is for answers alone; what the function prints must not get into it.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    function = resolve(name)
    _answer(answers, {"ready": True})
    while (head := sys.stdin.buffer.read(FRAME.size)) and len(head) == FRAME.size:
        (size,) = FRAME.unpack(head)
        for message in pickle.loads(sys.stdin.buffer.read(size)):  # noqa: S301  # written by our own parent
            _answer(answers, _call(function, message))


def _call(function: Callable[[Any], object], message: Any) -> dict[str, object]:
    try:
        function(message)
    except BaseException as error:  # noqa: BLE001  # SystemExit, too, concerns the rule alone
        text = "".join(traceback.format_exception(error))
        return {"error": f"{type(error).__name__}: {error}"[:MOST_TEXT], "traceback": text[-MOST_TEXT:]}
    return {}


def _answer(answers: BinaryIO, answer: dict[str, object]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
