"""What a delta does not touch stays as it was written, and no two keys become one, in the JSON that workers use."""

import json
from typing import Any

import pytest

from lapse.core.reason import Reason
from lapse.core.sow.keys.field_path import parse as path
from lapse.core.sow.records.record import payload_of
from lapse.runtime.sow.settings import JSON
from unit.core.sow.make import Desk, shard_of


def stored(desk: Desk) -> dict[bytes, bytes]:
    return {name[1:]: payload_of(entry) for name, entry in desk.shard.state.entries.items()}


@pytest.mark.feature("S2")
@pytest.mark.parametrize("number", ["18446744073709551616", "-9223372036854775809", "9" * 60, "1e+22", "0.1", "-0.0"])
def test_a_delta_leaves_other_numbers_alone(number: str) -> None:
    desk = Desk(shard_of(**JSON))
    desk.put("k", f'{{"big":{number},"in":[{number}]}}'.encode(), 0, raw=True)
    desk.put("k", {"small": 1}, 1, lapse_command="delta")
    assert stored(desk)[b"k"] == f'{{"big":{number},"in":[{number}],"small":1}}'.encode()


@pytest.mark.feature("S2", "X7")
def test_more_digits_than_python_reads_stop_nothing() -> None:
    desk = Desk(shard_of(key=(path("/id"),), **JSON))
    step = desk.put(None, f'{{"id":{"9" * 5000}}}'.encode(), 0, raw=True)
    assert [letter.reasons for letter in step.letters] == [(Reason.UNDECODABLE,)]
    desk.put("x", {"id": 1}, 1)
    assert stored(desk) == {b"[1]": b'{"id": 1}'}


@pytest.mark.feature("S1")
def test_keys_beyond_64_bits_stay_apart() -> None:
    desk = Desk(shard_of(key=(path("/id"),), **JSON))
    ids = ["123456789012345678901", "123456789012345678902", "18446744073709551615", "1e22", "-12345678901234567890123"]
    for one in ids:
        desk.put(None, f'{{"id":{one}}}'.encode(), 0, raw=True)
    assert set(stored(desk)) == {f"[{one}]".replace("1e22", "1e+22").encode() for one in ids}
    desk.put(None, b'{"id":123456789012345678902,"more":1}', 1, raw=True, lapse_command="delta")
    assert json.loads(stored(desk)[b"[123456789012345678902]"])["more"] == 1


@pytest.mark.feature("S2", "C44", "X7")
@pytest.mark.parametrize("value", [b"[1]", b"5", b"null", b"{", b"", b"\xff", b'{"a": NaN}'])
def test_a_delta_that_is_no_object_is_a_dead_letter_where_there_is_no_record(value: bytes) -> None:
    desk = Desk(shard_of(**JSON))
    step = desk.put("k", value, 0, raw=True, lapse_command="delta")
    assert [letter.reasons for letter in step.letters] == [(Reason.UNDECODABLE,)]
    assert stored(desk) == {}


@pytest.mark.feature("S2", "X7")
@pytest.mark.parametrize(("value", "kind"), [(5, "a number"), (0.5, "a number"), ("x", "a text"), (True, "a boolean")])
def test_what_a_delta_is_instead_is_said_in_words_of_json(value: Any, kind: str) -> None:
    desk = Desk(shard_of(**JSON))
    (letter,) = desk.put("k", value, 0, lapse_command="delta").letters
    assert letter.detail.endswith(f"a delta merges objects, and the delta is {kind}")


@pytest.mark.feature("S6")
@pytest.mark.parametrize(("before", "after"), [([1], [True]), ([0, [1]], [0, [True]]), (1, True), (0, False)])
def test_a_delta_subscriber_is_informed_of_another_type(before: Any, after: Any) -> None:
    desk = Desk(shard_of(**JSON))
    desk.ask("delta_subscribe", 0, subscription="s")
    desk.put("k", {"v": before, "w": 1}, 1)
    (message,) = desk.put("k", {"v": after, "w": 1}, 2).deliveries
    assert (message.kind, json.loads(message.payload or b"")) == ("delta", {"v": after})
