"""What users may do, and how their filters narrow what they ask for (X4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.entitlement import (
    NOTHING,
    QUEUE_RIGHTS,
    SOW_RIGHTS,
    Entitlement,
    Right,
    combine_filters,
    find_entitlement,
    missing_right,
)
from lapse.core.expression import ExpressionError, compile_filter
from lapse.protocol.command import QUEUE_COMMANDS, SOW_COMMANDS
from unit.core.expression.trees import Sample

pytestmark = pytest.mark.feature("X4")

TEXTS = (
    "TRUE",
    "/a = 1",
    "/a = 1 OR /b = 2",
    "NOT /a = 1",
    "/a > /b",
    "/a IS NULL",
    "/a = 1 AND NOT /b IN (1, 2)",
    "/a BETWEEN 0 AND 1",
    "NULL",
)
values = st.sampled_from([None, 0, 1, 2, "1"])
rights = st.frozensets(st.sampled_from(Right))


def test_every_command_takes_a_right():
    assert set(QUEUE_RIGHTS) == QUEUE_COMMANDS - {"tick"}
    assert set(SOW_RIGHTS) == SOW_COMMANDS - {"tick"}


@given(rights, st.sampled_from(sorted({*QUEUE_RIGHTS, *SOW_RIGHTS})))
def test_a_command_is_granted_by_any_of_its_rights_and_nothing_else(granted, command):
    for table in (QUEUE_RIGHTS, SOW_RIGHTS):
        lacking = missing_right(command, Entitlement(granted), table)
        if command in table:
            assert bool(lacking) is not bool(granted & table[command])
            assert all(right in lacking for right in table[command]) or not lacking


def test_an_administrator_receives_nothing_and_a_reader_purges_nothing():
    reader, admin = Entitlement(frozenset({Right.READ})), Entitlement(frozenset({Right.ADMIN}))
    assert missing_right("purge", reader, QUEUE_RIGHTS) == "admin"
    assert missing_right("subscribe", admin, QUEUE_RIGHTS) == "read"
    assert missing_right("sow_delete", reader, SOW_RIGHTS) == "publish"
    assert missing_right("depth", NOTHING, QUEUE_RIGHTS) == "admin or publish or read"


def test_the_own_name_comes_first_and_then_the_first_pattern():
    read, admin = Entitlement(frozenset({Right.READ})), Entitlement(frozenset({Right.ADMIN}))
    granted = {"order.*": admin, ".*": read, "orders.eu": read}
    assert find_entitlement("orders.eu", granted) is read
    assert find_entitlement("orders", granted) is admin
    assert find_entitlement("my-orders", granted) is read
    assert find_entitlement("ordersXeu", {"orders.eu": read}) is read, "a name is a pattern, too"
    assert find_entitlement("xorders", {"order.*": admin}) is NOTHING, "it has to match the whole name"


@given(st.sampled_from(TEXTS), st.sampled_from(TEXTS), values, values)
def test_narrowed_matches_what_both_match(asked, row_filter, a, b):
    message = Sample({"a": a, "b": b})
    found = compile_filter(combine_filters(asked, row_filter, compile_filter))(message)
    assert found is all(compile_filter(text)(message) is True for text in (asked, row_filter))
    assert (
        combine_filters(None, row_filter, compile_filter)
        == combine_filters("", row_filter, compile_filter)
        == row_filter
    )


@pytest.mark.parametrize("text", ["TRUE) OR (TRUE", "/a = 1) OR (1 = 1", ") OR TRUE OR (TRUE", "/a = 'x"])
def test_no_filter_breaks_out_of_the_brackets(text):
    with pytest.raises(ExpressionError):
        combine_filters(text, "/desk = 'A'", compile_filter)
