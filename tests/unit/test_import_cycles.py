"""No import cycle: also none for type checkers only, inside a function, or by the name of a module in a text."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.suite.statement import imports

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "streams/lapse",
    "connectors/lapse_client",
    "connectors/lapse_gateway",
    "connectors/lapse_kombu",
    "connectors/lapse_spark",
)

BY_NAME = re.compile(r"import_module|run_module|__import__|[\w.]:\w+[\"']")
"""What a module has that imports another one by a text."""

Graph = Mapping[str, set[str]]


def sources() -> dict[str, Path]:
    """Every module of the packages, by its name."""
    found = {}
    for package in PACKAGES:
        root = ROOT / package
        for file in root.rglob("*.py"):
            parts = file.relative_to(root.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(name: str, text: str, modules: Mapping[str, object]) -> set[str]:
    """What a module imports, wherever it does so."""
    nodes = ast.walk(ast.parse(text)) if BY_NAME.search(text) else imports(text)
    return {one for node in nodes for one in named(node, modules)} - {name}


def named(node: ast.AST, modules: Mapping[str, object]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, "an import names its module in full"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield from (
                one for one in (whole, node.module) if one in modules and (one == whole or whole not in modules)
            )
    elif isinstance(node, ast.Call) and _called(node.func) in ("import_module", "run_module", "__import__"):
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        constants = [one.value for one in values if isinstance(one, ast.Constant)]
        yield from (one for one in constants if isinstance(one, str) and one in modules)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        module, colon, attribute = node.value.partition(":")
        if colon and attribute.isidentifier() and module in modules:
            yield module


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def cycles(graph: Graph) -> list[list[str]]:
    """Modules that reach themselves, those that reach each other together (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in graph:
        if module not in index:
            visit(module)
    return found


def test_no_module_imports_itself_by_way_of_others():
    modules = sources()
    assert len(modules) > 200
    graph = {name: imported(name, file.read_text("utf-8"), modules) for name, file in modules.items()}
    assert graph["lapse_spark.entry"] == {"lapse_spark.cli"}
    assert "lapse.cli.queue" in graph["lapse.cli"]
    assert cycles(graph) == []


def test_a_cycle_is_found_however_it_is_made():
    texts = {
        "a": "from b import c",
        "b": "def f():\n    import c",
        "c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import d",
        "d": "import importlib\nimportlib.import_module('a').main()",
        "e": "import a",
        "f": "__import__('g')",
        "g": "import importlib\nimportlib.import_module(name='f')",
        "h": "LAZY = {'i': Lazy('i:command')}",
        "i": "import h",
    }
    found = cycles({name: imported(name, text, texts) for name, text in texts.items()})
    assert found == [["a", "b", "c", "d"], ["f", "g"], ["h", "i"]]
