"""Texts that occur among many pieces of bytes, found together (Q20)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.core import distinct_texts as module
from lapse.core.distinct_texts import distinct_texts

_LETTERS = st.text(st.sampled_from("ab !~"), max_size=20)
_TEXTS = st.lists(st.one_of(st.none(), st.sampled_from(["", "a", "b" * 8, "b" * 9, "c" * 70]), _LETTERS), max_size=40)


@pytest.mark.feature("Q20", "Q25")
@pytest.mark.parametrize("odd", [module._ODD, 0], ids=["keys differ", "all keys are equal"])
@given(texts=_TEXTS, behind=st.sampled_from([b"", b'"}', b"x" * 100]))
@example(texts=["", None, "", None], behind=b"")
@example(texts=[None, None], behind=b"")
def test_each_piece_has_its_text(odd: int, texts: list[str | None], behind: bytes) -> None:
    pieces = [(text or "").encode() for text in texts]
    begins = np.cumsum([3, *(len(one) + 1 for one in pieces)], dtype=np.int32)[:-1]
    data = b"{:," + b"".join(one + b'"' for one in pieces) + behind
    sizes = np.array([-1 if text is None else len(text) for text in texts], np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ODD", odd)
        distinct, which = distinct_texts(data, begins, sizes)
    assert [distinct[at] for at in which.tolist()] == texts


@pytest.mark.feature("Q25")
def test_equal_texts_are_found_once() -> None:
    data = b'"tenant-1","tenant-2","tenant-1","tenant-1"'
    begins = np.array([1, 12, 23, 34], np.int32)
    distinct, which = distinct_texts(data, begins, np.full(4, 8, np.int32))
    assert sorted(map(str, distinct)) == ["tenant-1", "tenant-2"]
    assert which[0] == which[2] == which[3] != which[1]
