"""The names of lapse's queues for kombu's."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9._-]|\A[.-]")
_LONGEST: Final = 200
_DIGITS: Final = 8


def queue_name(queue: str) -> str:
    """Return the name of the queue of lapse for a queue of kombu.

    A name that topics can have stays as it is. In another one each illegal character becomes `_`, and digits of its
    hash are added: all processes must name it alike, and no two queues may become one.
    """
    given = str(queue)
    legal = _ILLEGAL.sub("_", given)
    if legal == given and len(given) <= _LONGEST:
        return given
    digits = sha256(given.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{legal[: _LONGEST - _DIGITS - 1]}-{digits}"
