"""pytest rewrites the asserts of tests, and leaves lapse's own modules as its users import them."""

import os
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from lapse.protocol import signature
from support.suite import rewritten


def test_only_tests_are_rewritten() -> None:
    loaders = [type(sys.modules[name].__spec__.loader) for name in (__name__, signature.__name__)]
    assert loaders == [rewrite.AssertionRewritingHook, SourceFileLoader]


def test_a_share_of_the_files_is_rewritten_once_and_again_after_a_change(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    files = [tmp_path / f"test_{number}.py" for number in range(3)]
    for file in files:
        file.write_text("def test_it():\n    assert 1 + 1 == 2\n")
    assert rewritten.files_of([str(tmp_path), f"{files[0]}::test_it"]) == files
    assert rewritten.write(request.config, files[::2]) == 2
    assert rewritten.write(request.config, files) == 1
    assert rewritten.write(request.config, files) == 0
    os.utime(files[0], (time.time() + 9, time.time() + 9))
    files[1].write_text("no Python")
    os.utime(files[1], (time.time() + 9, time.time() + 9))
    assert rewritten.write(request.config, files) == 1
    cached = rewrite.get_cache_dir(files[2]) / f"test_2{rewrite.PYC_TAIL}"
    assert rewrite._read_pyc(files[2], cached) is not None
