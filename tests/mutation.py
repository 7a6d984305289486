"""`make mutation`: break a part of lapse.core on purpose, one small change at a time, and see whether a test notices.

    python tests/mutation.py                  a sample of lapse.core.queue, always the same while the code is
    python tests/mutation.py --core sow       of lapse.core.sow, or of lapse.core.shard, which both stand on
    python tests/mutation.py --size 0         all mutants
    python tests/mutation.py --resume         go on where the last run was interrupted
    python tests/mutation.py --survivors      only those that survived the last run
    python tests/mutation.py --table          no run: the report as the tables of docs/testing.md

No file is touched: the tests are collected once, and each mutant lives in a fork of that process, in which a function
gets other code (or, for what is computed at import, a module is imported anew). The unit tests of that part that call
this function run there until one fails: short ones first, and those that noticed its siblings. What no test can
notice, because nothing would be different, is listed with its reason in `tests/mutation.toml`; it is not run, and
counts as a survivor. Exit code 1: fewer than 90 % of the mutants were killed, or one survived that is not listed.
"""

import argparse
import gc
import json
import os
import sys
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import hypothesis.stateful
import pytest

from support.suite.mutant import Mutant, mutants, sample
from support.suite.trial import NOT_RUN, Fate, Replacing, Trees, forks, run_after_import

ROOT = Path(__file__).parents[1]
CORE = ROOT / "streams/lapse/core"
_CORE = "tests/unit/core"
_RUNTIME = "tests/unit/runtime"
TESTS = {
    "queue": (f"{_CORE}/queue", f"{_CORE}/test_portions.py", f"{_RUNTIME}/queue", f"{_RUNTIME}/test_bad_input.py"),
    "sow": (f"{_CORE}/sow", f"{_CORE}/test_portions.py", f"{_RUNTIME}/sow", f"{_RUNTIME}/test_bad_input.py"),
    "shard": (f"{_CORE}/shard", f"{_CORE}/test_agreement.py", f"{_CORE}/sow", f"{_CORE}/queue", f"{_RUNTIME}/shard"),
}
"""The tests of each part of the core."""
LISTED = ROOT / "tests/mutation.toml"
SAMPLE = 400
GOAL = 0.9
TOO_SLOW = (
    "tests/unit/core/queue/test_segment.py::test_a_queued_message_takes_few_bytes",
    "tests/unit/core/queue/test_repeats.py::test_ten_thousand_ids_of_any_kind_fit_into_a_step",
    "tests/unit/core/queue/test_diagram.py",
    "tests/unit/core/queue/test_shard_search.py",
)
"""Not run on mutants: two measure sizes, and what the diagram and the search notice, the state machine does as well."""
OPTIONS = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0", f"--rootdir={ROOT}"]
OPTIONS += [f"--deselect={name}" for name in TOO_SLOW]


class Report:
    """What became of mutants, by their keys; written to a file after each.

    Args:
        core: the part of the core that is tried.
        entries: what is known already.
        total: how many are to come.
    """

    def __init__(self, core: str, entries: dict[str, Any], total: int) -> None:
        self.core, self.entries, self._total, self._done = core, entries, total, 0

    def add(self, mutant: Mutant, fate: Fate) -> None:
        where = f"{mutant.path.relative_to(ROOT)}:{mutant.line}"
        facts = {name: getattr(mutant, name) for name in ("function", "kind", "was", "now")}
        facts |= {"killed": bool(fate.by), "by": fate.by, "cpu_s": fate.cpu_s, "s": fate.s}
        self.entries[mutant.key] = {"module": mutant.path.stem, "where": where, **facts}
        path = report_of(self.core)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self.entries, indent=1, ensure_ascii=False))
        self._done += 1
        if fate != NOT_RUN:
            end = f"killed by {fate.by.rpartition('::')[2]}" if fate.by else "SURVIVED"
            change = f"{mutant.was}  ->  {mutant.now}"
            print(f"[{self._done}/{self._total}] {where} {change}: {end}, {fate.s} s", flush=True)

    @property
    def killed(self) -> int:
        return sum(entry["killed"] for entry in self.entries.values())

    @property
    def survivors(self) -> dict[str, dict[str, Any]]:
        some = {key: entry for key, entry in self.entries.items() if not entry["killed"]}
        return dict(sorted(some.items(), key=lambda item: item[1]["where"]))


def prepare() -> None:
    """Load what every fork needs, and nothing of what is mutated."""
    os.chdir(ROOT)
    os.nice(19)
    os.environ.setdefault("LAPSE_SOAK", "25")
    # The same examples for every mutant, however slow the machine; none shrunk, none kept.
    generate = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutation", derandomize=True, deadline=None, database=None, phases=generate)
    hypothesis.settings.load_profile("mutation")
    import numpy  # noqa: F401, ICN001

    import lapse.core.expression  # noqa: F401

    gc.freeze()


def report_of(core: str) -> Path:
    """The file with the fates of the mutants of a part of the core."""
    return ROOT / f"build/mutation-{core}.json"


