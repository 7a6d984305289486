"""A command that was copied does nothing a second time, whoever looks after the shard (X4, C1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.used_signature import REMEMBERED_MS, VALID_MS, UsedSignatures, is_valid

pytestmark = pytest.mark.feature("X4")

T = 1_700_000_000_000


def test_valid_to_the_millisecond_in_both_directions():
    assert is_valid(T, T + VALID_MS)
    assert is_valid(T + VALID_MS, T)
    assert not is_valid(T, T + VALID_MS + 1)
    assert not is_valid(T + VALID_MS + 1, T)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(-VALID_MS - 1, VALID_MS + 1), st.integers(0, VALID_MS)), max_size=40
    ),
    st.data(),
)
def test_a_command_counts_once_and_a_take_over_changes_no_verdict(sent, data):
    """Records of five signatures, each signed at an instant of its own; read by one shard, or by two in turn."""
    records, signed, at_ms = [], {}, T
    for number, apart_ms, later_ms in sent:
        at_ms += later_ms
        records.append((bytes([number]), signed.setdefault(number, at_ms + apart_ms), at_ms))

    def read(used, some):
        return [is_valid(signed_ms, at) and used.use(signature, at) for signature, signed_ms, at in some]

    verdicts = read(UsedSignatures(), records)
    counted = [signature for (signature, _, _), verdict in zip(records, verdicts, strict=True) if verdict]
    assert len(counted) == len(set(counted))
    valid = {signature for signature, signed_ms, at in records if is_valid(signed_ms, at)}
    assert set(counted) == valid

    cut = data.draw(st.integers(0, len(records)))
    since_ms = (records[cut][2] if cut < len(records) else at_ms) - REMEMBERED_MS
    successor = UsedSignatures()
    for signature, signed_ms, at in records[:cut]:
        if at >= since_ms and is_valid(signed_ms, at):
            successor.use(signature, at)
    assert read(successor, records[cut:]) == verdicts[cut:]


def test_what_is_over_is_forgotten():
    used = UsedSignatures()
    for number in range(100):
        used.use(bytes([number]), T + number * REMEMBERED_MS // 10)
    assert len(used) == 11
