"""Whether an entity acted on lifetimes at an instant, from its definitions (D7, L6, L9)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lapse_client import Bookmark, Connection, Replayed
from lapse_spark.instant.expiration import is_enforced, setting

T = 1_700_000_000_000


def record(key: str, at: int, settings: dict[str, object] | None) -> Replayed:
    value = None if settings is None else json.dumps({"kind": "queue", "version": 1, "settings": settings}).encode()
    place = Bookmark("lapse.definitions.lapse", 0, at)
    return Replayed(bookmark=place, key=key.encode(), value=value, timestamp_ms=T + at, headers=[])


@pytest.mark.feature("D7", "L6", "L9")
@pytest.mark.parametrize(
    ("at", "said"), [(0, "enabled"), (10, "enabled"), (19, "enabled"), (20, "disabled"), (35, "disabled"), (40, "45s")]
)
def test_the_definition_of_the_instant_counts_or_else_the_next_one(at: int, said: str) -> None:
    published = [
        record("other", 0, {}),
        record("orders", 10, {"expiration": "enabled"}),
        record("orders", 20, {}),
        record("orders", 30, None),
        record("orders", 40, {"expiration": "45s"}),
    ]
    assert setting(published, "orders", T + at) == said


@pytest.mark.feature("D7", "X7")
@pytest.mark.parametrize("value", [b"", b"no", b"[]", b"1", b'{"settings": 1}', b"{}", b'{"settings": null}'])
def test_a_record_that_is_no_definition_says_nothing(value: bytes) -> None:
    foreign = replace(record("orders", 20, {}), value=value)
    assert setting([record("orders", 10, {"expiration": "45s"}), foreign], "orders", T + 30) == "45s"
    assert setting([foreign], "orders", T + 30) is None


@pytest.mark.feature("D7", "L6")
def test_without_definitions_the_file_says_it_and_without_a_file_lifetimes_count(tmp_path: Path) -> None:
    file = tmp_path / "lapse.toml"
    file.write_text('[queue.kept]\n[sow.prices]\nexpiration = "1h"\n')
    nowhere = Connection("127.0.0.1:1")
    there = ["lapse.definitions.lapse.commands", "lapse.definitions.lapse.deliveries"]
    found = {one: is_enforced(nowhere, there, None, one, T, file) for one in ("kept", "prices", "unknown")}
    assert found == {"kept": False, "prices": True, "unknown": True}
    assert is_enforced(nowhere, there, None, "kept", T, None)
    assert setting([record("other", 0, {})], "orders", T) is None
