"""The cost at scale: what a load takes, and who has which shards of a large fleet when workers come and go (C90)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("faust")  # the worker's packages are an extra

from benchmarks.queue.footprint import sizes_by_kind
from benchmarks.scale import COSTS, Fleet, costs, need, page, rebalancing_story

PAGE = Path(__file__).parents[3] / "docs" / "scale.md"


def test_a_load_takes_its_rate_times_the_cost_of_a_message() -> None:
    cost = COSTS["inline"]
    one, ten = need(100_000, cost), need(1_000_000, cost)
    assert ten.worker_cores == pytest.approx(10 * one.worker_cores)
    assert ten.workers * 0.6 >= ten.worker_cores > (ten.workers - 1) * 0.6
    assert ten.spare >= 1
    assert need(1_000_000, cost, replicas=1).in_mb_s == pytest.approx(ten.in_mb_s / 3)


def test_the_costs_are_the_dearest_of_the_committed_run() -> None:
    """The page told costs of an earlier version, 3.0 µs for 2.4."""

    def row(name: str, worker_us: float) -> dict[str, object]:
        figures = {"worker_us": worker_us, "client_us": 1.26, "broker_us": 3.0}
        return {"name": name, "medians": {"lapse, inline": figures, "lapse, by reference": figures}}

    found = costs({"rows": [row("queue", 2.1), row("queue-fresh", 2.34)]})["inline"]
    assert (found.worker_us, found.client_us, found.broker_us) == (2.3, 1.3, 3.0)


@pytest.mark.feature("C90")
def test_hundreds_of_shards_are_even_and_only_those_of_a_dead_worker_are_taken_over() -> None:
    fleet = Fleet({f"q{number}": 64 for number in range(8)})
    everybody = [f"w{number}" for number in range(12)]
    assert fleet.rebalance(everybody).most == 43  # 512 shards
    before = fleet.shares()
    killed = fleet.rebalance(everybody[1:])
    assert (killed.moved, killed.orphans, killed.rounds) == (0, len(before["w0"]), 1)
    assert all(before[member] <= shards for member, shards in fleet.shares().items())
    back = fleet.rebalance(everybody)
    assert back.rounds == 2, "a shard is given up at one rebalance, and given away at the next"
    came = len(fleet.shares()["w0"])
    assert came <= back.moved < came + len(everybody), "hardly anything moves but what the worker gets that comes"


@pytest.mark.feature("C90")
def test_every_shard_is_at_one_worker_whatever_happens() -> None:
    fleet = Fleet({"wide": 30, **{f"q{number}": 1 for number in range(70)}})
    for what, _ in rebalancing_story(fleet, 7):
        shards = [shard for some in fleet.shares().values() for shard in some]
        assert len(shards) == len(set(shards)) == 100, what


@pytest.mark.slow
def test_the_page_shows_what_the_model_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for title, table in page().items():
        assert table in text, f"{title}: run python -m benchmarks.scale, and put what it prints on the page"


def test_logs_are_weighed_by_what_their_topics_are_for(tmp_path: Path) -> None:
    for topic, size in {
        "bench-1-0": 5, "lapse.bench-1.deliveries-0": 7, "lapse.bench-1.commands-0": 11, "lapse.events.bench-1-0": 13,
        "bench-1-queue.bench-1-changelog-0": 17, "__consumer_offsets-3": 19,
    }.items():  # fmt: skip
        (tmp_path / "log" / topic).mkdir(parents=True)
        (tmp_path / "log" / topic / "00000000000000000000.log").write_bytes(b"x" * size)
    weighed = sizes_by_kind(tmp_path)
    assert weighed == {"messages": 5, "deliveries": 7, "commands": 11, "events": 13, "journal": 17}
