"""What holds for every command: nearest names for a wrong one, and no colours for those who want none."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.table import Table

from lapse.cli import main
from lapse.cli.confirmation import confirm
from lapse.cli.dlq import _audited
from lapse.cli.lazy_group import LazyGroup
from lapse.cli.spark import JOBS, spark
from lapse.tables import print_table
from lapse_spark.cli import spark as pipeline


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("quue depth orders", "queue"),
        ("queue pek orders", "peek"),
        ("sow qurey prices", "query"),
        ("dlq shwo", "show"),
        ("kafka strat", "start or status"),
        ("spark legder", "ledger"),
        ("queue receive", "subscribe"),
        ("queue list", "peek"),
        ("sow get prices", "query"),
        ("dlq replay orders", "redrive"),
        ("send orders", "publish"),
    ],
)
def test_a_wrong_command_gets_the_nearest_name(words: str, meant: str) -> None:
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code == 2
    assert done.stderr.endswith(f" Did you mean {meant}?\n")
    assert done.stderr.count("Did you mean") == 1


@pytest.mark.feature("X7")
@pytest.mark.parametrize("group", ["", "queue", "sow", "dlq", "kafka", "spark"])
def test_the_list_of_commands_has_whole_sentences(group: str) -> None:
    listed = CliRunner().invoke(main, [*group.split(), "--help"]).stdout.partition("Commands:")[2]
    assert "." in listed
    assert "..." not in listed


@pytest.mark.feature("X7")
def test_the_list_of_jobs_needs_no_spark() -> None:
    """Spark's Python takes most of a second to load."""
    program = """if True:
        import sys
        from lapse.cli import main
        try:
            main(["spark", *sys.argv[1:]], standalone_mode=False)
        except Exception as error:
            print(error)
        print("loaded", sorted({"pyspark", "py4j", "numpy"} & sys.modules.keys()))
    """
    for words in (["--help"], ["legder"]):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
        assert done.stdout.endswith("loaded []\n"), done.stdout + done.stderr
        assert "ledger" in done.stdout


@pytest.mark.feature("X7")
def test_the_list_of_jobs_is_that_of_the_pipeline() -> None:
    context = click.Context(pipeline)
    jobs = {name: pipeline.commands[name].get_short_help_str(300) for name in pipeline.list_commands(context)}
    assert {name: job.summary for name, job in JOBS.items()} == jobs
    for name in jobs:
        assert spark.get_command(context, name) is pipeline.commands[name]


@pytest.mark.feature("X7")
def test_a_command_that_resembles_none_gets_no_name() -> None:
    done = CliRunner().invoke(main, ["dlq", "restart"])
    assert done.stderr.endswith("No such command 'restart'.\n")


@pytest.mark.feature("X7")
def test_what_the_page_on_the_client_says_of_json_holds() -> None:
    """It names commands of `lapse queue` and `lapse sow`, and says that each takes `--json`."""
    page = (Path(__file__).parents[3] / "docs/client.md").read_text("utf-8").partition("## From the shell")[2]
    for group, listed in re.findall(r"`lapse (queue|sow)` \(([^)]*)\)", page):
        for name in re.findall(r"`(\w+)`", listed):
            assert "--json" in CliRunner().invoke(main, [group, name, "--help"]).stdout, f"{group} {name}"


