"""What the client cannot do is refused in words, with a remedy (X7)."""

from __future__ import annotations

import pytest

from unit.client.bad_calls import REQUESTS, TRANSACTIONS, Case, told


@pytest.mark.feature("X7", "Q27", "C75")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.shown) for case in REQUESTS])
def test_a_bad_request_or_reply_is_refused_in_words(case: Case) -> None:
    error, text = told(case)
    assert error in ("InvalidPublication", "UnknownEntity", "NoReply")
    assert text
    assert "Traceback" not in text


@pytest.mark.feature("X7", "X9")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.shown) for case in TRANSACTIONS])
def test_a_bad_transaction_is_refused_in_words(case: Case) -> None:
    error, text = told(case)
    assert error in ("InvalidPublication", "AlreadySettled")
    assert text
