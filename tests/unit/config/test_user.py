"""What `lapse.toml` may say of users (X4, X7)."""

import pytest

from lapse.config import ConfigError, loads
from lapse.core.entitlement import Right

pytestmark = pytest.mark.feature("X4")

KEYS = """
[security]
worker_key_file = "worker.key"
[users.alice]
key_file = "alice.key"
"""
ALICE = KEYS + "[users.alice.entitlements.orders]\n"


def test_entitlements_by_name_and_pattern():
    config = loads(
        ALICE
        + """read = true
filter = "/desk = 'A'"
[users.alice.entitlements."o.*"]
publish = true
[users.ops]
key_env = "OPS_KEY"
[users.ops.entitlements.".*"]
admin = true
"""
    )
    assert config.entitled_users("orders")["alice"].row_filter == "/desk = 'A'"
    assert config.entitled_users("others")["alice"].rights == {Right.PUBLISH}
    assert list(config.entitled_users("quotes")) == ["ops"]
    assert loads("").entitled_users("orders") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[users.alice]\n", "lapse.toml:1: users.alice: set either key_file or key_env"),
        ("[users.alice]\nkey_file = 'a'\nkey_env = 'A'", "lapse.toml:1: users.alice: set either key_file or key_env"),
        ("[users.alice]\nkey = 'geheim'", "lapse.toml:2: users.alice.key: unknown key"),
        ("[users.'a.b']\nkey_env = 'A'", "users: 'a.b' cannot name a user"),
        ("[users.deliveries]\nkey_env = 'A'", "users: 'deliveries' cannot name a user"),
        (ALICE, "lapse.toml:6: users.alice.entitlements.orders: grants nothing"),
        (ALICE + "red = true", "lapse.toml:7: users.alice.entitlements.orders.red: unknown key; did you mean 'read'?"),
        (
            ALICE + "read = true\nfilter = '/a ='",
            "lapse.toml:8: users.alice.entitlements.orders.filter: expression, line 1, column 5",
        ),
        (ALICE + "admin = true\nfilter = '/a = 1'", "lapse.toml:6: users.alice.entitlements.orders: filter is not"),
        (KEYS + "[users.alice.entitlements.'(']\nread = true", "'(' is neither an entity nor a regular expression"),
        ("[users.alice]\nkey_env = 'A'\nprincipal = 'alice'", "lapse.toml:3: users.alice.principal: "),
    ],
)
@pytest.mark.feature("X7")
def test_faults_name_the_place(text, message):
    with pytest.raises(ConfigError) as caught:
        loads(text)
    assert message in str(caught.value)
    assert "geheim" not in str(caught.value)


@pytest.mark.feature("X5", "X7")
def test_keys_come_from_files_or_the_environment_and_are_never_shown(tmp_path, monkeypatch):
    config = loads(ALICE + "read = true\n[users.ops]\nkey_env = 'OPS_KEY'", beside=tmp_path)
    alice, ops = config.users["alice"], config.users["ops"]
    with pytest.raises(ValueError, match=r"alice\.key: cannot be read: No such file"):
        alice.keys()
    (tmp_path / "alice.key").write_text("geheim")
    with pytest.raises(ValueError, match=r"alice\.key holds a key of less than 16 bytes") as caught:
        alice.keys()
    assert "geheim" not in str(caught.value)
    (tmp_path / "alice.key").write_text("geheim" * 4)
    assert alice.keys() == (b"geheim" * 4,)
    monkeypatch.delenv("OPS_KEY", raising=False)
    with pytest.raises(ValueError, match="the environment variable OPS_KEY holds no key"):
        ops.keys()
    monkeypatch.setenv("OPS_KEY", "geheim" * 3)
    assert ops.keys() == (b"geheim" * 3,)
    monkeypatch.delenv("LAPSE_WORKER_KEY", raising=False)
    with pytest.raises(ValueError, match="LAPSE_WORKER_KEY holds no key"):
        loads("").security.worker_keys()
    (tmp_path / "worker.key").write_text("of the workers, 1")
    assert config.security.worker_keys() == (b"of the workers, 1",)
    assert "geheim" not in repr(config)
