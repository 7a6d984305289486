"""A file that is hostile, or made by a machine, is refused in a line and in no time (X7)."""

import time
from pathlib import Path

import pytest

from lapse.cli.cluster import is_lapse_toml
from lapse.cli.define import read_settings
from lapse.config import ConfigError, load
from lapse.config.document import loads
from lapse.replication import link as replication
from lapse.runtime.topics.request_parts import parts_of_request
from lapse.testing import Lapse
from lapse.transfer import link as transfer
from lapse_spark.lapse_toml import app_id

pytestmark = pytest.mark.feature("X7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = " + "[" * 50_000, "nested too deep"),
        (
            "[queue.q]\npartitions = " + "1" * 10_000,
            "lapse.toml:2: a number is too long; none that lapse takes has more",
        ),
        (
            "[queue.q]\nrate = { messages = 0x" + "f" * 5_000 + ', per = "1s" }',
            "lapse.toml:2: a number is too long; none that lapse takes has more",
        ),
        ("[queue.q]\npartitions = 0b" + "1" * 20_000, "lapse.toml:2: a number is too long"),
        ("[queue.q]\n# a note\n" + ".".join("a" * 20_000) + " = 1", "lapse.toml:3: a key has more than 64 parts"),
        ("[" + " . ".join(["queue"] * 65) + "]", "lapse.toml:1: a key has more than 64 parts"),
        ("x = { " + ".".join(["'a'", '"\\"."'] * 33) + " = 1 }", "lapse.toml:1: a key has more than 64 parts"),
        ("[lapse]\napp_id = '" + "a" * 2_000_000 + "'", "expected a text that matches"),
        ("[queue.q]\nlease_period = '" + "a" * 2_000_000 + "'", "expected a duration"),
        ("[lapse]\nsession_timeout = '1ms'", "session_timeout: has to be from"),
        ("[lapse]\nsession_timeout = '10d'", "session_timeout: has to be from"),
    ],
)
def test_what_is_too_much_is_refused_in_a_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize("key", ["ca_file", "on_expire"])
def test_a_long_name_of_a_file_or_function_is_refused_in_a_line(tmp_path: Path, key: str) -> None:
    path, name = tmp_path / "lapse.toml", "a" * 100_000
    path.write_text(f'[security]\nca_file = "{name}"\n' if key == "ca_file" else f'[queue.q]\n{key} = "{name}:b"\n')
    with pytest.raises(ConfigError, match="there is no file|on_expire") as caught:
        load(path)
    assert len(str(caught.value)) < 2_000


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "lapse.toml"
    path.write_bytes(b"\xef\xbb\xbf[queue.orders]\n")
    assert list(load(path).queue) == ["orders"]
    assert is_lapse_toml(path)
    with Lapse() as lapse:
        lapse.load(path)
        assert lapse.depth("orders") == 0
    path.write_bytes(b'\xef\xbb\xbffrom = "a:1"\nto = "b:1"\ntopics = ["prices"]\n')
    assert replication.load(path).downstream == "b:1"
    path.write_bytes(b'\xef\xbb\xbfto = "b:1"\n')
    assert transfer.load(path, {}).target == "b:1"


@pytest.mark.parametrize("value", ["1" * 10_000, "0x" + "f" * 5_000, "[" * 50_000, '"\udc80"'])
def test_every_file_and_setting_is_refused_in_a_line(tmp_path: Path, value: str) -> None:
    path = tmp_path / "link.toml"
    path.write_bytes(f"to = {value}".encode("utf-8", "surrogateescape"))
    for read in (replication.load, lambda file: transfer.load(file, {}), load):
        with pytest.raises(ConfigError, match="too long|too deep|not UTF-8"):
            read(path)
    assert not is_lapse_toml(path)
    if not value.startswith("0x"):
        with pytest.raises(ValueError, match=r"link\.toml: "):
            app_id(path)
    if value.isascii():
        assert read_settings((f"partitions={value}",)) == {"partitions": value}, "a text, which is then refused"


DOTS = ".".join("a" * 100)


@pytest.mark.parametrize("value", [f"'{DOTS}'", f'"{DOTS}"', f"'''{DOTS}'''", f'"""\\\n{DOTS}"""'])
def test_many_dots_in_a_text_or_a_comment_are_no_deep_key(value: str) -> None:
    found = loads(f'# {DOTS}\n[queue."{DOTS}"]\ntopics = [{value}]  # {DOTS}')
    assert found.queue[DOTS].topics == (DOTS,)


@pytest.mark.feature("C38")
def test_a_long_chain_of_forwarding_is_looked_through_at_once() -> None:
    chain = "".join(f'[queue.q{at}]\nforward_to = "q{at + 1}"\n' for at in range(1_000)) + "[queue.q1000]\n"
    began = time.process_time()
    assert len(loads(chain).queue) == 1_001
    assert time.process_time() - began < 10  # it took a minute for twice as many


@pytest.mark.feature("C60")
@pytest.mark.slow
def test_many_names_in_a_list_are_compared_at_once() -> None:
    names, began = [f"t{number}" for number in range(30_000)], time.process_time()
    points = [f"{name}:0:7" for name in names]
    loads(f"[queue.q]\ntopics = {names}\nrecovery_point = {points}")
    for key, twice in (("topics", "t7"), ("recovery_point", "t7:0:7")):
        with pytest.raises(ConfigError, match=twice.partition(":")[0]):
            loads(f"[queue.q]\n{key} = {[twice, *(names if key == 'topics' else points)]}")
    assert time.process_time() - began < 30  # it took minutes, and a client's definition stopped the worker so long


def test_what_is_asked_of_a_controller_is_split() -> None:
    requests = list(parts_of_request([1_500, 400, 300, 5_000, 1], lambda one: one))
    assert requests == [[1_500, 400], [300], [5_000], [1]]
