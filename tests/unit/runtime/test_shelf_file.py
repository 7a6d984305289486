"""The shelf on disk: a mapping whose values are in a file that nobody else can see (Q16)."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.queue.shelf import Segments, Shelf
from lapse.runtime import shelf_file
from lapse.runtime.shelf_file import ShelfError, ShelfFile
from lapse.runtime.spill import Spill

SIZES = st.sampled_from([0, 1, 2_047, 2_048, 4_095, 4_096, 4_097, 30_000, 57_344, 57_345, 188_000])
DEEDS = st.lists(st.tuples(st.integers(0, 5), st.none() | SIZES), max_size=40)


@pytest.mark.feature("Q16")
@settings(deadline=None)
@given(DEEDS)
def test_it_is_a_dictionary(tmp_path_factory: pytest.TempPathFactory, deeds: list[tuple[int, int | None]]) -> None:
    directory = tmp_path_factory.mktemp("shelf")
    shelf, spill, expected = ShelfFile[int](directory), Spill(directory), dict[int, bytes]()
    for number, (key, size) in enumerate(deeds):
        if size is None:
            for one in (shelf, spill, expected):
                one.pop(key if one is not spill else b"%d" % key, None)
        else:
            shelf[key] = spill[b"%d" % key] = expected[key] = bytes([number]) * size
        assert shelf == expected
        assert spill == {b"%d" % known: value for known, value in expected.items()}
        assert (len(shelf), len(spill)) == (len(expected), len(expected))
    places = sorted((at, at + shelf_file._room(size)) for at, size in shelf._places.values())
    assert all(before[1] <= after[0] for before, after in pairwise(places)), "one over another"
    assert list(directory.iterdir()) == []
    spill.clear()
    shelf.clear()
    assert (len(shelf), len(spill), dict(spill)) == (0, 0, {})
    shelf.close()


@pytest.mark.feature("Q16")
def test_holes_are_filled_again_and_an_empty_shelf_takes_no_space(tmp_path: Path) -> None:
    shelf = ShelfFile[int](tmp_path)
    for turn in range(50):
        for key in range(10):
            shelf[key] = os.urandom(53_000 + 100 * (turn + key))
        for key in range(0, 10, 2):
            del shelf[key]
    assert os.fstat(shelf._file.fileno()).st_size <= 3 * 10 * 65_536
    for key in list(shelf):
        del shelf[key]
    assert os.fstat(shelf._file.fileno()).st_size == 0


@pytest.mark.feature("Q16")
def test_the_core_takes_it_for_its_shelf(tmp_path: Path) -> None:
    shelf: Shelf = ShelfFile[int](tmp_path / "made" / "if missing")
    assert Segments(shelf, 1).in_memory == 0


@pytest.mark.feature("Q16", "X7")
def test_a_directory_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(ShelfError, match=r"a file: state cannot be kept there: .*data_dir, or .* state = \"memory\""):
        ShelfFile[int](tmp_path / "a file")


@pytest.mark.feature("Q16", "X7")
def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = ShelfFile[int](tmp_path)
    shelf[1] = b"x" * 10_000
    monkeypatch.setattr(os, "pwrite", lambda _, data, at: len(data) - 1)
    with pytest.raises(ShelfError, match="no space left"):
        shelf[2] = b"y" * 10_000
    os.ftruncate(shelf._file.fileno(), 5_000)
    with pytest.raises(ShelfError, match="10000 bytes were written, 5000 can be read"):
        shelf[1]
