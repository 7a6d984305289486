"""What the client reads from a dead letter, whoever wrote it."""

import struct

import pytest

from lapse.protocol.bookmark import Bookmark
from lapse_client.letters.dead_letter import DeadLetter, parse_letter
from lapse_client.reading.replay import Replayed
from support.kafka.other_letters import OTHERS, RECORDED

Headers = list[tuple[str, bytes | None]]

LAPSE: Headers = [
    ("__dlq.errors.topic", b"orders"),
    ("__dlq.errors.partition", b"3"),
    ("__dlq.errors.offset", b"7"),
    ("__dlq.errors.group", b"q"),
    ("lapse-reasons", b"time_limit"),
    ("lapse-id", b"q/orders:3:7/0"),
]


def read(headers: Headers, topic: str = "dlq.orders") -> DeadLetter:
    return parse_letter(Replayed(bookmark=Bookmark(topic, 0, 1), key=b"k", value=b"v", timestamp_ms=5, headers=headers))


@pytest.mark.feature("C54", "D5")
@pytest.mark.parametrize("family", OTHERS)
def test_letters_of_other_systems_tell_where_their_messages_came_from(family: str) -> None:
    """As they tell it to Spark."""
    letter = read([*OTHERS[family]])
    assert letter.origin == Bookmark("orders", 3, 7)
    assert (letter.entity, list(letter.reasons), letter.message) == RECORDED[family]
    assert letter.lapse_id == ""


@pytest.mark.feature("C54", "C30")
def test_a_first_letter_that_was_redriven_tells_its_message_s_deadline() -> None:
    """It does not count as that of a letter's letter, which has one of its own or none."""
    known: Headers = [*LAPSE, ("lapse-first-expires-at-ms", b"80")]
    assert read(known).expires_at_ms == 80
    assert read([*known, ("lapse-expires-at-ms", b"98")]).expires_at_ms == 80
    assert read([*known, ("lapse-first-id", b"p/t:0:1/0")]).expires_at_ms is None


@pytest.mark.feature("C54")
def test_the_first_of_several_origins_that_spring_has_piled_up_counts() -> None:
    again: Headers = [
        ("kafka_dlt-original-topic", b"orders-retry-0"),
        ("kafka_dlt-original-partition", struct.pack(">i", 0)),
        ("kafka_dlt-original-offset", struct.pack(">q", 99)),
        ("kafka_dlt-exception-message", b"at last"),
    ]
    letter = read([*OTHERS["spring"], *again])
    assert (letter.origin, letter.message) == (Bookmark("orders", 3, 7), "at last")


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("__dlq.errors.topic", b""),
        ("__dlq.errors.topic", None),
        ("__dlq.errors.partition", b"-1"),
        ("__dlq.errors.partition", b"2147483648"),
        ("__dlq.errors.partition", "\N{ARABIC-INDIC DIGIT THREE}".encode()),
        ("__dlq.errors.offset", b"seven"),
        ("__dlq.errors.offset", b"9" * 5_000),
        ("__dlq.errors.offset", b"%d" % (1 << 48)),
    ],
)
def test_a_letter_whose_origin_nobody_can_read_has_none(name: str, value: bytes | None) -> None:
    letter = read([*LAPSE, (name, value)])
    assert (letter.origin, letter.entity, letter.reasons) == (None, "q", ("time_limit",))


@pytest.mark.feature("X7")
@pytest.mark.parametrize("family", ["spring"])
@pytest.mark.parametrize("value", [b"\x03", b"\xff\xff\xff\xff", None])
def test_a_binary_number_of_another_width_or_sign_is_none(family: str, value: bytes | None) -> None:
    kept = [(name, stated) for name, stated in OTHERS[family] if name != "kafka_dlt-original-partition"]
    assert read([*kept, ("kafka_dlt-original-partition", value)]).origin is None


@pytest.mark.feature("X7")
@pytest.mark.parametrize("digits", [20, 5_000])
def test_numbers_that_nobody_can_mean_count_as_not_given(digits: int) -> None:
    names = ("lapse-redriven-count", "lapse-cancel-count", "lapse-expired-at-ms", "__dlq.errors.delivery.count")
    letter = read([*LAPSE, *((name, b"9" * digits) for name in names)])
    assert (letter.redriven_count, letter.cancel_count, letter.expired_at_ms, letter.delivery_count) == (0, 0, None, 0)


def test_a_record_that_is_no_letter_tells_nothing() -> None:
    letter = read([("trace", b"t")])
    assert (letter.origin, letter.entity, letter.reasons, letter.message) == (None, "", (), "")
