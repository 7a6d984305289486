"""What a downstream deployment is told of the upstream's state (S10)."""

import pytest

from lapse.config import ConfigError
from lapse.core import lifetime
from lapse.replication.link import load
from lapse.replication.translation import Downstream, Translation, Upstream

T = 1_700_000_000_000
ONE = Translation("A", "B")
FACTS = [("lapse-bookmark", b"prices:0:7"), ("lapse-timestamp-ms", b"%d" % T)]


def upstream(payload: bytes | None, *headers: tuple[str, bytes | None]) -> Upstream:
    return Upstream(b"k", payload, [*FACTS, *headers], T)


@pytest.mark.feature("S10")
def test_the_deadline_travels_as_it_is() -> None:
    row = ONE.translate(upstream(b"{}", ("lapse-expires-at-ms", b"1700000012345"), ("mine", b"1")), T + 5)
    assert row == Downstream(
        b"k",
        b"{}",
        [
            ("mine", b"1"),
            ("lapse-expires-at-ms", b"1700000012345"),
            ("lapse-origin", b"A"),
            ("lapse-origin-timestamp-ms", b"%d" % T),
            ("lapse-origin-target", b"B"),
            ("lapse-origin-bookmark", b"prices:0:7"),
        ],
    )
    eternal = ONE.translate(upstream(b"{}"), T)
    assert eternal is not None
    assert ("lapse-ttl-ms", b"0") in eternal.headers


@pytest.mark.feature("S10")
def test_headers_travel_as_they_are() -> None:
    own: list[tuple[str, bytes | None]] = [("n", None), ("e", b""), ("n", b"1"), ("", b"2")]
    row = ONE.translate(upstream(b"{}", *own), T)
    assert row is not None
    assert row.headers[: len(own)] == own


@pytest.mark.feature("S10", "C54")
def test_a_replicated_letter_keeps_the_deadline_that_is_stated() -> None:
    row = ONE.translate(upstream(b"{}", ("__dlq.errors.topic", b"t"), ("lapse-expires-at-ms", b"%d" % (T + 9))), T)
    assert row is not None
    assert lifetime.read(row.headers, T).absolute_ms == T + 9


@pytest.mark.feature("S10")
def test_two_links_with_other_topics_do_not_take_each_other_over() -> None:
    links = [load(None, {"from": "a", "to": "b", "topics": topics}) for topics in (["a", "b"], ["b", "a"], ["a-b"])]
    ids = [link.transactional_id("A") for link in links]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.feature("S10")
def test_nothing_comes_back_to_where_it_has_been() -> None:
    assert Translation("B", "A").translate(upstream(b"{}", ("lapse-origin", b"A")), T) is None
    assert Translation("C", "A").translate(upstream(b"{}", ("lapse-origin", b"A,B")), T) is None
    assert Translation("B", "A").translate(upstream(None, ("lapse-origin", b"A")), T) is None
    on = Translation("B", "C").translate(upstream(b"{}", ("lapse-origin", b"A")), T)
    assert on is not None
    assert ("lapse-origin", b"A,B") in on.headers


@pytest.mark.feature("S10", "S4")
def test_a_delete_is_reported_and_an_expiry_is_not() -> None:
    deleted = ONE.translate(upstream(None, ("lapse-operation", b"deleted")), T)
    assert deleted is not None
    assert deleted.value is None
    assert deleted.headers[-1] == ("lapse-operation", b"deleted")
    expired = upstream(None, ("lapse-operation", b"expired"))
    assert ONE.translate(expired, T + 9_999) is None
    late = ONE.translate(expired, T + 10_000)
    assert late is not None
    assert late.headers[-1] == ("lapse-operation", b"expired")
    unwritten = upstream(None, ("lapse-operation", b"expired"), ("lapse-unwritten", b"true"))
    assert ONE.translate(unwritten, T) == late, "only so does the downstream learn of it"


@pytest.mark.feature("S10", "X7")
def test_a_link_names_its_faults() -> None:
    link = load(None, {"from": "a:1", "to": "b:1", "topics": ["prices"]})
    assert link.topics == {"prices": "prices"}
    with pytest.raises(ConfigError, match=r"(?s)lapse replicate: to: .*topics: .*no SOW topic"):
        load(None, {"from": "a:1", "topics": []})
