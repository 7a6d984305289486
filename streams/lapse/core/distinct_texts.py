"""Distinct texts: those that occur among many short pieces of bytes, found with a few operations for all (Q20)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.narrow_order import argsort_narrow

_WORD: Final = 8
"""Bytes that are compared together."""

_MOST_WORDS: Final = 8
"""Longer texts are compared one by one."""

_MASKS: Final = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)
"""By number of bytes: the bits of so many at the beginning of a word."""

_ODD: Final = 0x9E3779B97F4A7C15
"""Multiplication by an odd number loses no bits of a word."""


def distinct_texts(
    data: bytes, begins: NDArray[np.int32], sizes: NDArray[np.int32]
) -> tuple[list[str | None], NDArray[np.intp]]:
    """Return the texts that occur, each once or more often, and the index of each piece's text among them.

    Args:
        data: the bytes with the texts, which have ASCII characters only, and none of them is NUL.
        begins: where each begins.
        sizes: their numbers of bytes; a negative one stands for no text.
    """
    longest = int(sizes.max(initial=0))
    words = -(-max(longest, 1) // _WORD)
    if not len(sizes) or words > _MOST_WORDS:
        texts = [_text(data, *one) for one in zip(begins.tolist(), sizes.tolist(), strict=True)]
        return texts, np.arange(len(sizes))
    missing = sizes < 0 if int(sizes.min()) < 0 else None
    if missing is None:
        columns = _words(data, begins, sizes, words)
    elif missing.all():
        return [None], np.zeros(len(sizes), np.intp)
    else:
        columns = _words(data, np.where(missing, begins[~missing][0], begins), np.maximum(sizes, 0), words)
    keys = _mixed(columns)
    if missing is not None:
        columns.append(missing.astype(np.uint64))  # an empty text has the same words
    order = argsort_narrow(keys)
    keys = keys[order]
    differs = keys[1:] != keys[:-1]
    for column in columns:  # texts with equal keys may differ
        column = column[order]
        differs |= column[1:] != column[:-1]
    firsts = np.concatenate(([0], np.flatnonzero(differs) + 1))
    which = np.empty(len(order), np.intp)
    which[order] = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(order)))
    found = order[firsts]
    return [_text(data, *one) for one in zip(begins[found].tolist(), sizes[found].tolist(), strict=True)], which


def _words(data: bytes, begins: NDArray[np.int32], sizes: NDArray[np.int32], words: int) -> list[NDArray[np.uint64]]:
    """Return the bytes of each text as words, with zeros behind its end."""
    behind, begin = int(begins.max()) + words * _WORD, 0
    if behind > len(data):  # else all words are read in place, without a copy of the data
        begin = int(begins.min())
        data = data[begin:] + bytes(behind - len(data))
    overlapping: NDArray[np.uint64] = np.ndarray((len(data) - _WORD + 1,), "<u8", data, 0, (1,))
    found = []
    for number in range(words):
        at = begins if not begin + number else begins + (number * _WORD - begin)
        of_word = sizes if words == 1 else np.clip(sizes - number * _WORD, 0, _WORD)
        found.append(overlapping[at] & _MASKS[of_word])
    return found


def _mixed(columns: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Return a number of 16 bits for the words of each text, which seldom equals that of another text."""
    mixed = np.zeros_like(columns[0])
    for column in columns:
        mixed = (mixed ^ column) * np.uint64(_ODD)
        mixed ^= mixed >> np.uint64(32)
    return mixed >> np.uint64(48)


def _text(data: bytes, begin: int, size: int) -> str | None:
    return None if size < 0 else data[begin : begin + size].decode("latin-1")
