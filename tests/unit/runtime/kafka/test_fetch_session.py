"""A fetch session: what a request names, and how it goes on after each kind of answer."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.protocol.fetch import FetchRequest_v4, FetchRequest_v7, FetchRequest_v11, FetchResponse_v11

from lapse.runtime.kafka.fetch_session import FetchSession, SessionRequest

LIMITS = {"max_wait_time": 500, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 1, "max_partition_bytes": 100}
A, B, C = (TopicPartition(topic, 0) for topic in "abc")


def asked(session: FetchSession, **wanted: int) -> SessionRequest:
    return session.request({TopicPartition(topic, 0): offset for topic, offset in wanted.items()}, **LIMITS)


def sent(request: SessionRequest) -> Any:
    """The request as the broker reads it."""
    return FetchRequest_v11.decode(request.build(FetchRequest_v11).encode())


def respond(request: SessionRequest, session_id: int, error: int = 0, topics: Any = ()) -> None:
    """Have aiokafka decode an answer."""
    answer = FetchResponse_v11(0, error, session_id, list(topics)).encode()
    request.build(FetchRequest_v11).RESPONSE_TYPE.decode(BytesIO(answer))


def named(request: SessionRequest) -> tuple[int, int, dict[str, int], list[str]]:
    """Session, epoch, offsets of partitions that are named, and topics that are forgotten."""
    found = sent(request)
    offsets = {topic: partitions[0][2] for topic, partitions in found.topics}
    return found.session_id, found.session_epoch, offsets, [topic for topic, _ in found.forgotten_topics_data]


def test_a_request_names_what_has_changed() -> None:
    session = FetchSession()
    first = asked(session, a=1, b=2)
    assert named(first) == (0, 0, {"a": 1, "b": 2}, [])
    assert not session.stands_at({A: 1, B: 2})  # it is not known whether the broker has heard
    respond(first, 7)
    assert session.stands_at({A: 1, B: 2})
    assert not session.stands_at({A: 1, B: 3})
    second = asked(session, a=1, b=2)
    assert named(second) == (7, 1, {}, [])
    respond(second, 7)
    third = asked(session, b=5, c=0)
    assert named(third) == (7, 2, {"b": 5, "c": 0}, ["a"])
    respond(third, 7)
    assert named(asked(session, a=1, b=5, c=0)) == (7, 3, {"a": 1}, [])


@pytest.mark.parametrize(("error", "session_id", "closes"), [(70, 0, 0), (71, 0, 7), (71, 7, 7), (0, 0, 0)])
def test_a_session_that_the_broker_does_not_go_on_with_begins_anew(error: int, session_id: int, closes: int) -> None:
    session = FetchSession()
    respond(asked(session, a=1), 7)
    respond(asked(session, a=2), session_id, error)
    assert named(asked(session, a=2, b=0)) == (closes, 0, {"a": 2, "b": 0}, [])


def test_a_request_without_an_answer_begins_the_session_anew() -> None:
    session = FetchSession()
    respond(asked(session, a=1), 7)
    lost = asked(session, a=2)
    again = asked(session, a=2)
    assert named(again) == (7, 0, {"a": 2}, [])
    respond(lost, 7)  # too late: it says nothing of the session that has begun since
    respond(again, 8)
    assert named(asked(session, a=2)) == (8, 1, {}, [])


def test_aiokafka_finds_the_offsets_of_what_the_answer_is_about() -> None:
    session = FetchSession()
    respond(asked(session, a=1, b=2), 7)
    quiet = asked(session, a=1, b=2)
    assert quiet.topics == []
    respond(quiet, 7, topics=[("b", [(0, 0, 9, 9, 0, [], -1, b"")])])
    assert quiet.topics == [("b", [(0, 2, 100)])]


def test_a_broker_that_knows_no_sessions_is_asked_for_everything() -> None:
    session = FetchSession()
    old = asked(session, a=1).build(FetchRequest_v4)
    assert FetchRequest_v4.decode(old.encode()).topics == [("a", [(0, 1, 100)])]
    old.RESPONSE_TYPE.decode(BytesIO(old.RESPONSE_TYPE.kind(0, []).encode()))  # type: ignore[attr-defined]
    assert named(asked(session, a=1)) == (0, 0, {"a": 1}, [])
    seven = FetchRequest_v7.decode(asked(session, a=1).build(FetchRequest_v7).encode())
    assert seven.topics == [("a", [(0, 1, -1, 100)])]
