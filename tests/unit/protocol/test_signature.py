"""Signatures of commands: what is signed, and that nothing else passes (X4)."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.protocol import signature, topic
from lapse.protocol.signature import Signed

pytestmark = pytest.mark.feature("X4")

KEY = b"0123456789abcdef0123456789abcdef"
T = 1_700_000_000_000
PLACE = ("lapse.orders.commands", 0)
BODY = b'{"command": "depth"}'


def signed_by(key=KEY, user="alice", place=PLACE, at_ms=T, value=BODY) -> Signed:
    return signature.read(signature.headers(key, user, *place, at_ms, value))


def test_a_shell_makes_the_same_with_openssl_and_with_perl():
    text = b"lapse-1\nalice\nlapse.orders.commands\n0\n1700000000000\n" + BODY
    expected = signature.sign(KEY, "alice", *PLACE, T, BODY).hex()
    commands = {
        "openssl": ["openssl", "dgst", "-sha256", "-hmac", KEY.decode(), "-r"],
        "perl": [
            *("perl", "-MDigest::SHA=hmac_sha256_hex", "-0777", "-ne"),
            "print hmac_sha256_hex($_, $ENV{LAPSE_SECRET})",
        ],
    }
    made = {
        name: subprocess.run(
            command, input=text, capture_output=True, check=True, env={"LAPSE_SECRET": KEY.decode(), "PATH": "/usr/bin"}
        )
        .stdout.split()[0]
        .decode()
        for name, command in commands.items()
        if shutil.which(name)
    }
    assert made, "neither openssl nor perl is here"
    assert set(made.values()) == {expected}


def test_only_the_very_record_is_right():
    signed = signed_by()
    assert signed == Signed("alice", T, signature.sign(KEY, "alice", *PLACE, T, BODY))
    assert signature.is_right(signed, [KEY], *PLACE, BODY)
    assert signature.is_right(signed, [b"another key of some length", KEY], *PLACE, BODY), "any of the user's keys"
    assert not signature.is_right(signed, [], *PLACE, BODY)
    assert not signature.is_right(signed, [b"another key of some length"], *PLACE, BODY)
    assert not signature.is_right(signed, [KEY], "lapse.others.commands", 0, BODY)
    assert not signature.is_right(signed, [KEY], PLACE[0], 1, BODY)
    assert not signature.is_right(signed, [KEY], *PLACE, BODY + b" ")
    assert not signature.is_right(signed._replace(at_ms=T + 1), [KEY], *PLACE, BODY)
    assert not signature.is_right(signed._replace(user="bob"), [KEY], *PLACE, BODY)
    assert not signature.is_right(signed._replace(signature=b""), [KEY], *PLACE, BODY)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["lapse-user", "lapse-signed-at-ms", "lapse-signature", "x"]),
            st.none() | st.binary(max_size=70) | st.sampled_from([b"alice", b"1", b"0" * 64, b"-1", "\u0661".encode()]),
        ),
        max_size=6,
    )
)
def test_headers_of_any_kind_are_read_and_prove_nothing(headers):
    signed = signature.read(headers)
    assert not signature.is_right(signed, [KEY], *PLACE, BODY)
    assert len(signed.signature) in (0, 32)


@pytest.mark.parametrize("text", ["", " \n ", "short", "0123456789abcdef\nshort"])
def test_keys_are_refused_without_being_shown(text):
    with pytest.raises(ValueError, match="key") as caught:
        signature.keys_in(text)
    assert "short" not in str(caught.value)


def test_a_file_may_hold_an_old_key_and_a_new_one():
    assert signature.keys_in("  new key of sixteen \n\nold key of sixteen\n") == (
        b"new key of sixteen",
        b"old key of sixteen",
    )


def test_private_topics_are_distinguished_from_others():
    existing = [
        "lapse.orders.deliveries",
        "lapse.orders.deliveries.alice",
        "lapse.orders.deliveries.x.commands",
        "lapse.orders.deliveries.commands",
        "lapse.orders2.deliveries.bob",
        "lapse.orders.commands",
    ]
    assert topic.private_deliveries("orders", existing) == ["lapse.orders.deliveries.alice"]
    assert topic.deliveries("orders", "alice") == existing[1]
