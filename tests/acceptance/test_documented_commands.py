"""The commands that the pages on lifetimes and SOW topics show do what stands beside them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tomlkit

from lapse.embedded import EmbeddedKafka
from support.pages.page_run import PageRun
from support.processes.worker import Worker

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of this module alone: the names of the documentation's topics are taken nowhere else."""
    example = tomlkit.parse((ROOT / "lapse.toml").read_text("utf-8"))
    with EmbeddedKafka() as kafka:
        entities = tomlkit.dumps({name: table for name, table in example.items() if name in ("queue", "sow")})
        with Worker(tmp_path_factory.mktemp("worker"), kafka.bootstrap_servers, "documented", entities):
            yield kafka.bootstrap_servers


@pytest.mark.slow
@pytest.mark.feature("L2", "L3", "L5", "L10", "L11", "D1", "Q15", "S1", "S2", "S3", "S4", "S5")
@pytest.mark.parametrize("page", ["lifetimes.md", "sow.md"])
def test_the_commands_of_a_page_print_what_it_shows(page: str, servers: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8").split("\n## Try it\n")[1].split("\n## ")[0]
    (tmp_path / page).write_text(text, "utf-8")
    run = PageRun(tmp_path / page, tmp_path, servers)
    run.follow()
    assert run.commands >= 8
