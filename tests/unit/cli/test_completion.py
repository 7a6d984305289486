"""`lapse completion`: a shell completes commands and options, and loads no more than it must."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lapse.cli import main
from lapse.cli.completion import VARIABLE


def completed(line: str) -> list[str]:
    """What bash gets for a line whose last word is to be completed."""
    words = line.split(" ")
    asked = {VARIABLE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    printed = CliRunner().invoke(main, env=asked, prog_name="lapse")
    assert not printed.stderr, printed.stderr
    return [one.removeprefix("plain,") for one in printed.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lapse qu", ["queue"]),
        ("lapse queue pee", ["peek"]),
        ("lapse queue peek --fil", ["--filter"]),
        ("lapse completion z", ["zsh"]),
    ],
)
def test_commands_options_and_choices_are_completed(line: str, expected: list[str]) -> None:
    assert completed(line) == expected


def test_the_names_of_commands_are_completed_without_loading_any() -> None:
    program = (
        "import sys, click; from lapse.cli import main; "
        "from click.shell_completion import BashComplete; "
        f"told = BashComplete(main, {{}}, 'lapse', '{VARIABLE}').get_completions([], ''); "
        "print(len(told), 'pyspark' in sys.modules, 'faust' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(main.list_commands(None))), "False", "False"]  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.feature("X7")
def test_commands_start_without_what_only_a_lapse_toml_needs() -> None:
    """Its models took half of a command's start, also where there is no such file."""
    program = (
        "import sys, importlib; [importlib.import_module(f'lapse.cli.{name}') "
        "for name in 'queue sow publish top explain gateway transfer'.split()]; "
        "print(sorted({'pydantic', 'numpy', 'lark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.feature("X7")
def test_a_lapse_toml_is_read_without_what_only_shards_need(tmp_path: Path) -> None:
    """numpy took an eighth of the start of `lapse check` and of each command that defines a queue."""
    file = tmp_path / "lapse.toml"
    file.write_text('[queue.orders]\nretry = { delay = "1s" }\ngroup_by = "/customer"\ngroup_limit = 1\n[sow.prices]\n')
    program = (
        "import pathlib, sys; from lapse.cli import definition, define, topology; from lapse.config import load; "
        f"load(pathlib.Path({str(file)!r})); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.slow
@pytest.mark.feature("X10")
def test_a_simulation_starts_without_what_only_a_worker_needs() -> None:
    """Only a replay needs the machines of a worker; their modules took two fifths of the start."""
    program = "import sys, lapse.cli.simulate; print(sorted({'faust', 'aiokafka', 'lapse.testing'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert f"{VARIABLE}={shell}_complete" in done.stdout


def test_bash_takes_the_script() -> None:
    script = CliRunner().invoke(main, ["completion", "bash"]).stdout
    done = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p lapse"], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout.endswith(" lapse\n")
