"""Makes mutants: small changes of a module's source that good tests should notice."""

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

_NO_CODE = frozenset({"annotation", "returns", "decorator_list", "type_comment", "ctx", "bases"})
_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_CONDITIONS = (ast.If, ast.While, ast.IfExp)

Slot = tuple[object, str | int]
"""The position of a node in its tree: a list and an index, or a node and a field."""


@dataclass(frozen=True)
class Mutant:
    """A change of one node.

    Attributes:
        module: the module's dotted name.
        path: the file.
        line: the line of the change.
        function: the innermost function or class; empty = the module.
        replaced: the outermost function, whose code can be replaced alone; empty = none, so that the module must be
            imported again.
        kind: the operator that made the change.
        was: the original source.
        now: the changed source.
        key: an id that stays the same while the line only moves within its function.
        apply: makes the change in the module's tree, which all mutants of the module share.
    """

    module: str
    path: Path
    line: int
    function: str
    replaced: str
    kind: str
    was: str
    now: str
    key: str
    apply: Callable[[], None]


def mutants(module: str, path: Path, source: str) -> tuple[list[Mutant], ast.Module]:
    """Return all mutants of a module, in the order of its lines, and the tree that they change."""
    tree, lines = ast.parse(source), source.splitlines()
    seen: Counter[str] = Counter()
    found = []
    for node, slot, function, replaced in _walk(tree, (tree, "body"), "", ""):
        for kind, new in _alternatives(node):
            was, now = _text(node), _text(new)
            name = f"{module}\0{function}\0{lines[node.lineno - 1].strip()}\0{kind}\0{was}\0{now}"
            seen[name] += 1
            key = blake2b(f"{name}\0{seen[name]}".encode(), digest_size=8).hexdigest()
            apply = _replacing(slot, ast.copy_location(new, node))
            found.append(Mutant(module, path, node.lineno, function, replaced, kind, was, now, key, apply))
    return found, tree


def sample(found: list[Mutant], size: int) -> list[Mutant]:
    """Return about `size` mutants, at least four of each module. The same code yields the same sample."""
    by_module: dict[str, list[Mutant]] = {}
    for mutant in found:
        by_module.setdefault(mutant.module, []).append(mutant)
    chosen: set[str] = set()
    for some in by_module.values():
        share = max(4, round(size * len(some) / len(found)))
        chosen.update(mutant.key for mutant in sorted(some, key=lambda mutant: mutant.key)[:share])
    return [mutant for mutant in found if mutant.key in chosen]


def _walk(
    node: ast.AST, slot: Slot, function: str, replaced: str
) -> Iterator[tuple[ast.expr | ast.stmt, Slot, str, str]]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}".lstrip(".")
    if isinstance(node, ast.expr | ast.stmt):
        yield node, slot, function, replaced
    for field, value in ast.iter_fields(node):
        if field in _NO_CODE:
            continue
        # Defaults of a function's parameters are computed when its module is imported.
        within = function if isinstance(node, ast.FunctionDef) and field == "body" and not replaced else replaced
        if isinstance(value, list):
            for at, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _walk(item, (value, at), function, within)
        elif isinstance(value, ast.AST):
            yield from _walk(value, (node, field), function, within)


def _alternatives(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    match node:
        case ast.Compare(ops=[op]):
            for other in _COMPARISONS[type(op)]:
                yield "comparison", _with(node, ops=[other()])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
            yield "arithmetic", _with(node, op=_ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield "boolean", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield "boolean" if isinstance(node.op, ast.Not) else "arithmetic", operand
        case ast.Constant(value=bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield "constant", ast.Constant(value + 1)
            yield "constant", ast.Constant(value - 1)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield "min/max", _with(node, func=ast.Name(_CALLS[name], ast.Load()))
        case ast.Break():
            yield "break", ast.Continue()
        case ast.Continue():
            yield "break", ast.Break()
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None", ast.Return(ast.Constant(None))
    if isinstance(node, _CONDITIONS) and not isinstance(node.test, ast.UnaryOp):
        yield "condition", _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    if _can_go(node):
        yield "deletion", ast.Pass()


def _can_go(node: ast.expr | ast.stmt) -> bool:
    """Return whether a statement has an effect and can be removed without undefined names."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise():
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
    return False


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _replacing(slot: Slot, new: ast.AST) -> Callable[[], None]:
    holder, at = slot

    def apply() -> None:
        ast.fix_missing_locations(new)
        if isinstance(holder, list):
            holder[at] = new
        else:
            setattr(holder, at, new)

    return apply


def _text(node: ast.AST) -> str:
    head = copy.copy(node)
    if hasattr(head, "body") and isinstance(head.body, list):
        head.body = [ast.Expr(ast.Constant(...))]
        if hasattr(head, "orelse"):
            head.orelse = []
    return ast.unparse(ast.fix_missing_locations(head)).replace("\n", " ")
