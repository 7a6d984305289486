"""Reading a changelog in bulk is the same as record by record."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.shard.changelog import Changelog, claim_key, epoch_header, progress_key
from lapse.runtime.shard.kept_answers import KeptAnswers


class Read(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Unlookable(dict[bytes, bytes]):
    """The keys of a shard, through which nobody may go."""

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError


EPOCHS = st.integers(0, 3)
KEYS = st.one_of(
    st.sampled_from([b"ra", b"rb", b"", None]), EPOCHS.map(claim_key), EPOCHS.map(progress_key), st.just(b"\0x1")
)
HEADERS = st.one_of(
    EPOCHS.map(epoch_header), st.just([]), EPOCHS.map(lambda epoch: [("other", b"1"), *epoch_header(epoch)])
)
RECORDS = st.builds(Read, KEYS, st.sampled_from([b"1", b"2", None]), HEADERS)


@pytest.mark.feature("S9", "L9")
@given(st.lists(RECORDS, max_size=12), st.integers(0, 12))
def test_many_records_are_taken_in_as_one_by_one(records, cut):
    bulk, single = Changelog(), Changelog()
    taken = bulk.take_all(records[:cut]) + bulk.take_all(records[cut:])
    assert taken == [(one.key, one.value) for one in records if single.take(one.key, one.value, one.headers)]
    assert bulk == single
    assert list(bulk.latest) == list(single.latest)
    assert not [key for key in bulk.latest if key.startswith(b"\x00")]
    assert all(key.startswith(b"\x00") for key in bulk.runtime)


@pytest.mark.feature("S9", "C60")
def test_what_the_runtime_wrote_is_found_without_a_look_through_all_of_the_shard() -> None:
    """Of a million keys that took a tenth of a second, three times at each take-over."""
    changelog = Changelog(Unlookable())
    changelog.take_all(Read(key, b"1", epoch_header(1)) for key in (b"ra", claim_key(1), progress_key(1), b"\x00a1"))
    assert changelog.progress() == b"1"
    assert KeptAnswers(2, changelog.runtime)._left == {b"\x00a1": b"1"}
