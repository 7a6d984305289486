"""Expiry rules in a process of their own: slow, failing and crashing functions, and what the worker makes of them."""

import asyncio
import os
import signal
import sys
import textwrap
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from lapse.runtime.letters.expired_message import ExpiredMessage
from lapse.runtime.letters.rule_process import RuleFigures, RuleProcess

pytestmark = pytest.mark.feature("L15", "C26")


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes a module with a function `left`, and returns its name."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))

    def write(body: str) -> str:
        name = f"rule_{uuid.uuid4().hex[:8]}"
        text = "import os, sys, time\n\ndef left(message):\n" + textwrap.indent(textwrap.dedent(body), "    ")
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        return f"{name}:left"

    return write


def message(offset: int) -> ExpiredMessage:
    return ExpiredMessage(
        entity="q",
        topic="t",
        partition=0,
        offset=offset,
        key=None,
        value=b"v%d" % offset,
        headers=(("a", None),),
        reasons=("time_limit",),
        expires_at_ms=5,
        expired_at_ms=6,
        delivery_count=0,
        cancel_count=0,
        lapse_id=f"q/t:0:{offset}/0",
    )


def call(function: str, count: int, timeout_ms: int = 5_000) -> RuleFigures:
    async def run() -> RuleFigures:
        process = RuleProcess("q", function, timeout_ms)
        try:
            await process.call([message(offset) for offset in range(count)])
        finally:
            await process.stop()
        return process.figures

    return asyncio.run(run())


def seen(tmp_path: Path) -> list[str]:
    path = tmp_path / "seen"
    return path.read_text("utf-8").split() if path.exists() else []


WRITE = "open(os.environ['SEEN'], 'a').write(message.value.decode() + '\\n')\n"


@pytest.mark.slow
def test_each_message_is_given_in_order_and_printing_does_no_harm(rule: Callable[[str], str], tmp_path: Path):
    figures = call(rule("print('noise', flush=True)\n" + WRITE), 150)
    assert seen(tmp_path) == [f"v{offset}" for offset in range(150)]
    assert figures == RuleFigures(done=150)


@pytest.mark.slow
def test_a_call_that_is_given_up_leaves_no_answer_behind_for_the_next_ones(
    rule: Callable[[str], str], tmp_path: Path
) -> None:
    """A shard is given up while its calls are under way, and another one shares the process."""
    function = rule(f"time.sleep(600 if message.offset == 1 else 0)\n{WRITE}")

    async def run() -> RuleFigures:
        process = RuleProcess("q", function, 300_000)
        given_up = asyncio.create_task(process.call([message(offset) for offset in range(9)]))
        while not seen(tmp_path):  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.02)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        await process.call([message(offset) for offset in range(10, 13)])
        assert seen(tmp_path) == ["v0", "v10", "v11", "v12"], "what is called done was done"
        await process.stop()
        return process.figures

    figures = asyncio.run(run())
    assert (figures.failed, figures.timed_out) == (0, 0)


def test_a_call_is_given_up_also_in_the_moment_of_an_answer(rule: Callable[[str], str], tmp_path: Path) -> None:
    function = rule(WRITE)

    async def run() -> list[str]:
        process = RuleProcess("q", function, 300_000)
        await process.call([message(0)])
        assert process._process is not None
        assert process._process.stdout is not None
        answers, given_up = process._process.stdout, asyncio.create_task(process.call([message(1), message(2)]))
        fed = answers.feed_data

        def feed_data(data: bytes) -> None:
            fed(data)
            given_up.cancel()

        answers.feed_data = feed_data  # type: ignore[method-assign]
        await asyncio.wait([given_up])
        assert given_up.cancelled()
        await process.stop()
        return seen(tmp_path)

    assert asyncio.run(run())[:1] == ["v0"]


@pytest.mark.slow
def test_the_longest_text_of_an_exception_holds_nothing_up(rule: Callable[[str], str], tmp_path: Path) -> None:
    figures = call(rule(WRITE + "raise ValueError('\U0001f41f' * 10_000)"), 2)
    assert seen(tmp_path) == ["v0", "v1"]
    assert figures == RuleFigures(failed=2)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["raise KeyError('x')", "sys.exit(3)"])
def test_an_exception_is_logged_and_counted_and_the_rest_goes_on(
    rule: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str
):
    figures = call(rule(f"if message.offset == 1: {end}\n" + WRITE), 3)
    assert seen(tmp_path) == ["v0", "v2"]
    assert figures == RuleFigures(done=2, failed=1)
    assert "t:0:1" in caplog.text
    assert "on_expire" in caplog.text
    assert ("KeyError" if "Key" in end else "SystemExit") in caplog.text


@pytest.mark.slow
def test_a_function_that_ends_its_process_costs_one_message(rule: Callable[[str], str], tmp_path: Path):
    figures = call(rule("if message.offset == 1: os._exit(9)\n" + WRITE), 4)
    assert seen(tmp_path) == ["v0", "v2", "v3"]
    assert figures == RuleFigures(done=3, failed=1)


@pytest.mark.slow
def test_a_call_that_takes_too_long_is_given_up(
    rule: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    figures = call(rule("if message.offset == 1: time.sleep(600)\n" + WRITE), 3, timeout_ms=300)
    assert seen(tmp_path) == ["v0", "v2"]
    assert figures == RuleFigures(done=2, timed_out=1)
    assert "0.3 s" in caplog.text


@pytest.mark.slow
def test_many_failures_do_not_flood_the_log(rule: Callable[[str], str], caplog: pytest.LogCaptureFixture):
    assert call(rule("raise ValueError"), 500).failed == 500
    assert len(caplog.records) < 10


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_ended_between_two_calls_costs_no_message(
    rule: Callable[[str], str], tmp_path: Path, sent: signal.Signals
):
    """The system's out-of-memory killer, or an operator, ends the process while it has nothing to do."""
    function = rule(f"{WRITE}open(os.environ['SEEN'] + '.pid', 'w').write(str(os.getpid()))")

    async def run() -> RuleFigures:
        process = RuleProcess("q", function, 5_000)
        await process.call([message(0)])
        os.kill(int((tmp_path / "seen.pid").read_text("utf-8")), sent)
        await process.call([message(1), message(2)])
        await process.stop()
        return process.figures

    assert asyncio.run(run()) == RuleFigures(done=3)
    assert seen(tmp_path) == ["v0", "v1", "v2"]