def find(core: str, files: Collection[str] = ()) -> tuple[list[Mutant], Trees]:
    """All mutants of a part of the core, or of its files with some names only, and the tree of each module."""
    found: list[Mutant] = []
    trees: Trees = {}
    for path in sorted((CORE / core).rglob("*.py")):
        if files and path.name not in files:
            continue
        within = path.relative_to(CORE).with_suffix("").parts
        module = ".".join(("lapse", "core", *within)).removesuffix(".__init__")
        some, trees[module] = mutants(module, path, path.read_text())
        found += some
    return found, trees


def limit_s(plain_s: float) -> float:
    """CPU time that a test has on a mutant; what takes longer than that does not come to its end."""
    return 2 + 5 * plain_s


def run(chosen: list[Mutant], trees: Trees, report: Report, jobs: int) -> int:
    """Try mutants, so many at a time; pytest's exit code."""
    prepare()
    # In no order of lines: whatever is done when this is interrupted is a sample as well.
    chosen = sorted(chosen, key=lambda mutant: mutant.key)
    left_out = listed().keys()
    for mutant in chosen:
        if mutant.key in left_out:
            report.add(mutant, NOT_RUN)
    chosen = [mutant for mutant in chosen if mutant.key not in left_out]
    anew = [mutant for mutant in chosen if not mutant.replaced]
    replaced = [mutant for mutant in chosen if mutant.replaced]
    options = [*OPTIONS, *TESTS[report.core]]
    status = pytest.main(options, [Replacing(replaced, trees, CORE / report.core, limit_s, jobs, report.add)])
    if status == pytest.ExitCode.OK:
        forks(anew, lambda mutant: run_after_import(mutant, trees, options), 600, jobs, report.add)
    return status


def listed() -> dict[str, str]:
    """Why some mutants cannot be noticed, by their keys."""
    entries = tomllib.loads(LISTED.read_text())["equivalent"] if LISTED.exists() else []
    return {entry["key"]: entry["why"] for entry in entries}


def named_by(only: str, found: list[Mutant]) -> list[Mutant]:
    """The mutants of a module or of a part of it, such as `state.py:19`, or of a folder, such as `groups/`."""
    return [
        one
        for one in found
        if f"{one.path.name}:{one.line}".startswith(only) or f"{one.path.parent.name}/".startswith(only)
    ]


def show(found: list[Mutant], report: Report) -> None:
    """Print the tables of docs/testing.md."""
    possible = [mutant.path.stem for mutant in found]
    entries = report.entries.values()
    print("| module | mutants | tried | killed | survived |\n|---|---:|---:|---:|---:|")
    for module in sorted({entry["module"] for entry in entries}):
        some = [entry["killed"] for entry in entries if entry["module"] == module]
        print(f"| `{module}` | {possible.count(module)} | {len(some)} | {sum(some)} | {len(some) - sum(some)} |")
    share = f"{report.killed / max(1, len(entries)):.1%}"
    print(f"| **all** | {len(found)} | {len(entries)} | {report.killed}, {share} | {len(report.survivors)} |")
    print("\n| where | survivor | why no test can notice |\n|---|---|---|")
    reasons = listed()
    for key, entry in report.survivors.items():
        change = f"`{entry['was']}` → `{entry['now']}`".replace("|", "\\|")
        place = f"`{Path(entry['where']).name}`"
        print(f"| {place} | {change} | {reasons.get(key, '**not explained**')} |")


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation testing of lapse.core.")
    parser.add_argument("--core", choices=TESTS, default="queue", help="the part that is broken (default queue)")
    parser.add_argument("--size", type=int, default=SAMPLE, help=f"size of the sample; 0 = all (default {SAMPLE})")
    parser.add_argument("--only", default="", help="only mutants of state.py, state.py:19 or groups/")
    parser.add_argument("--resume", action="store_true", help="leave out what the report already has")
    parser.add_argument("--survivors", action="store_true", help="only those that survived, according to the report")
    parser.add_argument("--table", action="store_true", help="run nothing; print the report as tables")
    jobs = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=jobs, help=f"mutants that are tried at a time (default {jobs})")
    options = parser.parse_args()

    found, trees = find(options.core)
    report_path = report_of(options.core)
    known = {mutant.key for mutant in found}
    entries = json.loads(report_path.read_text()) if report_path.exists() else {}
    entries = {key: entry for key, entry in entries.items() if key in known}
    named = named_by(options.only, found)
    chosen = sample(named, options.size) if options.size else named
    if options.survivors:
        known = {key for key, entry in entries.items() if not entry["killed"]} - listed().keys()
        chosen = [mutant for mutant in named if mutant.key in known]
    elif options.resume:
        chosen = [mutant for mutant in chosen if mutant.key not in entries]
    elif not options.only and not options.table:
        entries = {}
    report = Report(options.core, entries, len(chosen))
    if options.table:
        show(found, report)
        return 0
    status = run(chosen, trees, report, options.jobs)
    if status != pytest.ExitCode.OK:
        return status
    reasons, tried = listed(), len(report.entries)
    open_ones = [entry for key, entry in report.survivors.items() if key not in reasons]
    print(f"{report.killed} of {tried} mutants killed, {report.killed / tried:.1%}: {report_path.relative_to(ROOT)}")
    for entry in open_ones:
        print(f"survived, and not explained: {entry['where']} {entry['was']}  ->  {entry['now']}")
    return 1 if open_ones or report.killed < GOAL * tried else 0


if __name__ == "__main__":
    sys.exit(main())
