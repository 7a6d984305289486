"""A file that is hostile, or made by a machine, is refused in a line and in no time (X7)."""

import time
from pathlib import Path

import pytest

from lapse.config import ConfigError, load
from lapse.config.document import loads
from lapse.runtime.topics.cluster import _parts

pytestmark = pytest.mark.feature("X7")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = " + "[" * 50_000, "nested too deep"),
        (
            "[queue.q]\npartitions = " + "1" * 10_000,
            "lapse.toml:2: a number is too long; none that lapse takes has more",
        ),
        ("[lapse]\napp_id = '" + "a" * 2_000_000 + "'", "expected a text that matches"),
        ("[queue.q]\nlease_period = '" + "a" * 2_000_000 + "'", "expected a duration"),
        ("[lapse]\nsession_timeout = '1ms'", "session_timeout: has to be from"),
        ("[lapse]\nsession_timeout = '10d'", "session_timeout: has to be from"),
    ],
)
def test_what_is_too_much_is_refused_in_a_line(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 2_000


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "lapse.toml"
    path.write_bytes(b"\xef\xbb\xbf[queue.orders]\n")
    assert list(load(path).queue) == ["orders"]


@pytest.mark.feature("C38")
def test_a_long_chain_of_forwarding_is_looked_through_at_once() -> None:
    chain = "".join(f'[queue.q{at}]\nforward_to = "q{at + 1}"\n' for at in range(1_000)) + "[queue.q1000]\n"
    began = time.monotonic()
    assert len(loads(chain).queue) == 1_001
    assert time.monotonic() - began < 10  # it took a minute for twice as many


def test_what_is_asked_of_a_controller_is_split() -> None:
    requests = list(_parts([1_500, 400, 300, 5_000, 1], lambda one: one))
    assert requests == [[1_500, 400], [300], [5_000], [1]]
