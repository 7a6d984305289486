"""The commands that the pages on lifetimes and SOW topics show do what stands beside them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomlkit

from lapse.embedded import EmbeddedKafka
from support.worker import Worker

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of this module alone: the names of the documentation's topics are taken nowhere else."""
    example = tomlkit.parse((ROOT / "lapse.toml").read_text("utf-8"))
    with EmbeddedKafka() as kafka:
        entities = tomlkit.dumps({name: table for name, table in example.items() if name in ("queue", "sow")})
        with Worker(tmp_path_factory.mktemp("worker"), kafka.bootstrap_servers, "documented", entities):
            yield kafka.bootstrap_servers


def run(page: str, servers: str) -> list[str]:
    """Run the page's block below "Try it"; returns what each command printed."""
    text = (ROOT / "docs" / page).read_text("utf-8").split("\n## Try it\n")[1]
    block = re.split(r"^```(?:sh)?$", text, flags=re.MULTILINE)[1]
    script = "".join(f"{line}\necho '\x1e'\n" for line in block.strip().splitlines())
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": servers, "PATH": path, "COLUMNS": "200"}
    done = subprocess.run(["sh", "-e", "-c", script], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("\x1e\n")


@pytest.mark.slow
@pytest.mark.feature("L2", "L3", "L5", "L10", "L11", "D1", "Q15")
def test_lifetimes(servers: str) -> None:
    *_, peeked, letters, _ = run("lifetimes.md", servers)
    assert "orders:0:1" in peeked
    assert "orders:0:3" in peeked
    assert "scheduled" in peeked
    assert "orders:0:0" not in peeked
    assert "orders:0:2" not in peeked
    assert letters.count("time_limit") == 2


@pytest.mark.slow
@pytest.mark.feature("S1", "S2", "S3", "S4", "S5", "L2")
def test_sow_topics(servers: str) -> None:
    *_, queried, slept, left, deleted, nothing, _ = run("sow.md", servers)
    assert '["A"]' in queried
    assert re.search(r'"bid": ?99, ?"ask": ?101', queried)
    assert not slept
    assert '"A' in left.replace("\\", "")
    assert "B" not in left
    assert re.fullmatch(r"prices:0:\d+\n", deleted)
    assert not nothing
