"""Which shards a worker had is a hint in its data directory, and no more."""

from pathlib import Path

import pytest

from lapse.runtime.journal.pre_read import PreRead


@pytest.mark.feature("S9", "Q16")
def test_what_a_worker_had_is_noted_as_far_as_it_still_exists(tmp_path: Path) -> None:
    path = tmp_path / "tables" / "prices.shards"
    assert PreRead(path).shards(4) == set()
    PreRead(path).note({3, 1, 0})
    assert PreRead(path).shards(4) == {0, 1, 3}
    assert PreRead(path).shards(2) == {0, 1}
    PreRead(path).note(())
    assert PreRead(path).shards(4) == set()


@pytest.mark.parametrize("text", ["", "{", "7", '["x"]', "[null]"])
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.shards"
    path.write_text(text)
    assert PreRead(path).shards(4) == set()


def test_a_note_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    PreRead(tmp_path / "file" / "prices.shards").note({1})
