"""Which files pytest rewrites the asserts of, and which process of a parallel run does so.

All processes collect all tests, in the same order. In the first run after a change of many files, each would rewrite
and compile every file, at the same time as the others do. So each begins with a part of the files, and finds the parts
of the others in pytest's cache.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def leave_out(package: str) -> None:
    """Have pytest import a package that brings a plugin as it is, from now on.

    pytest would rewrite six hundred modules, which workers compile once more for themselves.
    """
    for finder in sys.meta_path:
        if isinstance(finder, rewrite.AssertionRewritingHook):
            finder._must_rewrite -= {one for one in finder._must_rewrite if one.partition(".")[0].startswith(package)}
            finder._marked_for_rewrite_cache.clear()


def files_of(arguments: Sequence[str]) -> list[Path]:
    """Return the test files that a run is given, by pytest's arguments: directories, files and tests."""
    paths = {Path(one.partition("::")[0]) for one in arguments}
    return sorted(
        {
            file
            for path in paths
            for file in (path.rglob("test_*.py") if path.is_dir() else [path] if path.is_file() else [])
        }
    )


def write(config: pytest.Config, files: Sequence[Path]) -> int:
    """Write files without a recent rewritten form into pytest's cache. Return their number."""
    written = 0
    if sys.dont_write_bytecode:
        return written
    for file in files:
        cache = rewrite.get_cache_dir(file)
        place = cache / (file.name.removesuffix(".py") + rewrite.PYC_TAIL)
        if (place.exists() and place.stat().st_mtime >= file.stat().st_mtime) or not rewrite.try_makedirs(cache):
            continue
        try:
            stamp, code = rewrite._rewrite_test(file, config)
        except (SyntaxError, ValueError, OSError):
            continue  # as pytest reports when it collects the file
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stamp, place)
        written += 1
    return written


def write_share(config: pytest.Config, number: int, count: int) -> None:
    """Write one of `count` parts of a run's files."""
    write(config, files_of([str(config.invocation_params.dir / one) for one in config.args])[number::count])
