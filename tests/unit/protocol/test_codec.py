"""Avro single-object encoding of the protocol's records, and what damage does."""

import pytest
from fastavro.schema import fullname
from hypothesis import given
from hypothesis import strategies as st

from lapse.protocol import answer, codec, command, event, schema
from lapse.protocol.answer import Answer, QueuedMessage, Settlement
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command import Command
from lapse.protocol.event import Event

TEXT = st.text(max_size=8)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
COMMANDS = st.builds(
    Command,
    command=TEXT,
    id=TEXT,
    answer=st.sampled_from(["all", "errors", "none"]),
    subscription=TEXT,
    bookmarks=st.lists(TEXT, max_size=2).map(tuple),
    filter=st.none() | TEXT.filter(bool),
    max_backlog=st.none() | st.integers(0, 1 << 40),
    keys=st.lists(st.binary(max_size=4), max_size=2).map(tuple),
    top_n=st.none() | st.integers(0, 9),
    leased=st.booleans(),
)
ANSWERS = st.builds(
    Answer,
    id=TEXT,
    command=TEXT,
    status=st.sampled_from(["ok", "error"]),
    error=TEXT,
    partition=st.integers(-1, 99),
    at_ms=INT64,
    settlements=st.lists(st.builds(Settlement, bookmarks=TEXT, result=TEXT), max_size=2).map(tuple),
    lease_until_ms=st.none() | INT64,
    counts=st.dictionaries(TEXT, INT64, max_size=2),
    messages=st.lists(st.builds(QueuedMessage, bookmark=TEXT, state=TEXT, until_ms=st.none() | INT64), max_size=2).map(
        tuple
    ),
)
EVENTS = st.builds(
    Event,
    entity=TEXT,
    event=TEXT,
    at_ms=INT64,
    partition=st.integers(0, 99),
    messages=st.lists(st.builds(BookmarkRange, TEXT, st.integers(0, 9), INT64, INT64), max_size=2).map(tuple),
    reasons=st.lists(TEXT, max_size=2).map(tuple),
    key=st.none() | st.binary(max_size=4),
    delivery_count=st.none() | st.integers(0, 99),
)


@pytest.mark.feature("X2")
@given(COMMANDS)
def test_a_command_reads_back_as_it_was_written(written):
    assert command.decode(command.encode(written)) == (written, "avro")


@pytest.mark.feature("X2")
@given(ANSWERS, st.sampled_from(["avro", "json"]))
def test_an_answer_reads_back_as_it_was_written_in_either_encoding(written, encoding):
    data = answer.encode(written, encoding)
    assert codec.is_avro(data) == (encoding == "avro")
    assert answer.decode(data) == written


@pytest.mark.feature("D4")
@given(EVENTS)
def test_an_event_reads_back_as_it_was_written(written):
    assert event.decode(event.encode(written)) == written


@pytest.mark.feature("X2")
@pytest.mark.parametrize("name", ["command", "answer", "event"])
def test_a_record_begins_with_the_marker_and_its_schemas_fingerprint(name):
    head = codec.header(name)
    assert head[:2] == bytes.fromhex("c301")
    assert len(head) == codec.HEADER_BYTES
    assert len({codec.header(other) for other in ("command", "answer", "event")}) == 3


@pytest.mark.parametrize("name", ["command", "answer", "event"])
def test_every_field_of_every_schema_says_what_it_means(name):
    def undocumented(tree):
        if isinstance(tree, dict):
            for field in tree.get("fields", ()):
                if not field.get("doc"):
                    yield f"{fullname(tree)}.{field['name']}"
                yield from undocumented(field["type"])
            yield from undocumented(tree.get("items"))
        elif isinstance(tree, list):
            for branch in tree:
                yield from undocumented(branch)

    assert list(undocumented(schema.parsed(name))) == []


@pytest.mark.feature("X7")
@given(COMMANDS, st.data())
def test_a_record_cut_short_or_lengthened_is_refused(written, data):
    whole = command.encode(written)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(codec.CodecError):
        codec.decode("command", whole[:cut])
    with pytest.raises(codec.CodecError, match="too many"):
        codec.decode("command", whole + b"\0")


@pytest.mark.feature("X7")
@given(st.binary(max_size=60))
def test_any_bytes_behind_a_right_head_raise_codec_error_at_most(body):
    for name in ("command", "answer", "event"):
        try:
            codec.decode(name, codec.header(name) + body)
        except codec.CodecError:
            continue


def test_a_record_of_another_schema_is_refused():
    with pytest.raises(codec.CodecError, match="not a event record|not an? event record"):
        event.decode(command.encode(Command(command="sow")))


def test_json_shows_bytes_as_text():
    assert codec.encode_json({"key": b"a\xff"}) == '{"key":"a�"}'.encode()
