"""What a worker would have to refuse is refused before it is sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core import lifetime
from lapse_client.error import InvalidPublication
from lapse_client.publisher.publication import _check_lifetimes, headers


@pytest.mark.feature("L2", "L3", "L5", "X6", "S2")
def test_options_become_headers() -> None:
    assert headers(b"x", {"a": "ä", "b": None}, ttl_ms=5, enqueue_at_ms=7, message_id="m", delta=True) == [
        ("a", "ä".encode()),
        ("b", None),
        ("lapse-ttl-ms", b"5"),
        ("lapse-enqueue-at-ms", b"7"),
        ("lapse-message-id", b"m"),
        ("lapse-command", b"delta"),
    ]
    assert headers(b"x", [("a", b"1"), ("a", b"2")]) == [("a", b"1"), ("a", b"2")]
    assert headers(None, expires_at_ms=0) == [("lapse-expires-at-ms", b"0")]


@pytest.mark.feature("L12", "X7")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttl_ms": -1}, "ttl_ms = -1"),
        ({"ttl_ms": 1.5}, "ttl_ms = 1.5"),
        ({"ttl_ms": True}, "ttl_ms = True"),
        ({"expires_at_ms": 1 << 63}, "expires_at_ms"),
        ({"enqueue_at_ms": -5}, "enqueue_at_ms"),
        ({"ttl_ms": (1 << 63) - 1}, "beyond 64 bits"),
        ({"ttl_ms": 1, "expires_at_ms": 2}, "two lifetimes at once"),
        ({"ttl_ms": 1, "own": {"ce_expirytime": "2030-01-01T00:00:00Z"}}, "two lifetimes at once"),
        ({"own": {"lapse-ttl-ms": "soon"}}, "lapse-ttl-ms = 'soon'"),
        ({"own": {"lapse-expire-time": b"123"}}, "3 bytes"),
        ({"own": {"lapse-ttl-ms": None}}, "lapse-ttl-ms = null"),
        ({"own": {"lapse-enqueue-at-ms": None}}, "lapse-enqueue-at-ms = null"),
        ({"own": {"lapse-message-id": "a"}, "message_id": "b"}, "header lapse-message-id = b'a'"),
        ({"own": {"lapse-command": "publish"}, "delta": True}, "header lapse-command = b'publish'"),
        ({"message_id": ""}, "message_id"),
        ({"own": {"a": 1}}, "header a = 1"),
        ({"own": {"": b"1"}}, "header name"),
        ({"own": {"a\udcff": b"1"}}, r"header name 'a\\udcff': no text that UTF-8 can hold"),
        ({"own": {"a": "\ud800"}}, "header a: no text that UTF-8 can hold"),
        ({"message_id": "\udcff"}, "message_id: no text that UTF-8 can hold"),
    ],
)
def test_what_cannot_be_honoured_is_refused(options: dict, message: str) -> None:
    with pytest.raises(InvalidPublication, match=message):
        headers(b"x", options.pop("own", None), **options)


_INSTANTS = st.none() | st.integers(-1, lifetime.NEVER + 1) | st.integers(lifetime.NEVER - 253_402_300_800_001)
_OWN = st.lists(
    st.tuples(
        st.sampled_from((*sorted(lifetime.NAMES), "lapse-id", "lapse-origin", "a")),
        st.none() | st.sampled_from((b"0", b"5", b"%d" % lifetime.NEVER, b"2030-01-01T00:00:00Z", b"four", b"")),
    ),
    max_size=3,
)


@pytest.mark.feature("L12", "X7")
@given(_OWN, _INSTANTS, _INSTANTS, _INSTANTS)
def test_a_publication_is_refused_exactly_where_its_headers_would_be(
    own: list, ttl_ms: int | None, expires_at_ms: int | None, enqueue_at_ms: int | None
) -> None:
    try:
        built = headers(b"x", own, ttl_ms=ttl_ms, expires_at_ms=expires_at_ms, enqueue_at_ms=enqueue_at_ms)
    except InvalidPublication as error:
        refused = str(error)
        if " milliseconds" not in refused:  # else a number is out of range
            given = {"lapse-ttl-ms": ttl_ms, "lapse-expires-at-ms": expires_at_ms, "lapse-enqueue-at-ms": enqueue_at_ms}
            stated = [(name, b"%d" % value) for name, value in given.items() if value is not None]
            with pytest.raises(InvalidPublication):
                _check_lifetimes([*own, *stated])
    else:
        _check_lifetimes(built)
