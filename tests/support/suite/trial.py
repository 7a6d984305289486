"""Runs the tests on mutants, each in a fork of this process, until a test fails.

Only tests that call the mutated function can notice a mutant, and tests that noticed a sibling probably notice it, too.
So each mutant gets its own tests in its own order.
"""

import ast
import inspect
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Final

import pytest

from support.suite.mutant import Mutant

_MOST_BYTES = 4 << 30
"""Limit of a mutant's memory. A mutant that needs more counts as noticed."""

Trees = dict[str, ast.Module]
"""The syntax tree of each module, which its mutants change."""


@dataclass(frozen=True)
class Fate:
    """The result of a mutant's trial.

    Attributes:
        by: the test that noticed the mutant, or what else ended it; empty = the mutant survived.
        cpu_s: the CPU time of the trial, s.
        s: the duration of the trial, s.
    """

    by: str
    cpu_s: float
    s: float


NOT_RUN: Final = Fate("", 0, 0)
"""The result of a mutant that is not tried: it counts as a survivor."""


class Fork:
    """Runs a function in a fork of this process, without output and with limits.

    Args:
        run: returns the test that noticed the mutant; empty = none.
        cpu_s: the limit of CPU time, s.
    """

    def __init__(self, run: Callable[[], str], cpu_s: float) -> None:
        sys.stdout.flush()
        self._began_s = time.monotonic()
        self._noticed = tempfile.NamedTemporaryFile()  # noqa: SIM115  # closed by `ended`
        self.pid = os.fork()
        if self.pid == 0:
            code = 2
            try:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 1))
                resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
                by = run()
                Path(self._noticed.name).write_text(by)
                code = 1 if by else 0
            finally:
                os._exit(code)

    def ended(self, status: int, usage: resource.struct_rusage) -> Fate:
        """Return the result from what `os.wait4` returned."""
        with self._noticed:
            by = Path(self._noticed.name).read_text()
        code = os.waitstatus_to_exitcode(status)
        if code in (-signal.SIGPROF, -signal.SIGXCPU, -signal.SIGKILL):
            by = "time limit"
        elif code not in (0, 1):
            by = f"exit code {code}"
        return Fate(by, round(usage.ru_utime + usage.ru_stime, 1), round(time.monotonic() - self._began_s, 1))


def fork(run: Callable[[], str], cpu_s: float) -> Fate:
    """Run a function in a fork, and wait for its end."""
    child = Fork(run, cpu_s)
    _, status, usage = os.wait4(child.pid, 0)
    return child.ended(status, usage)


def forks(
    mutants: Iterable[Mutant],
    run: Callable[[Mutant], str],
    cpu_s: float,
    jobs: int,
    report: Callable[[Mutant, Fate], None],
) -> None:
    """Try mutants in forks, several at a time. Call `tell` with each and its result."""
    running: dict[int, tuple[Mutant, Fork]] = {}

    def wait() -> None:
        pid, status, usage = os.wait4(-1, 0)
        mutant, child = running.pop(pid)
        report(mutant, child.ended(status, usage))

    for mutant in mutants:
        if len(running) == jobs:
            wait()
        child = Fork(partial(run, mutant), cpu_s)
        running[child.pid] = mutant, child
    while running:
        wait()


class Imported(MetaPathFinder, SourceLoader):
    """An import hook that loads one module with its mutated code."""

    def __init__(self, mutant: Mutant, tree: ast.Module) -> None:
        self._mutant, self._tree = mutant, tree

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname == self._mutant.module else None

    def get_filename(self, fullname: str) -> str:
        return str(self._mutant.path)

    def get_data(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self._mutant.path, "exec", dont_inherit=True)


class First:
    """A pytest plugin that stores the first test that failed."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or f"{report.nodeid} (import)"


def run_after_import(mutant: Mutant, trees: Trees, options: Sequence[str]) -> str:
    """Run the tests after importing the package and the tests again. Call it in a fork."""
    for name in [name for name in sys.modules if name.startswith((mutant.module.rpartition(".")[0], "unit"))]:
        del sys.modules[name]
    mutant.apply()
    sys.meta_path.insert(0, Imported(mutant, trees[mutant.module]))
    first = First()
    status = pytest.main([*options, "-x"], [first])
    return first.failed or ("" if status == pytest.ExitCode.OK else f"pytest says {status}")


@dataclass
class Trial:
    """A test, with the figures that decide when it runs on a mutant.

    Attributes:
        item: the test as pytest has it.
        took_s: its CPU time without a mutant, s.
        reached: the functions that it calls, as `module:qualname`.
        noticed: how many mutants it has noticed, by function and by module.
    """

    item: pytest.Item
    took_s: float
    reached: Set[str]
    noticed: Counter[str] = field(default_factory=Counter)

    def patience_s(self, mutant: Mutant) -> float:
        """Return the test's rank for a mutant: lower for short tests and for those that noticed its siblings."""
        return self.took_s / (1 + 4 * self.noticed[_name(mutant)] + self.noticed[mutant.module])


