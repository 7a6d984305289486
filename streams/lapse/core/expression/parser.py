"""Parser: turns text into a syntax tree, with errors that point at the fault (X1)."""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, Final

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedInput

from lapse.core.expression import limits
from lapse.core.expression.complaint import explain_syntax_error
from lapse.core.expression.error import ExpressionError
from lapse.core.expression.functions import ALIASES, ATTRIBUTES, FUNCTIONS
from lapse.core.expression.pattern import read_pattern
from lapse.core.expression.repetition import PatternFault
from lapse.core.expression.size import check_size
from lapse.core.expression.syntax import (
    NAN,
    Affix,
    And,
    Arithmetic,
    Attribute,
    Between,
    Call,
    Case,
    Comparison,
    In,
    IsNan,
    IsNull,
    Like,
    Literal,
    Negative,
    Node,
    Not,
    Or,
    Path,
)

_STEP: Final = re.compile(r"/(?:(\w+)|('[^']*(?:''[^']*)*'|\"[^\"]*(?:\"\"[^\"]*)*\"))|\[([0-9]+)\]")
_SYNONYMS: Final = {"==": "=", "<>": "!="}


class _Fault(Exception):
    """A fault at a token, raised where the whole text is not known."""

    def __init__(self, message: str, token: Token, hint: str, *, offset: int = 0, length: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.position = (token.start_pos or 0) + offset
        self.length = len(token) if length is None else length
        self.hint = hint


def _unquoted(token: str) -> str:
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)


@v_args(inline=True)
class _Builder(Transformer[Token, Node]):
    """Builds the tree during parsing, and checks rules that the grammar cannot express."""

    def start(self, node: Node) -> Node:
        return node

    def disjunction(self, *operands: Node) -> Node:
        return Or(operands)

    def conjunction(self, *operands: Node) -> Node:
        return And(operands)

    def negation(self, _not: Token, operand: Node) -> Node:
        return Not(operand)

    def comparison(self, left: Node, operator: Token, right: Node) -> Node:
        return Comparison(_SYNONYMS.get(operator, str(operator)), left, right)

    def membership(self, operand: Node, negated: Token | None, *items: Node) -> Node:
        return _negate_if(negated, In(operand, items))

    def between(self, operand: Node, negated: Token | None, low: Node, high: Node) -> Node:
        return _negate_if(negated, Between(operand, low, high))

    def like(self, operand: Node, negated: Token | None, pattern: Token) -> Node:
        text = _unquoted(pattern)
        try:
            read_pattern(text)
        except PatternFault as fault:
            doubled = text[: fault.position].count(pattern[0])
            raise _Fault(fault.message, pattern, fault.hint, offset=1 + fault.position + doubled, length=1) from None
        return _negate_if(negated, Like(operand, text))

    def begins_with(self, operand: Node, negated: Token | None, *affixes: Token) -> Node:
        return _negate_if(negated, Affix(operand, tuple(map(_unquoted, affixes)), False))

    def ends_with(self, operand: Node, negated: Token | None, *affixes: Token) -> Node:
        return _negate_if(negated, Affix(operand, tuple(map(_unquoted, affixes)), True))

    def is_null(self, operand: Node, negated: Token | None, _null: Token) -> Node:
        return _negate_if(negated, IsNull(operand))

    def is_nan(self, operand: Node, negated: Token | None, _nan: Token) -> Node:
        return _negate_if(negated, IsNan(operand))

    def arithmetic(self, left: Node, operator: Token, right: Node) -> Node:
        return Arithmetic(str(operator), left, right)

    def negative(self, _minus: Token, operand: Node) -> Node:
        """Return a negative literal; other operands, NAN included, are negated at evaluation."""
        value = operand.value if isinstance(operand, Literal) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or value is NAN or repr(value)[0] == "-":
            return Negative(operand)
        return Literal(-value)

    def positive(self, plus: Token, operand: Node) -> Node:
        if isinstance(operand, Literal) and isinstance(operand.value, str):
            raise _Fault("a string has no sign", plus, "join strings with CONCAT(…)")
        return operand

    def number(self, token: Token) -> Node:
        if len(token) > limits.MAX_NUMBER:
            raise _Fault(f"this number has more than {limits.MAX_NUMBER} digits", token, "use a shorter number")
        value = int(token) if token.isdigit() else float(token)
        if math.isinf(value):
            raise _Fault("this number is too large", token, "the greatest is about 1.8e308")
        return Literal(value)

    def string(self, token: Token) -> Node:
        return Literal(_unquoted(token))

    def true(self, _token: Token) -> Node:
        return Literal(True)

    def false(self, _token: Token) -> Node:
        return Literal(False)

    def null(self, _token: Token) -> Node:
        return Literal(None)

    def nan(self, _token: Token) -> Node:
        return Literal(NAN)

    def path(self, token: Token) -> Node:
        steps: list[str | int] = []
        for plain, quoted, index in _STEP.findall(token):
            steps.append(int(index) if index else _unquoted(quoted) if quoted else plain)
        return Path(tuple(steps))

    def call(self, name: Token, *arguments: Node | None) -> Node:
        return _call(name, tuple(argument for argument in arguments if argument is not None))

    def case(self, *parts: Any) -> Node:
        branches = tuple(part for part in parts if isinstance(part, tuple))
        default = parts[-1]
        return Case(branches, Literal(None) if default is None or isinstance(default, tuple) else default)

    def branch(self, condition: Node, value: Node) -> Any:
        return (condition, value)


