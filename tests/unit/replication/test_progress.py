"""The progress of a link is about two topics, not about their names (S10, C42)."""

import pytest

from lapse.replication.progress import Progress


@pytest.mark.feature("S10", "C42")
def test_a_topic_that_is_made_anew_on_either_side_is_read_from_its_beginning() -> None:
    before = Progress("A", "B", {"lapse.sow.prices": "1>2", "lapse.sow.orders": "5>6"})
    taken = [before.record("lapse.sow.prices", 0, 7), before.record("lapse.sow.orders", 1, 8)]
    for now, prices in {"1>2": 7, "3>2": None, "1>4": None}.items():
        progress = Progress("A", "B", {"lapse.sow.prices": now, "lapse.sow.orders": "5>6"})
        for key, value in taken:
            progress.take(key, value)
        assert progress.next_offset("lapse.sow.prices", 0) == prices
        assert progress.next_offset("lapse.sow.prices", 1) is None
        assert progress.next_offset("lapse.sow.orders", 1) == 8


@pytest.mark.feature("S10")
def test_what_an_older_version_wrote_counts_and_what_is_of_another_link_does_not() -> None:
    progress = Progress("A", "B", {"lapse.sow.prices": "1>2"})
    progress.take(b"A>B:lapse.sow.prices:0", b'{"offset": 9}')
    progress.take(*Progress("A", "C", {"lapse.sow.prices": "1>2"}).record("lapse.sow.prices", 0, 3))
    progress.take(*progress.opening())
    assert progress.next_offset("lapse.sow.prices", 0) == 9


@pytest.mark.feature("S10", "X7")
def test_what_anybody_may_write_to_the_topic_of_progress_is_passed_over() -> None:
    progress = Progress("A", "B", {"lapse.sow.prices": "1>2"})
    progress.take(b"A>B:lapse.sow.prices:0", b'{"offset": 9}')
    for key in (b"", b"\xff", b"A>B", b"A>B:", b"A>B:0", b"A>B:lapse.sow.prices:one", b"a:b"):
        progress.take(key, b'{"offset": 1}')
    for value in (b"", b"[", b"[" * 5_000, b"[]", b"1", b"null", b"{}", b'{"offset": null}', b'{"offset": "x"}'):
        progress.take(b"A>B:lapse.sow.prices:0", value)
    assert progress.next_offset("lapse.sow.prices", 0) == 9


@pytest.mark.feature("S10", "C42", "C56")
def test_a_replica_that_is_deleted_and_made_anew_gets_everything_again() -> None:
    """The topic that it reads may have lost what was copied long ago, and nobody would copy that again."""
    name, topics = "lapse.sow.prices", {"lapse.sow.prices": "1>2"}
    kept: dict[bytes, bytes | None] = {}

    def session(replica: str, at: int) -> int | None:
        """Begin with what is written, and copy up to an offset."""
        progress = Progress("A", "B", topics, {name: replica} if replica else {})
        for key, value in kept.items():
            progress.take(key, value)
        begun = progress.next_offset(name, 0)
        kept.update([progress.record(name, 0, at)])
        return begun

    assert session("", 3) is None
    assert session("old", 5) == 3, "it was created later than the link, and reads its topic from the beginning"
    assert session("", 7) == 5, "it is deleted"
    assert session("", 8) == 7
    assert session("old", 9) == 8, "it only could not be seen"
    assert session("new", 4) is None
    assert session("new", 9) == 4
