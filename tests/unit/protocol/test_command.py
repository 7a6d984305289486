"""Commands as clients without our library send them, and what is said about bad ones."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.protocol import codec, command, schema
from lapse.protocol.command import Command, CommandError


@pytest.mark.feature("X2")
def test_plain_json_is_a_command_with_keys_as_text():
    read, encoding = command.decode(b'{"command": "sow_delete", "id": "7", "keys": ["a", "\xc3\xa4"], "bookmarks": []}')
    assert encoding == "json"
    assert read == Command(command="sow_delete", id="7", keys=(b"a", "ä".encode()))


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "empty record"),
        (b"", "empty record"),
        (b"subscribe", "neither Avro single-object encoding nor JSON"),
        (b"[1]", "expected a JSON object, found an array"),
        (b"{}", "field command: required"),
        (b'{"command": 1}', "field command: expected a text"),
        (b'{"command": "sow", "filtr": "x"}', "field filtr: unknown; did you mean 'filter'?"),
        (b'{"command": "sow", "top_n": -1}', "top_n"),
        (b'{"command": "sow", "top_n": "5"}', "top_n"),
        (b'{"command": "sow", "top_n": 1.0}', "top_n"),
        (b'{"command": "sow", "batch_size": 0}', "batch_size"),
        (b'{"command": "renew", "lease_ms": 0}', "lease_ms"),
        (b'{"command": "sow", "keys": [1]}', "keys.0"),
        (b'{"command": "sow", "keys": "a"}', "keys"),
        (b'{"command": "cancel", "bookmarks": "t:0:1"}', "bookmarks"),
        (b'{"command": "sow", "answer": "maybe"}', "answer"),
        (b'{"command": "sow", "leased": "yes"}', "leased"),
        (
            b'{"command": "sow_delete", "filter": ""}',
            "field filter: is empty; leave it out, or send TRUE for everything",
        ),
        (b'{"command": "purge", "filter": ""}', "field filter: is empty"),
        (b'{"command": "subscribe", "subscription": "s", "filter": ""}', "field filter: is empty"),
        (b'{"command": "sow", "filter": ""}', "field filter: is empty"),
        (b'{"command": "transfer", "transfer": "t", "spare": true, "filter": ""}', "field filter: is empty"),
        (command.encode(Command(command="subscribe", subscription="s", filter="")), "field filter: is empty"),
        (b'{"command": "create_queue", "entity": "q", "settings": ""}', "field settings: is empty; leave it out"),
        (b'{"command": "subscribe", "subscription": "s", "heartbeat_timeout_ms": 99}', "expected 100 or more"),
        (b'{"command": "expire", "bookmarks": [], "filter": ""}', "field filter: is empty"),
        (b"\xc3\x01damaged", "command"),
        (b"\xff\xfe", "neither"),
    ],
)
def test_a_bad_command_is_refused_with_the_field(data, text):
    with pytest.raises(CommandError, match=text):
        command.decode(data)


@pytest.mark.feature("X7")
def test_a_refused_command_still_says_whom_to_answer():
    with pytest.raises(CommandError) as caught:
        command.decode(b'{"command": "sow", "id": "7", "subscription": "s", "nonsense": 1}')
    refused = caught.value
    assert (refused.id, refused.command, refused.subscription, refused.encoding) == ("7", "sow", "s", "json")
    with pytest.raises(CommandError) as caught:
        command.decode(b'{"command": ["sow"], "id": 7}')
    assert (caught.value.id, caught.value.command) == ("", "")


@pytest.mark.feature("X7")
@given(st.binary(max_size=80))
def test_any_bytes_raise_command_error_at_most(data):
    try:
        command.decode(data)
    except CommandError as refused:
        assert str(refused)  # noqa: PT017


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    "body",
    [
        b"{%s}" % b",".join(b'"field-number-%d": 1' % at for at in range(75_000)),
        b'{"command": "sow", "keys": [%s1]}' % (b"1," * 900_000),
        b'{"command": "acknowledge", "bookmarks": [%s]}' % b",".join([b"1"] * 20_000),
        b'{"command": "acknowledge", "bookmarks": [%s1]}' % (b"1," * 900_000),
        b'{"command": "sow", "%s": 1}' % (b"filter" * 300_000),
        b'{"command": "sow", "filter": [%s1]}' % (b"1," * 900_000),
    ],
    ids=["fields", "keys", "bookmarks", "too many bookmarks", "a long field", "a long array"],
)
def test_a_command_with_any_number_of_faults_is_refused_in_a_moment_and_a_few_words(body):
    began = time.process_time()
    with pytest.raises(CommandError) as caught:
        command.decode(body)
    assert time.process_time() - began < 2, "linear: some milliseconds; each name compared with each field: 26 s"
    assert len(str(caught.value)) < 1_000


@pytest.mark.feature("X7")
def test_unknown_fields_are_named_up_to_five_and_counted():
    with pytest.raises(CommandError, match=r"field a0: unknown.*field a4: unknown.*; and 3 more faults$"):
        command.decode(b"{%s}" % b",".join(b'"a%d": 1' % at for at in range(8)))


@pytest.mark.feature("X7")
def test_a_command_that_is_too_large_is_refused_unread():
    with pytest.raises(CommandError, match="a command has 2,097,152 at most") as caught:
        command.decode(b'{"command": "sow", "keys": ["%s"], "id": "7"}' % (b"k" * (2 << 20)))
    assert caught.value.id == "7", "whoever waits for the answer gets it"


@pytest.mark.feature("X7")
@pytest.mark.parametrize("field", ["command", "filter", "keys", "bookmarks", "top_n", "leased"])
def test_a_nested_value_is_refused_however_deep(field):
    for depth in (500, 1_000):
        with pytest.raises(CommandError, match=field):
            command.decode(b'{"command": "sow", "%s": %s1%s}' % (field.encode(), b"[" * depth, b"]" * depth))


@pytest.mark.feature("X2")
def test_an_avro_command_states_what_is_no_default_and_is_checked_as_json_is():
    stated = Command(command="cancel", id="7", answer="errors", bookmarks=("a:0:1",), delay_ms=0, dry_run=True, skip=0)
    assert command.decode(command.encode(stated)) == (stated, "avro")
    with pytest.raises(CommandError, match="field top_n: expected 0 or more") as refused:
        command.decode(command.encode(Command(command="sow", id="8", subscription="s", top_n=-1)))
    assert (refused.value.id, refused.value.command, refused.value.subscription) == ("8", "sow", "s")


@pytest.mark.feature("X2")
def test_what_a_sender_states_as_it_sends_stands_in_place_of_the_fields():
    own = Command(command="depth", id="1", client="a")
    read, _ = command.decode(command.encode(own, {"id": "2", "client": "b"}))
    assert read == Command(command="depth", id="2", client="b")


TEXTS = st.sampled_from(["", "s", "ä" * 70, "inline", "new"])
STATED = {
    "command": st.sampled_from(["acknowledge", "subscribe", ""]),
    "bookmarks": st.lists(TEXTS, max_size=3).map(tuple),
    **dict.fromkeys(("id", "subscription", "client", "entity", "fault", "to"), TEXTS),
    "filter": st.none() | TEXTS,
    "answer": st.sampled_from(["all", "errors"]),
    "skip": st.none() | st.integers(0, 300),
    "leased": st.booleans(),
    "least_life_ms": st.integers(0, 2),
    "state": TEXTS,
}


@pytest.mark.feature("X2")
@given(st.lists(st.sampled_from(sorted(STATED)), max_size=4), st.data(), st.booleans())
def test_commands_whose_other_fields_have_defaults_have_the_bytes_that_avro_gives_them(
    names: list[str], data: st.DataObject, stamped: bool
) -> None:
    own = Command(**{"command": "depth", **{name: data.draw(STATED[name]) for name in names}})
    stamp = {"id": "7", "client": "c"} if stamped else {}
    every = {name: getattr(own, name) for name in command.FIELDS} | stamp
    whole = codec.encode("command", every)
    assert command.encode(own, stamp) == whole
    first = codec.decode_before("command", whole, command._LAST, command._default_end())
    decoded = codec.decode("command", whole)
    assert first is None or first == {name: decoded[name] for name in command._FIRST}
    assert (first is not None) == all(every[name] == command._DEFAULTS[name] for name in command._REST)


@pytest.mark.feature("X2")
def test_the_fields_that_commands_state_come_first() -> None:
    names = tuple(field["name"] for field in schema.parsed("command")["fields"])
    assert names[: len(command._FIRST)] == command._FIRST


@pytest.mark.feature("X7")
def test_what_is_behind_the_first_fields_of_a_damaged_command_is_not_taken_for_defaults() -> None:
    whole = command.encode(Command(command="acknowledge", bookmarks=("a:0:1",)))
    for damaged in (whole[:10] + command._default_end(), whole[:-1], whole + b"\0", b"\0" + whole):
        with pytest.raises(CommandError):
            command.decode(damaged)
