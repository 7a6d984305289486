"""Runs a notebook as a reader does: cell by cell, in one namespace."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any


def results(notebook: Path) -> list[Any]:
    """Run the cells of a notebook. Return what each prints, or the value of its last line.

    The cells contain nothing but Python, so this needs no Jupyter kernel.
    """
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    names: dict[str, Any] = {}
    return [_run("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]


def _run(source: str, names: dict[str, Any]) -> Any:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)  # code of this repository's notebook
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None
    return printed.getvalue() or value
