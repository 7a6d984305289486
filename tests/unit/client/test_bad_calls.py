"""What the client cannot do is refused in words, with a remedy (X7)."""

from __future__ import annotations

import pytest

from unit.client.bad_calls import OTHERS, REQUESTS, TESTING, TRANSACTIONS, Case, refusal_of


@pytest.mark.feature("X7", "Q27", "C75")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.shown) for case in REQUESTS])
def test_a_bad_request_or_reply_is_refused_in_words(case: Case) -> None:
    error, text = refusal_of(case)
    assert error in ("InvalidPublication", "UnknownEntity", "NoReply")
    assert text
    assert "Traceback" not in text


@pytest.mark.feature("X7", "X9")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.shown) for case in TRANSACTIONS])
def test_a_bad_transaction_is_refused_in_words(case: Case) -> None:
    error, text = refusal_of(case)
    assert error in ("InvalidPublication", "AlreadySettled", "UnknownEntity")
    assert text


@pytest.mark.feature("X7", "Q22", "Q23", "Q24")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.shown) for case in OTHERS])
def test_bad_retries_rewinds_queries_and_definitions_are_refused_in_words(case: Case) -> None:
    error, text = refusal_of(case)
    assert error in ("ValueError", "TypeError", "CommandFailed", "UnknownEntity", "InvalidPublication", "Closed")
    assert text
    assert "object at" not in text


@pytest.mark.feature("X7", "X8")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.shown) for case in TESTING])
def test_a_test_that_cannot_be_meant_is_refused_in_words(case: Case) -> None:
    error, text = refusal_of(case)
    assert error in ("ConfigError", "ValueError", "TypeError")
    assert text
    assert not text.startswith(":")
