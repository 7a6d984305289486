"""The spill store on disk: a mapping whose values are in a file that nobody else can see (Q16)."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.queue.segments.spill import Segments, SpillStore
from lapse.runtime.journal import spill_file
from lapse.runtime.journal.spill import Spill
from lapse.runtime.journal.spill_file import SpillError, SpillFile

SIZES = st.sampled_from([0, 1, 2_047, 2_048, 4_095, 4_096, 4_097, 30_000, 57_344, 57_345, 188_000])
DEEDS = st.lists(st.tuples(st.integers(0, 5), st.none() | SIZES), max_size=40)


@pytest.mark.feature("Q16")
@settings(deadline=None)
@given(DEEDS)
def test_it_is_a_dictionary(tmp_path_factory: pytest.TempPathFactory, deeds: list[tuple[int, int | None]]) -> None:
    directory = tmp_path_factory.mktemp("spill_store")
    spill_store, spill, expected = SpillFile[int](directory), Spill(directory), dict[int, bytes]()
    for number, (key, size) in enumerate(deeds):
        if size is None:
            for one in (spill_store, spill, expected):
                one.pop(key if one is not spill else b"%d" % key, None)
        else:
            spill_store[key] = spill[b"%d" % key] = expected[key] = bytes([number]) * size
        assert spill_store == expected
        assert spill == {b"%d" % known: value for known, value in expected.items()}
        assert (len(spill_store), len(spill)) == (len(expected), len(expected))
    places = sorted((at, at + spill_file._room(size)) for at, size in spill_store._places.values())
    assert all(before[1] <= after[0] for before, after in pairwise(places)), "one over another"
    assert list(directory.iterdir()) == []
    spill.clear()
    spill_store.clear()
    assert (len(spill_store), len(spill), dict(spill)) == (0, 0, {})
    spill_store.close()


@pytest.mark.feature("Q16")
def test_holes_are_filled_again_and_an_empty_file_takes_no_space(tmp_path: Path) -> None:
    spill_store = SpillFile[int](tmp_path)
    for turn in range(50):
        for key in range(10):
            spill_store[key] = os.urandom(53_000 + 100 * (turn + key))
        for key in range(0, 10, 2):
            del spill_store[key]
    assert os.fstat(spill_store._file.fileno()).st_size <= 3 * 10 * 65_536
    for key in list(spill_store):
        del spill_store[key]
    assert os.fstat(spill_store._file.fileno()).st_size == 0


@pytest.mark.feature("Q16")
def test_the_core_takes_it_for_its_spill_store(tmp_path: Path) -> None:
    spill_store: SpillStore = SpillFile[int](tmp_path / "made" / "if missing")
    assert Segments(spill_store, 1).in_memory == 0


@pytest.mark.feature("Q16", "X7")
def test_a_directory_that_cannot_be_written_is_reported_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(SpillError, match=r"a file: state cannot be kept there: .*data_dir, or .* state = \"memory\""):
        SpillFile[int](tmp_path / "a file")


@pytest.mark.feature("Q16", "X7")
def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spill_store = SpillFile[int](tmp_path)
    spill_store[1] = b"x" * 10_000
    monkeypatch.setattr(os, "pwrite", lambda _, data, at: len(data) - 1)
    with pytest.raises(SpillError, match="no space left"):
        spill_store[2] = b"y" * 10_000
    os.ftruncate(spill_store._file.fileno(), 5_000)
    with pytest.raises(SpillError, match="10000 bytes were written, 5000 can be read"):
        spill_store[1]
