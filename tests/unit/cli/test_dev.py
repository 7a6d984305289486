"""The children of `lapse dev`: what it prints of them, and that none is left behind."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lapse.cli import children, dev
from lapse.cli.child import Child
from lapse.cli.ending import end_at_once_by_a_second_ctrl_c
from lapse.config import Config
from lapse_client import Connection


def test_lines_that_show_nothing_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("", "\b", "\x1b[?25h\b", "\x1b[0m\b", "told"):
        dev._print_child_line("worker", line)
    assert capsys.readouterr().err == "worker  | told\n"


@pytest.mark.feature("X7")
def test_only_the_first_line_of_a_process_is_kept() -> None:
    """A worker may log for weeks."""
    said: list[str] = []
    child = Child("help", ["--help"], {}, lambda _, line: said.append(line))
    assert child.wait() == 0
    assert len(said) > 10
    assert child._first.qsize() == 2, "the first line, and the end"
    assert child.first_line(0) == said[0]


@pytest.fixture
def _handlers() -> Iterator[None]:
    """This process has its own handlers of signals again after the test."""
    own = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in own.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.feature("X7")
@pytest.mark.usefixtures("_handlers")
def test_a_child_that_is_being_started_at_ctrl_c_is_ended_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not known yet: `lapse dev` ended with 0, and a child that hung went on or was killed with it."""
    started: list[Child] = []

    class Interrupted(Child):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(children, "Child", Interrupted)
    end_at_once_by_a_second_ctrl_c()
    those = children.Children({}, lambda _name, _line: None)
    with pytest.raises(KeyboardInterrupt):
        those.start("help", ["--help"])
    those.kill()
    (child,) = started
    assert child.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.feature("X7")
@pytest.mark.parametrize("given", [{}, {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}])
def test_a_secret_that_cannot_be_read_ends_it_before_anything_starts(tmp_path: Path, given: dict[str, str]) -> None:
    """A broker was started first, and the console blamed; or the advice was about KAFKA_BOOTSTRAP_SERVERS."""
    (tmp_path / "lapse.toml").write_text("[queue.orders]\n")
    environment = {**given, "LAPSE_SECRET_FILE": str(tmp_path / "missing")}
    words = ("--config", str(tmp_path / "lapse.toml"), "--data", str(tmp_path / "data"), "--console-port", "0")
    # A process, because the command takes over the signals of its own.
    ran = [sys.executable, "-m", "lapse", "dev", *words]
    done = subprocess.run(ran, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 1
    assert (
        done.stderr == f"Error: LAPSE_SECRET_FILE = {tmp_path / 'missing'}: cannot be read: No such file or directory\n"
    )


@pytest.mark.feature("X4")
def test_where_there_are_users_one_of_them_asks_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers warned of each question as one that bears no user, and the shown commands were refused."""
    key = tmp_path / "ann's.key"
    key.write_text("k" * 32)
    monkeypatch.setenv("BOBS_KEY", "b" * 32)
    users = {
        "bob": {"key_env": "BOBS_KEY", "entitlements": {"mails": {"publish": True}, "orders": {"read": True}}},
        "ann": {"key_file": str(key), "entitlements": {"mails": {"read": True}}},
    }
    config = Config.model_validate({"queue": {"jobs": {}, "mails": {}, "orders": {}}, "users": users})
    plain = Connection("127.0.0.1:1")
    asked = {name: dev._as_user(plain, config, name) for name in config.queue}
    assert {name: (one.user, one.secret) for name, one in asked.items()} == {
        "jobs": ("", ""),
        "mails": ("ann", "k" * 32),
        "orders": ("bob", "b" * 32),
    }
    dev._print_addresses(dev.Stand(config, tmp_path, "127.0.0.1:1"), as_json=False)
    shown = capsys.readouterr().out
    assert f"export LAPSE_USER=ann LAPSE_SECRET_FILE={shlex.quote(str(key))}\n  lapse publish mails" in shown
    key.unlink()
    assert dev._as_user(plain, config, "mails") is plain, "the worker says what is wrong with the key"
