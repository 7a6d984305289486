"""Redrive: which letters, where to, with which headers; nothing is sent here."""

from typing import Any

import orjson
import pytest

from lapse.core.sow.arrival.origin import ORIGIN, ORIGIN_BOOKMARK, ORIGIN_TARGET, ORIGIN_TIMESTAMP_MS
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.redrive import partition_fault
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.letters.redrive import Choice, Line, Target, plan
from lapse_client.letters.redriven import Redriven, letter_name

pytestmark = pytest.mark.feature("D5")

FIELDS: dict[str, Any] = {
    "key": b"k",
    "value": b'{"price": 5}',
    "bookmark": Bookmark("dlq.q", 0, 1),
    "timestamp_ms": 2_000,
    "origin": Bookmark("orders", 2, 7),
    "entity": "q",
    "reasons": ("time_limit",),
    "message": "",
    "delivery_count": 1,
    "cancel_count": 0,
    "expires_at_ms": 900,
    "expired_at_ms": 1_000,
    "redriven_count": 1,
    "lapse_id": "q/orders:2:7/1",
    "headers": [
        ("trace", b"t"),
        ("trace", b"u"),
        ("lapse-original-ttl-ms", b"5"),
        ("lapse-message-id", b"mine"),
        ("lapse-redrive-queue", b"older"),
        ("lapse-redriven-count", b"1"),
        ("__dlq.errors.topic", b"orders"),
        ("lapse-expires-at-ms", b"900"),
    ],
}


def letter(**changes: Any) -> DeadLetter:
    return DeadLetter(**{**FIELDS, **changes})


def planned(*letters: DeadLetter, target: Target = Target(), **choice: Any) -> list[Line]:  # noqa: B008
    return list(plan(letters, Choice(**choice), target, now_ms=950))


@pytest.mark.feature("C84")
@pytest.mark.parametrize(
    ("changes", "why"), [({"value": None}, "no payload"), ({"unconfirmed_transfer": "q/t-1"}, "unconfirmed transfer")]
)
def test_what_is_no_message_is_refused_and_counted(changes: dict[str, Any], why: str) -> None:
    assert [line.refused for line in planned(letter(**changes), letter())] == [why, ""]


@pytest.mark.feature("C84")
def test_the_letter_of_a_null_value_is_sent_as_null() -> None:
    """One that does not say so has lost its payload."""
    said = ("lapse-null-value", b"true")
    (line,) = planned(letter(value=None, null_value=True, headers=[*FIELDS["headers"], said]))
    assert (line.letter.value, line.refused) == (None, "")
    assert said not in line.headers


@pytest.mark.feature("C29", "C30", "X6")
def test_back_home_without_a_lifetime_of_its_own() -> None:
    (line,) = planned(letter())
    assert (line.topic, line.partition, line.refused, line.deadline_passed) == ("orders", 2, "", True)
    assert line.headers == [
        ("trace", b"t"),
        ("trace", b"u"),
        ("lapse-original-ttl-ms", b"5"),
        ("lapse-redriven-count", b"2"),
        ("lapse-message-id", b"redrive/q/orders:2:7/1"),
        ("lapse-redrive-queue", b"q"),
    ]


@pytest.mark.feature("C30")
@pytest.mark.parametrize(
    ("target", "expires_at_ms", "stated"),
    [
        (Target(lifetime="new", ttl_ms=30_000), 900, ("lapse-ttl-ms", b"30000")),
        (Target(lifetime="original"), 900, ("lapse-expires-at-ms", b"900")),
        (Target(lifetime="original"), None, None),
    ],
)
def test_a_lifetime_on_request(target: Target, expires_at_ms: int | None, stated: tuple[str, bytes] | None) -> None:
    (line,) = planned(letter(expires_at_ms=expires_at_ms), target=target)
    found = [item for item in line.headers if item[0] in ("lapse-ttl-ms", "lapse-expires-at-ms")]
    assert found == ([] if stated is None else [stated])


@pytest.mark.feature("C30", "S10")
def test_what_a_link_had_brought_is_published_anew() -> None:
    """Its shard would take it for the old update, without the default lifetime, and tell no other deployment."""
    names = {ORIGIN, ORIGIN_TIMESTAMP_MS, ORIGIN_BOOKMARK, ORIGIN_TARGET}
    brought = [(name, b"A") for name in names]
    for target in (Target(), Target(topic="other")):
        (line,) = planned(letter(headers=[*FIELDS["headers"], *brought]), target=target)
        assert names.isdisjoint(name for name, _ in line.headers)


