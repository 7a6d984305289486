"""`lapse publish` shows the bookmarks of all records that Kafka has, and names those that it refused (X3, X7)."""

from concurrent.futures import Future

import pytest

from lapse.cli.publish import _Reports
from lapse.protocol.bookmark import Bookmark
from lapse_client.error import PublishFailed


def reported(offset: int, cause: str = "") -> "Future[Bookmark]":
    future: Future[Bookmark] = Future()
    if cause:
        future.set_exception(PublishFailed("orders", None, cause))
    else:
        future.set_result(Bookmark("orders", 0, offset))
    return future


@pytest.mark.feature("X7")
def test_a_refused_record_is_named_and_hides_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    reports, late = _Reports(as_json=False), Future[Bookmark]()
    for one in (reported(0), reported(1, "too large"), late, reported(3)):
        reports.add(one)
    reports.show(wait=False)
    assert capsys.readouterr().out == "orders:0:0\n"  # the others wait for the late one, in their order
    late.set_result(Bookmark("orders", 0, 2))
    reports.show(wait=True)
    assert capsys.readouterr().out == "orders:0:2\norders:0:3\n"
    message = reports.refusal_text()
    assert message.startswith("1 of 4 records were not published: line 2: ")
    assert "too large" in message


@pytest.mark.feature("X7")
def test_a_single_record_is_refused_without_its_number() -> None:
    reports = _Reports(as_json=True)
    reports.add(reported(0, "too large"))
    reports.show(wait=True)
    assert reports.refusal_text() == str(PublishFailed("orders", None, "too large"))