def test_no_color_turns_the_colours_of_every_command_off(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def coloured() -> None:
        click.secho("red", fg="red")

    monkeypatch.setitem(main.commands, "coloured", coloured)  # type: ignore[attr-defined]
    monkeypatch.delenv("NO_COLOR", raising=False)
    runner = CliRunner()
    assert "\x1b[31m" in runner.invoke(main, ["coloured"], color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert runner.invoke(main, ["coloured"], color=True).stdout == "red\n"


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("typed", "code", "message"),
    [
        ("y\n", 0, ""),
        ("what\nYES\n", 0, "Answer y or n."),
        ("\n", 1, "Aborted!"),
        ("", 1, "nobody answered, so nothing was done; --yes does not ask"),
    ],
)
def test_a_question_leaves_standard_output_to_the_results(typed: str, code: int, message: str) -> None:
    done = CliRunner().invoke(click.command()(lambda: confirm("Remove it?")), input=typed)
    assert done.stdout == ""
    assert done.exit_code == code
    assert done.stderr.startswith("Remove it? [y/N]: ")
    assert message in done.stderr


NO_CLUSTER = {"completion", "demo", "kafka start", "kafka status", "kafka stop", "spark compact", "spark report"}
"""Commands that need no cluster, or start one of their own."""


def _each(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands below one, by their words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        one = group.get_command(context, name)
        assert one is not None
        if isinstance(one, click.Group):
            yield from _each(one, f"{before}{name} ")
        else:
            yield f"{before}{name}", one


@pytest.mark.feature("X3")
def test_every_command_that_needs_a_cluster_takes_its_file() -> None:
    assert isinstance(main, click.Group)
    every = dict(_each(main))
    takes = {name for name, one in every.items() if any("--config" in option.opts for option in one.params)}
    assert every.keys() - takes == NO_CLUSTER


@pytest.mark.feature("D5", "X7")
def test_an_audit_that_cannot_be_written_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    audit = tmp_path / "none" / "redriven.jsonl"
    with pytest.raises(click.ClickException) as error, _audited(audit, lambda: 0):
        raise AssertionError("it must not come to this")
    assert str(error.value.message).startswith(f"--audit {audit}: cannot be written: No such file or directory.")
    assert "Nothing was sent. Name a file that you may write" in str(error.value.message)


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        pytest.param(
            "queue depth orders --json -b 127.0.0.1:1",
            1,
            "no connection to Kafka at 127.0.0.1:1",
            marks=pytest.mark.slow,
        ),
        ("explain nonsense --json", 1, "bookmark 'nonsense'"),
        ("queue peek orders --state bad --json", 2, "Invalid value for '--state'"),
        ("queue pek orders --json", 2, "Did you mean peek?"),
        ("check --json -c nowhere.toml", 1, "nowhere.toml"),
    ],
)
def test_the_error_of_a_command_with_json_is_json(words: str, code: int, text: str) -> None:
    done = CliRunner().invoke(main, words.split())
    assert (done.exit_code, done.stdout) == (code, "")
    assert text in json.loads(done.stderr)["error"]["text"]
    plain = CliRunner().invoke(main, words.replace(" --json", "").split())
    assert plain.exit_code == code
    assert f"Error: {text}" in plain.stderr or plain.stderr.endswith(f"{text}\n")


@pytest.mark.feature("X7")
@pytest.mark.parametrize("group", ["", "queue", "sow"])
def test_the_error_of_a_command_with_json_has_its_code(monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    class Refused(Exception):
        code = "not_allowed"

    @click.command()
    @click.option("--json", is_flag=True)
    def odd(json: bool) -> None:
        raise click.ClickException("it is not allowed") from Refused()

    assert isinstance(main, click.Group)
    holder = main.get_command(click.Context(main), group) if group else main
    monkeypatch.setitem(holder.commands, "odd", odd)  # type: ignore[union-attr]
    done = CliRunner().invoke(main, [*group.split(), "odd", "--json"])
    assert json.loads(done.stderr) == {"error": {"code": "not_allowed", "text": "it is not allowed"}}


@pytest.mark.feature("X7")
def test_words_of_others_in_an_error_do_not_act_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def odd() -> None:
        raise click.ClickException("the key \x1b]0;title\x07 is wrong")

    monkeypatch.setitem(main.commands, "odd", odd)  # type: ignore[attr-defined]
    assert CliRunner().invoke(main, ["odd"]).stderr == "Error: the key \\x1b]0;title\\x07 is wrong\n"


@pytest.mark.slow
@pytest.mark.feature("X7")
def test_a_worker_that_logs_json_says_in_json_why_it_ends(tmp_path: Path) -> None:
    config = tmp_path / "lapse.toml"
    config.write_text("[lapse]\nnonsense = 1\n")
    words = ["worker", "--config", str(config), "--log-format", "json"]
    for supervised in ([], ["--no-supervise"]):
        done = subprocess.run(
            [sys.executable, "-m", "lapse", *words, *supervised], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert "nonsense" in json.loads(line)["message"]


@pytest.mark.slow
@pytest.mark.feature("X7")
def test_a_command_whose_standard_streams_are_closed_takes_them_as_empty() -> None:
    script = 'exec "$0" -m lapse publish orders -b 127.0.0.1:1 <&- >&-'
    done = subprocess.run(["sh", "-c", script, sys.executable], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.startswith("Error: no connection to Kafka")) == (1, True), done.stderr


@pytest.mark.slow
@pytest.mark.feature("X7")
def test_a_full_disk_under_the_output_is_named() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "lapse", "completion", "bash"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "the output cannot be written: No space left on device" in done.stderr


@pytest.mark.feature("X7")
@pytest.mark.parametrize("caught", [False, True])
def test_an_output_in_ascii_that_cannot_have_a_text_names_the_remedy(caught: bool) -> None:
    table = Table("value")
    table.add_row("größer")

    def show() -> None:
        try:
            print_table(table)
        except ValueError as error:
            raise click.ClickException(str(error)) if caught else error from error

    group = LazyGroup(lazy={})
    group.command("show")(show)
    done = CliRunner(charset="ascii").invoke(group, ["show"])
    assert done.exit_code == 1
    assert "'\\xf6', which its encoding ascii lacks" in done.output
    assert "PYTHONIOENCODING=utf-8" in done.output
    assert "größer" in CliRunner().invoke(group, ["show"]).output