def _negate_if(negated: Token | None, node: Node) -> Node:
    return node if negated is None else Not(node)


def _call(token: Token, arguments: tuple[Node, ...]) -> Node:
    name = token.upper()
    name = ALIASES.get(name, name)
    if name in ATTRIBUTES:
        return _attribute(token, name, arguments)
    if name == "IF":
        if len(arguments) != 3:
            raise _Fault(f"IF takes 3 arguments, not {len(arguments)}", token, "write IF(condition, value, otherwise)")
        return Case(((arguments[0], arguments[1]),), arguments[2])
    function = FUNCTIONS.get(name)
    if function is None:
        raise _Fault(f"there is no function {token}", token, _similar(name))
    most = limits.MAX_ARGUMENTS if function.most is None else function.most
    if not function.least <= len(arguments) <= most:
        wanted = str(most) if function.least == most else f"{function.least} to {most}"
        plural = "" if wanted == "1" else "s"
        usage = f"write {name}({function.parameters})"
        raise _Fault(f"{name} takes {wanted} argument{plural}, not {len(arguments)}", token, usage)
    return Call(name, arguments)


def _attribute(token: Token, name: str, arguments: tuple[Node, ...]) -> Node:
    if name != "HEADER":
        if arguments:
            raise _Fault(f"{name} takes no arguments", token, f"write {name}()")
        return Attribute(name)
    match arguments:
        case (Literal(str(header)),):
            return Attribute(name, header)
        case _:
            raise _Fault("HEADER takes the header's name as a string literal", token, "write HEADER('name')")


def _similar(name: str) -> str:
    if name in ("NOW", "CURRENT_TIMESTAMP", "CURRENT_DATE"):
        return "there is no clock here; compare with TIMESTAMP_MS()"
    known = [*FUNCTIONS, *ALIASES, *ATTRIBUTES, "IF"]
    close = get_close_matches(name[:40], known, 1)
    return f"did you mean {close[0]}?" if close else "docs/expressions.md lists the functions"


_RULES: Final = files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")


@cache
def grammar() -> Lark:
    """Return the parser of the grammar. The first call creates it, which takes 80 ms of CPU."""
    return Lark(
        _RULES,
        parser="lalr",
        lexer="contextual",
        transformer=_Builder(),
        maybe_placeholders=True,
    )


def parse(text: str) -> Node:
    """Return the syntax tree of an expression.

    Raises:
        ExpressionError: the text is not an expression, or exceeds a limit.
    """
    if len(text) > limits.MAX_TEXT:
        raise ExpressionError(f"longer than {limits.MAX_TEXT} characters", text, limits.MAX_TEXT, hint="shorten it")
    try:
        node: Any = grammar().parse(text)
    except _Fault as fault:
        raise ExpressionError(fault.message, text, fault.position, length=fault.length, hint=fault.hint) from None
    except UnexpectedInput as error:
        raise explain_syntax_error(error, text) from None
    check_size(node, text)
    return node  # type: ignore[no-any-return]