@pytest.mark.feature("C29", "C54")
def test_a_letter_of_another_system_names_no_queue() -> None:
    """What a share group or a connector lost is for every queue of the topic."""
    (line,) = planned(letter(lapse_id="", entity="share-1", headers=[("trace", b"t")]))
    assert line.headers == [("trace", b"t"), ("lapse-redriven-count", b"2")]


@pytest.mark.parametrize(
    ("origin", "why"),
    [
        (Bookmark("orders", 2, 7), ""),
        (Bookmark("orders", 3, 7), "no such partition"),
        (Bookmark("gone", 0, 7), "no such topic"),
        (Bookmark("lapse.q.commands", 0, 7), "not a topic for letters"),
        (Bookmark("bb-q-changelog", 0, 7), "not a topic for letters"),
    ],
)
def test_a_letter_whose_origin_is_not_there_is_refused_and_counted(origin: Bookmark, why: str) -> None:
    """It would keep all others back, or be a command to lapse."""
    assert partition_fault(origin.topic, origin.partition, {"orders": 3, "lapse.q.commands": 1}) == why


def test_elsewhere_the_key_decides_and_no_queue_is_named() -> None:
    (line,) = planned(letter(origin=None), target=Target(topic="other"))
    assert (line.topic, line.partition, line.refused) == ("other", None, "")
    assert "lapse-redrive-queue" not in dict(line.headers)


def test_no_letter_is_sent_to_a_dead_letter_topic_unless_it_came_from_there() -> None:
    """A plain record on it would be a letter of nobody; a queue over it has letters, too (C54)."""
    to_letters = planned(letter(), letter(origin=None), target=Target(topic="dlq.other"))
    assert [line.refused for line in to_letters] == ["not a topic for letters"] * 2
    (back,) = planned(letter(origin=Bookmark("dlq.orders", 0, 3)))
    assert (back.topic, back.refused) == ("dlq.orders", "")
    assert partition_fault("dlq.orders", 0, {"dlq.orders": 1}) == ""


@pytest.mark.parametrize(
    ("changes", "limit", "refused"),
    [
        ({"redriven_count": 3}, 3, "loop limit"),
        ({"redriven_count": 2}, 3, ""),
        ({"redriven_count": 3}, 4, ""),
        ({"origin": None}, 3, "no origin"),
    ],
)
def test_what_is_refused_and_why(changes: dict[str, Any], limit: int, refused: str) -> None:
    assert [line.refused for line in planned(letter(**changes), max_redrives=limit)] == [refused]


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ({}, True),
        ({"entity": "q"}, True),
        ({"entity": "other"}, False),
        ({"reasons": frozenset({"purged", "time_limit"})}, True),
        ({"reasons": frozenset({"purged"})}, False),
        ({"since_ms": 1_000}, True),
        ({"since_ms": 1_001}, False),
        ({"until_ms": 1_001}, True),
        ({"until_ms": 1_000}, False),
        ({"filter": "/price > 4"}, True),
        ({"filter": "/price > 5"}, False),
    ],
)
def test_chosen_by_entity_reason_time_and_expression(choice: dict[str, Any], chosen: bool) -> None:
    assert bool(planned(letter(), **choice)) is chosen


def test_a_payload_that_is_no_json_matches_no_filter_on_it() -> None:
    assert planned(letter(value=b"\xff"), filter="/price > 4") == []
    assert planned(letter(value=None), filter="/price IS NULL") != []


@pytest.mark.feature("C58", "X7")
def test_what_is_no_note_of_a_redrive_is_passed_over() -> None:
    redriven = Redriven(None)  # type: ignore[arg-type]  # nothing is read here
    one, other = letter(), orjson.dumps({"first": "a", "times": 2})
    for value in (
        b"",
        b"[",
        b"[]",
        b"1",
        b'{"first": "a"}',
        b'{"first": ["a"], "times": 1}',
        b'{"first":"a","times":"2"}',
    ):
        redriven.take(letter_name(one).encode(), value)
    for key in (None, b"\xff"):
        redriven.take(key, other)
    assert redriven.sent(one) == 0
    redriven.take(*redriven.note(one))
    assert redriven.sent(one) == 1
