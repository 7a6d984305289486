"""Trials: the tests run on one mutant, in a fork of this process, until one of them notices."""

import ast
import inspect
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import pytest

from support.mutant import Mutant

_MOST_BYTES = 4 << 30
"""A mutant that takes more memory than this is killed by it."""

Trees = dict[str, ast.Module]
"""The syntax tree of each module, in which its mutants are."""


@dataclass(frozen=True)
class Fate:
    """What became of a mutant.

    Attributes:
        by: the test that noticed, or what else ended it; empty = it survived.
        cpu_s: CPU time that it took.
        s: how long it took.
    """

    by: str
    cpu_s: float
    s: float


NOT_RUN: Final = Fate("", 0, 0)
"""Of a mutant that is left out: it counts as a survivor."""


def fork(run: Callable[[], str], cpu_s: float) -> Fate:
    """Call a function in a fork that says nothing and has limits; it returns which test noticed, empty = none."""
    sys.stdout.flush()
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.NamedTemporaryFile() as noticed:
        child = os.fork()
        if child == 0:
            code = 2
            try:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
                resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 1))
                resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
                by = run()
                Path(noticed.name).write_text(by)
                code = 1 if by else 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        by = Path(noticed.name).read_text()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = os.waitstatus_to_exitcode(status)
    if code in (-signal.SIGPROF, -signal.SIGXCPU, -signal.SIGKILL):
        by = "time limit"
    elif code not in (0, 1):
        by = f"exit code {code}"
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Fate(by, round(spent_s, 1), round(time.monotonic() - began, 1))


class Imported(MetaPathFinder, SourceLoader):
    """Gives one module its mutated code when it is imported, and leaves all others to Python."""

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
    """A pytest plugin that remembers the first test that failed."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or f"{report.nodeid} (import)"


def imported_anew(mutant: Mutant, trees: Trees, options: Sequence[str]) -> str:
    """Run the tests with the package and the tests imported anew; to be called in a fork."""
    for name in [name for name in sys.modules if name.startswith((mutant.module.rpartition(".")[0], "unit"))]:
        del sys.modules[name]
    mutant.apply()
    sys.meta_path.insert(0, Imported(mutant, trees[mutant.module]))
    first = First()
    status = pytest.main([*options, "-x"], [first])
    return first.failed or ("" if status == pytest.ExitCode.OK else f"pytest says {status}")


class Replacing(First):
    """A pytest plugin that, in place of running what was collected, runs it in forks with one function replaced.

    Args:
        chosen: which mutants.
        trees: where they are.
        left_out: keys of those that are not run.
        limit_s: CPU time that a test has, from what it takes without a mutant.
        tell: called with each mutant and what became of it.
    """

    def __init__(
        self,
        chosen: Sequence[Mutant],
        trees: Trees,
        left_out: Set[str],
        limit_s: Callable[[float], float],
        tell: Callable[[Mutant, Fate], None],
    ) -> None:
        super().__init__()
        self._chosen, self._trees, self._left_out, self._limit_s, self._tell = chosen, trees, left_out, limit_s, tell

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = list(session.items)
        with tempfile.NamedTemporaryFile() as durations:

            def as_it_is() -> str:
                took_s = self._run(items)
                Path(durations.name).write_text("\n".join(map(str, took_s)))
                return self.failed

            plain = fork(as_it_is, 600)
            if plain.by:
                pytest.exit(f"the tests fail without any mutant: {plain.by}", 2)
            took_s = map(float, Path(durations.name).read_text().splitlines())
        by_time = sorted(zip(took_s, items, strict=True), key=lambda pair: pair[0])
        limits_s, items = [self._limit_s(took_s) for took_s, _ in by_time], [item for _, item in by_time]
        print(f"the tests take {plain.s} s, {plain.cpu_s} s of CPU", flush=True)
        for mutant in self._chosen:
            trial = partial(self._try, mutant, items, limits_s)
            self._tell(mutant, NOT_RUN if mutant.key in self._left_out else fork(trial, 600))
        return True

    def _try(self, mutant: Mutant, items: Sequence[pytest.Item], limits_s: Sequence[float]) -> str:
        mutant.apply()
        code = compile(self._trees[mutant.module], mutant.path, "exec", dont_inherit=True)
        function_of(mutant).__code__ = next(one for one in _codes(code) if one.co_qualname == mutant.replaced)
        self._run(items, limits_s)
        return self.failed

    def _run(self, items: Sequence[pytest.Item], limits_s: Sequence[float] = ()) -> list[float]:
        """Run tests until one fails, or ends the process because it takes too long; the CPU time of each, s."""
        took_s = []
        for at, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            signal.setitimer(signal.ITIMER_PROF, limits_s[at] if limits_s else 0)
            began_s = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            took_s.append(time.process_time() - began_s)
            if self.failed:
                break
        return took_s


def function_of(mutant: Mutant) -> FunctionType:
    """The live function whose code a mutant replaces."""
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