class Replacing(First):
    """A pytest plugin that runs the collected tests in forks, each with one function replaced.

    Args:
        chosen: the mutants to try.
        trees: the syntax trees that they change.
        directory: the directory of their source.
        limit_s: computes a test's limit of CPU time from its time without a mutant, s.
        jobs: how many mutants are tried at a time.
        tell: called with each mutant and its result.
    """

    def __init__(
        self,
        chosen: Sequence[Mutant],
        trees: Trees,
        directory: Path,
        limit_s: Callable[[float], float],
        jobs: int,
        report: Callable[[Mutant, Fate], None],
    ) -> None:
        super().__init__()
        self._chosen, self._trees, self._directory = chosen, trees, str(directory)
        self._limit_s, self._jobs, self._report = limit_s, jobs, report
        self._trials: dict[str, Trial] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        took_s, plain = self._measured(lambda: [str(took_s) for took_s in self._run(session.items)])
        reached, _ = self._measured(lambda: self._reached(session.items))
        for item, seconds, names in zip(session.items, took_s, reached, strict=True):
            self._trials[item.nodeid] = Trial(item, float(seconds), frozenset(names.split("\t")))
        print(f"the tests take {plain.s} s, {plain.cpu_s} s of CPU", flush=True)
        forks(self._chosen, self._try, 600, self._jobs, self._note_fate)
        return True

    def _measured(self, run: Callable[[], Iterable[str]]) -> tuple[list[str], Fate]:
        """Run the tests without a mutant, in a fork that writes a line for each test."""
        with tempfile.NamedTemporaryFile() as notes:

            def without_mutant() -> str:
                Path(notes.name).write_text("\n".join(run()))
                return self.failed

            fate = fork(without_mutant, 1800)
            if fate.by:
                pytest.exit(f"the tests fail without any mutant: {fate.by}", 2)
            return Path(notes.name).read_text().split("\n"), fate

    def _reached(self, items: Sequence[pytest.Item]) -> Iterator[str]:
        """Run the tests. Yield for each the functions of the mutants' directory that it calls."""
        codes: set[CodeType] = set()

        def called(frame: FrameType, event: str, argument: object) -> None:
            codes.add(frame.f_code)

        for item, following in zip(items, [*items[1:], None], strict=True):
            codes.clear()
            sys.settrace(called)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.settrace(None)
            yield "\t".join({_called(code) for code in codes if code.co_filename.startswith(self._directory)})

    def _note_fate(self, mutant: Mutant, fate: Fate) -> None:
        if fate.by in self._trials:
            self._trials[fate.by].noticed.update([_name(mutant), mutant.module])
        self._report(mutant, fate)

    def _try(self, mutant: Mutant) -> str:
        mutant.apply()
        code = compile(self._trees[mutant.module], mutant.path, "exec", dont_inherit=True)
        function_of(mutant).__code__ = next(one for one in _codes(code) if one.co_qualname == mutant.replaced)
        able = [trial for trial in self._trials.values() if _name(mutant) in trial.reached]
        able.sort(key=lambda trial: trial.patience_s(mutant))
        self._run([trial.item for trial in able], [self._limit_s(trial.took_s) for trial in able])
        return self.failed

    def _run(self, items: Sequence[pytest.Item], limits_s: Sequence[float] = ()) -> list[float]:
        """Run tests until one fails, or ends the process by taking too long. Return the CPU time of each, s."""
        took_s = []
        for at, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            signal.setitimer(signal.ITIMER_PROF, limits_s[at] if limits_s else 0)
            began_s = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            took_s.append(time.process_time() - began_s)
            if self.failed:
                break
        return took_s


def _name(mutant: Mutant) -> str:
    return f"{mutant.path.stem}:{mutant.replaced}"


def _called(code: CodeType) -> str:
    """Return the outermost function that contains a code object, in the form of `_name`."""
    return f"{Path(code.co_filename).stem}:{code.co_qualname.partition('.<locals>')[0]}"


def function_of(mutant: Mutant) -> FunctionType:
    """Return the loaded function whose code a mutant replaces."""
    found: object = sys.modules[mutant.module]
    for name in mutant.replaced.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(found, FunctionType), f"{mutant.replaced} is no function"
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
