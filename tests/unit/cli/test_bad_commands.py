"""Options and keys that cannot be meant are refused with their place and a remedy (X7)."""

import pytest

from unit.cli.bad_commands import COMMANDS, KEYS, Case, Key


@pytest.mark.feature("X7", "Q22", "Q23", "Q26")
@pytest.mark.parametrize("case", COMMANDS, ids=str)
def test_a_command_that_cannot_be_meant_is_refused_before_kafka_is_asked(case: Case) -> None:
    assert case.message
    assert "Traceback" not in case.message
    assert "Kafka" not in case.message


@pytest.mark.feature("X7", "Q23", "Q24", "Q25")
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_key_that_cannot_be_meant_is_reported_with_its_place(key: Key) -> None:
    assert key.message


@pytest.mark.feature("X7", "Q22")
def test_the_point_of_a_rewind_may_be_any_of_what_the_refusal_names() -> None:
    message = Case("queue rewind orders --to soon").message
    assert "beginning" in message
    assert "orders:0:1200" in message
