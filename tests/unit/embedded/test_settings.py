"""The configuration of the embedded broker."""

import stat
from pathlib import Path

from lapse.embedded.settings import Ports, cluster_id, server_properties, write_files

PORTS = Ports(client=1111, controller=2222)


def test_extra_properties_have_the_last_word_and_know_the_ports(tmp_path: Path) -> None:
    properties = server_properties(
        tmp_path,
        PORTS,
        {"num.partitions": "7", "listeners": "PLAINTEXT://:{client},SSL://:0,CONTROLLER://:{controller}"},
    )
    assert properties["num.partitions"] == "7"
    assert properties["listeners"] == "PLAINTEXT://:1111,SSL://:0,CONTROLLER://:2222"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:2222"


def test_everything_is_made_for_one_node(tmp_path: Path) -> None:
    properties = server_properties(tmp_path, PORTS, {})
    factors = {name: value for name, value in properties.items() if "replication.factor" in name or "min.isr" in name}
    assert len(factors) >= 6
    assert set(factors.values()) == {"1"}
    assert properties["auto.create.topics.enable"] == "false"


def test_values_survive_the_properties_format_and_stay_private(tmp_path: Path) -> None:
    server, logging = write_files(tmp_path, {"password": "a\\b\nc=d\u00e9\U0001f511"})
    assert server.read_text(encoding="ascii") == "password=a\\\\b\\nc=d\\u00e9\\ud83d\\udd11\n"
    assert stat.S_IMODE(server.stat().st_mode) == 0o600
    assert "rootLogger" in logging.read_text()


def test_cluster_ids_never_look_like_an_option() -> None:
    ids = {cluster_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert all(len(text) == 22 and not text.startswith("-") for text in ids)
