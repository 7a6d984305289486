"""The recovery point of a queue, as `lapse.toml` says it (Q16, X7)."""

from pathlib import Path

import pytest

from lapse.config import ConfigError, load
from lapse.protocol.bookmark import Bookmark


def configured(directory: Path, value: str, more: str = "") -> object:
    file = directory / "lapse.toml"
    file.write_text(f"[queue.orders]\n{more}\nrecovery_point = {value}\n", encoding="utf-8")
    return load(file).queue["orders"].recovery_point


@pytest.mark.feature("Q16")
@pytest.mark.parametrize(
    ("value", "read"),
    [
        ('"beginning"', "beginning"),
        ('"end"', "end"),
        ("1767225600000", 1_767_225_600_000),
        ("253402300799999", 253_402_300_799_999),
        ('"2026-01-01T00:00:00Z"', 1_767_225_600_000),
        ('"2026-01-01T00:00:00"', 1_767_225_600_000),  # the bookmark of no topic 2026-01-01T00
        ('"2026-01-01 01:00+01:00"', 1_767_225_600_000),
        ("2026-01-01T00:00:00.250Z", 1_767_225_600_250),
        ("2026-01-01T00:00:00", 1_767_225_600_000),
        ("2026-01-01", 1_767_225_600_000),
        ('"orders:0:1200"', (Bookmark("orders", 0, 1200),)),
        ('["orders:0:1200", "orders:1:7"]', (Bookmark("orders", 0, 1200), Bookmark("orders", 1, 7))),
    ],
)
def test_a_recovery_point_is_read(tmp_path: Path, value: str, read: object) -> None:
    assert configured(tmp_path, value) == read


@pytest.mark.feature("Q16", "X7")
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('"middle"', "orders:0:1200"),
        ('"orders:0"', "bookmark 'orders:0'"),
        ('"2026-13-01T00:00"', 'an instant such as "2026-01-31T12:00:00Z"'),
        ("12:00:00", "not datetime.time(12, 0)"),
        ('"orders:0:1-2"', "expected one message"),
        ('"orders:0:1#2"', "expected one message"),
        ("-1", "not -1"),
        ("1796005591", "1796005591 looks like seconds since the epoch"),
        ("253402300800000", "the latest is 253402300799999"),
        ("9223372036854775808", "no instant in ms since the epoch"),
        ("true", "not True"),
        ("1.5", "not 1.5"),
        ("[]", "not []"),
        ('["orders:0:1", 5]', "a list of bookmarks"),
        ('["orders:0:1", "end"]', "bookmark 'end'"),
        ('["orders:0:1", "orders:0:2"]', "two bookmarks for orders:0"),
        ('"invoices:0:1"', "none of the queue's topics: orders"),
    ],
)
def test_anything_else_is_refused_with_what_is_expected(tmp_path: Path, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configured(tmp_path, value)
    assert "recovery_point" in str(refused.value)
    assert words in str(refused.value)


@pytest.mark.feature("Q16", "Q2")
def test_a_bookmark_may_be_of_any_topic_that_the_queue_reads(tmp_path: Path) -> None:
    more = 'topic_pattern = "orders-.*"\ndefault_publish_target = "orders-a"'
    assert configured(tmp_path, '"orders-b:0:1"', more) == (Bookmark("orders-b", 0, 1),)
    with pytest.raises(ConfigError, match="none of the queue's topics"):
        configured(tmp_path, '"invoices:0:1"', more)
