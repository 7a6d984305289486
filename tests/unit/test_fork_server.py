"""A fork of the server runs what an interpreter of its own would: the other tests rely on it."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.processes import fork_server

SHOWN = "import os, sys; print(sys.argv[1:], os.environ.get('SHOWN')); sys.exit(3)"
DEATHS = "from lapse.runtime.shard import under_way; print(under_way._own_token().hex())"
STARTS = (fork_server.fresh, fork_server.start)


@pytest.fixture
def output(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs a program to its end: its exit code and its output."""

    def run(start: Callable[..., fork_server.Process], *arguments: str, **environment: str) -> tuple[int, str]:
        file = tmp_path / "out"
        with file.open("wb") as out:
            code = start(arguments, out, {**os.environ, **environment}).wait(30)
        return code, file.read_text("utf-8")

    return run


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_arguments_environment_output_and_code_are_those_of_the_program(
    start: Callable[..., fork_server.Process], output: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(SHOWN)
    said = (3, "['a', '--b'] yes\n")
    assert output(start, "-c", SHOWN, "a", "--b", SHOWN="yes") == said
    assert output(start, str(program), "a", "--b", SHOWN="yes") == said
    code, wrong = output(start, "-m", "lapse", "worker", "--none")
    assert code == 2
    assert wrong.startswith("Usage: python -m lapse worker [OPTIONS]")
    code, failed = output(start, "-c", "1/0")
    assert code == 1
    assert "ZeroDivisionError" in failed


@pytest.mark.slow
def test_each_fork_is_a_process_of_its_own(output: Callable[..., tuple[int, str]]) -> None:
    first, second = (output(fork_server.start, "-c", DEATHS)[1] for _ in range(2))
    assert first != second, "a token of the process was drawn at its import"


@pytest.mark.slow
@pytest.mark.parametrize("start", STARTS)
def test_signals_reach_it_and_its_group(start: Callable[..., fork_server.Process], tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = start(["-c", "import time; time.sleep(60)"], out, os.environ)
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        process.terminate()  # nothing is there any more, and nothing else gets the signal
