"""`lapse simulate`: tables and JSON, what is compared, and what is refused (X10)."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from lapse.cli.simulate import simulate

pytestmark = pytest.mark.feature("X10")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "lapse.toml"
    path.write_text('[queue.orders]\nexpiration = "30s"\nlease_period = "10s"\n\n[queue.others]\n')
    return path


def call(config: Path, *options: str, queue: str = "orders") -> Result:
    return CliRunner().invoke(simulate, [queue, "-c", str(config), *options])


def test_several_values_are_compared_in_every_combination(config: Path) -> None:
    options = ["--arrivals", "10/s", "--for", "10s", "--service", "250ms", "--set", "expiration=1s,5s"]
    done = call(config, *options, "--subscribers", "1,3", "--json")
    assert done.exit_code == 0, done.output
    found = [orjson.loads(line) for line in done.output.splitlines()]
    assert [(one["scenario"]["expiration"], one["subscribers"]) for one in found] == [
        ("1s", 1),
        ("1s", 3),
        ("5s", 1),
        ("5s", 3),
    ]
    assert all(one["messages"] == 99 for one in found)
    assert [one["served_share"] == 1 for one in found] == [False, True, False, True]
    assert found[0]["fates"]["time_limit"] > found[2]["fates"]["time_limit"]
    shown = call(config, *options, "--subscribers", "1,3")
    assert "99 messages in 9.8 s; backlog = 1, service = 250ms" in shown.output
    assert "time_limit" in shown.output


def test_the_file_s_settings_count_where_nothing_else_is_set(config: Path) -> None:
    done = call(config, "--arrivals", "1s", "--messages", "3", "--subscribers", "0", "--json")
    assert orjson.loads(done.output)["took_ms"] == 2_000 + 30_000  # the last expires


def page_of(config: Path, directory: Path, *options: str) -> str:
    pytest.importorskip("pyspark")  # pages are made by what makes those of Spark jobs
    page = directory / "page.html"
    done = call(config, *options, "--page", str(page))
    assert done.exit_code == 0, done.output
    return page.read_text("utf-8")


def test_the_page_shows_every_combination_and_its_course(config: Path, tmp_path: Path) -> None:
    options = ["--arrivals", "20/s", "--messages", "200", "--service", "100ms", "--set", "expiration=1s,5s"]
    text = page_of(config, tmp_path, *options)
    for shown in ("Simulation of orders", "expiration = 1s", "expiration = 5s", "time_limit", "Messages in the queue"):
        assert shown in text
    assert text.count("<svg") >= 6
    refused = call(config, *options, "--page", str(config / "page.html"))
    assert refused.exit_code == 2
    assert "there is no directory" in refused.output


@pytest.mark.slow
def test_the_page_shows_what_is_enough_and_what_was_tried(config: Path, tmp_path: Path) -> None:
    options = ["--arrivals", "20/s", "--messages", "60", "--service", "90ms", "--goal", "100% served, wait 99% < 20ms"]
    text = page_of(config, tmp_path, *options)
    assert "The smallest values for 100% served, wait 99% &lt; 20ms" in text
    for knob in ("subscribers", "backlog", "lease_period", "expiration"):
        assert f"{knob}: served" in text
        assert f"{knob}: wait, 99%" in text


@pytest.mark.slow
def test_a_goal_brings_the_smallest_values(config: Path) -> None:
    options = ["--arrivals", "20/s", "--messages", "60", "--service", "90ms", "--goal", "100% served, wait 99% < 20ms"]
    done = call(config, *options, "--json")
    assert done.exit_code == 0, done.output
    printed = orjson.loads(done.output.splitlines()[-1])
    assert printed["goal"] == "100% served, wait 99% < 20ms"
    assert {one["what"]: one["smallest"] for one in printed["advice"]}["subscribers"] == "2"
    shown = call(config, *options, "--subscribers", "2")
    assert "The smallest values for 100% served, wait 99% < 20ms" in shown.output
    assert "none" not in shown.output


def test_a_run_without_an_end_says_so(config: Path) -> None:
    done = call(config, "--arrivals", "1s", "--messages", "3", "--cancel", "100%", queue="others")
    assert "stopped after" in done.output
    assert "Set max_deliveries, max_cancels or expiration" in done.output


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--arrivals", "10"], 2, "'10' is no rate"),
        (["--arrivals", "1s", "--service", "fast"], 2, "'fast' is no distribution"),
        (["--arrivals", "1s", "--subscribers", "two"], 2, "'two': expected whole numbers"),
        (["--arrivals", "1s", "--goal", "quick"], 2, "'quick' is no goal; expected"),
        (["--arrivals", "1s", "--cancel", "101%"], 2, "'101%': expected a share"),
        (["--arrivals", "1s", "--set", "lease"], 2, "'lease' is no setting: expected KEY=VALUE"),
        (["--arrivals", "1s", "--set", "lease=3s"], 1, "lease: unknown key; did you mean 'leasing'?"),
        (["--arrivals", "1s", "--set", "lease_period=0s"], 1, "lease_period: '0s': has to be longer than 0"),
        (["--arrivals", "1s", "--subscribers", ",".join(map(str, range(201)))], 1, "these are 201 combinations"),
        ([], 2, "say what comes in: --arrivals, --recorded, or --replay"),
        (["--replay", "--arrivals", "1s"], 2, "--replay and --arrivals exclude each other"),
        (["--replay", "--subscribers", "3"], 2, "--subscribers says what the recording says; leave it out"),
        (["--recorded", "--lifetime", "3s"], 2, "--lifetime says what the recording says; leave it out"),
        (["--arrivals", "1ms", "--for", "30d"], 1, "more than 5,000,000 messages"),
    ],
)
def test_what_cannot_be_simulated_is_refused(config: Path, options: list[str], code: int, message: str) -> None:
    done = call(config, *options)
    assert done.exit_code == code
    assert message in done.output


@pytest.mark.feature("X7")
def test_a_queue_that_is_not_there_is_named(config: Path) -> None:
    done = call(config, "--arrivals", "1s", queue="order")
    assert done.exit_code == 1
    assert "there is no [queue.order]; its queues are: orders, others" in done.output
