"""Records that are published together are waited for by one future (L2, X3)."""

import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest

from lapse.protocol.bookmark import Bookmark
from lapse_client import Publisher, PublishFailed
from lapse_client.error import InvalidPublication, UnknownEntity
from lapse_client.publisher.publication_batch import PublicationBatch
from unit.client.test_end_of_producer import FORBIDDEN, connection, memory


@pytest.mark.feature("L2", "X7")
def test_each_record_has_its_outcome_in_its_place() -> None:
    publications = [
        (b"a", "k", [("h", b"1")], {"ttl_ms": 5}),
        (b"b", None, None, {"ttl_ms": 1, "expires_at_ms": 2}),
        (None, "k", None, {"delta": True}),
        (b"c", None, None, {}),
    ]
    with Publisher(memory()) as publisher:
        first, lifetimes, nothing, last = publisher.submit_all("orders", publications).result(20)
        assert publisher.submit_all("orders", []).result(0) == []
        with pytest.raises(UnknownEntity):
            publisher.submit_all("nope", publications)
    assert (first, last) == (Bookmark("orders", 0, 0), Bookmark("orders", 0, 1))
    assert isinstance(lifetimes, InvalidPublication)
    assert "two lifetimes at once" in str(lifetimes)
    assert isinstance(nothing, InvalidPublication)


@pytest.mark.feature("L2", "X7")
@pytest.mark.parametrize(
    "last",
    [(b"b", None), b"babe", None, (b"b", None, None, None), (b"b", None, None, {"ttl": 5}), (b"b", None, None, {5: 5})],
)
def test_nothing_is_sent_if_a_later_record_is_malformed(last: Any) -> None:
    with Publisher(memory()) as publisher:
        with pytest.raises(InvalidPublication, match=r"^record 1: .*; nothing was sent$"):
            publisher.submit_all("orders", [(b"a", None, None, {}), last])
        assert publisher.submit_all("orders", [(b"a", None, None, {})]).result(20) == [Bookmark("orders", 0, 0)]


@pytest.mark.feature("X5", "X7")
@pytest.mark.parametrize("refuses_at_once", [False, True])
def test_all_outcomes_name_the_right_that_is_lacking(refuses_at_once: bool) -> None:
    with Publisher(connection(refuses_at_once)) as publisher:
        outcomes = publisher.submit_all("orders", iter([(b"x", None, None, {})] * 3)).result(20)
    assert len(outcomes) == 3
    for outcome in outcomes:
        assert isinstance(outcome, PublishFailed)
        assert FORBIDDEN in str(outcome)


def test_outcomes_of_many_threads_end_the_future_once() -> None:
    batch = PublicationBatch(1_000)

    def tell(part: int) -> None:
        for at in range(part, 1_000, 4):
            batch.set_outcome(at, Bookmark("orders", 0, at))

    threads = [threading.Thread(target=tell, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    assert [outcome.offset for outcome in batch.future.result(20) if isinstance(outcome, Bookmark)] == [*range(1_000)]
    for thread in threads:
        thread.join()


def test_nobody_may_wait_any_more() -> None:
    batch = PublicationBatch(1)
    batch.future.cancel()
    batch.set_outcome(0, Bookmark("orders", 0, 0))
    with pytest.raises(CancelledError):
        batch.future.result(0)
