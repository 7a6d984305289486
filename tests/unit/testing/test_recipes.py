"""The recipes, run as they stand: their configuration, their code, and what it prints, on the core in memory.

Blocks of Python are one program. A block of the kind `text` below one is what it prints. A comment
`<!-- 10 s later -->` lets so much time pass.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from lapse.testing import Lapse

RECIPES = Path(__file__).parents[3] / "docs" / "recipes"
PART = re.compile(r"^```(toml|python|text)\n(.*?)^```$|^<!-- ([\d.]+) s later -->$", re.MULTILINE | re.DOTALL)
FROM_EXAMPLES = {"fastapi.md": "fastapi_app.py", "exactly-once-postgresql.md": "exactly_once_postgres.py"}
"""Recipes whose code is that of an example, which a test runs as a whole."""

RUN = sorted({path.name for path in RECIPES.glob("*.md")} - FROM_EXAMPLES.keys())


@pytest.mark.feature("X8")
@pytest.mark.parametrize("page", [*RUN, "../from-celery.md"])
def test_a_recipe_does_what_it_shows(lapse: Lapse, page: str, tmp_path: Path) -> None:
    program: dict[str, Any] = {}
    printed, ran = "", 0
    for kind, text, seconds in PART.findall((RECIPES / page).read_text("utf-8")):
        if kind == "toml":
            (tmp_path / "lapse.toml").write_text(text, "utf-8")
            lapse.load(tmp_path / "lapse.toml")
        elif kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, page, "exec"), program)  # it is the page's
            printed, ran = out.getvalue(), ran + 1
        elif kind == "text":
            assert printed == text
            printed = ""
        else:
            assert not printed, "what a block prints is shown"
            lapse.clock.advance(float(seconds))
    assert ran
    assert not printed, "what a block prints is shown"


@pytest.mark.parametrize("page", FROM_EXAMPLES)
def test_a_recipe_shows_its_example_as_it_is(page: str) -> None:
    example = (RECIPES.parents[1] / "examples" / FROM_EXAMPLES[page]).read_text("utf-8")
    blocks = [text for kind, text, _ in PART.findall((RECIPES / page).read_text("utf-8")) if kind == "python"]
    assert blocks
    for block in blocks:
        for part in re.split(r"\n{2,}", block.strip()):
            assert part in example, part
