"""Mutants of a source: one operator, constant, condition, call, order of arguments or returned value is another one.

Only the changed span of the text differs, so a mutant keeps formatting, comments and line numbers. Never changed:
docstrings, annotations, asserts, arguments of ``raise``, ``print`` and loggers, f-strings, ``__all__``, blocks under
``TYPE_CHECKING`` and statements with ``# pragma: no cover``.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"), ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
SYMMETRIC = {"max", "min", "maximum", "minimum", "isinstance", "issubclass", "hasattr", "getattr", "cast", "equal"}
"""Functions whose arguments keep their order: another one changes nothing, or fails wherever it runs."""
LOGS = {"debug", "info", "warning", "exception", "warn", "log"}
TEXTS = LOGS | {"print", "error"}
"""Functions whose arguments are messages."""
UNTOUCHED = {"strict", "encoding", "errors", "help", "metavar", "stacklevel", "flush", "indent", "frozen", "maxsize"}
"""Keywords that change a check, a look or a cache, no behaviour."""
BOUND = 8
"""From here on numbers in capitals are sizes and times of one's choice."""
_WORD = re.compile(r"[A-Za-z_][\w.-]{0,29}")


@dataclass(frozen=True, order=True)
class Mutant:
    """A span of bytes of a file and the text in its place."""

    file: str
    line: int
    start: int
    end: int
    kind: str
    before: str
    after: str
    lines: tuple[int, ...]
    """The lines whose tests run it: its own and its statement's first; of a default the function's body."""
    names: tuple[str, ...] = ()
    """Names that its statement assigns, outside of functions."""

    def applied(self, source: bytes) -> bytes:
        """The source with the change."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    @property
    def change(self) -> str:
        """The change as one line of text."""
        return " ".join(f"{self.before} → {self.after}".split())


class _Place(NamedTuple):
    """Where a node stands: in a function or not, below which statement."""

    inside: bool = False
    lines: tuple[int, ...] = ()
    statement: int = 0
    names: tuple[str, ...] = ()


class _Change(NamedTuple):
    kind: str
    start: int
    end: int
    after: str


def mutants(file: str, source: bytes) -> list[Mutant]:
    """All mutants of a file, in order."""
    return sorted(set(_Reader(file, source).walk(ast.parse(source), _Place())))


class _Reader:
    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.rows = source.splitlines(keepends=True)
        self.starts = [0]
        for row in self.rows:
            self.starts.append(self.starts[-1] + len(row))

    def walk(self, node: ast.AST, place: _Place) -> Iterator[Mutant]:
        if isinstance(node, ast.stmt):
            if b"pragma: no cover" in self.rows[node.lineno - 1]:
                return
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names = tuple(one.id for one in targets if isinstance(one, ast.Name))
            place = place._replace(statement=node.lineno, names=() if place.inside else names)
        bound = any(name.isupper() for name in place.names)
        for kind, start, end, after in self.changes(node, bound=bound):
            line = self.source.count(b"\n", 0, start) + 1
            lines = (line, place.statement) if place.inside else place.lines
            yield Mutant(self.file, line, start, end, kind, self.source[start:end].decode(), after, lines, place.names)
        for child, its_place in self.below(node, place):
            yield from self.walk(child, its_place)

    def below(self, node: ast.AST, place: _Place) -> Iterator[tuple[ast.AST, _Place]]:
        """What is changed within a node, and where it stands."""
        children = ast.iter_child_nodes(node)
        match node:
            case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.pattern():
                return
            case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
                return
            case ast.Call() if _name(node) in TEXTS:
                return
            case ast.keyword(arg=name) if name in UNTOUCHED:
                return
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant()):
                return
            case ast.If(test=test) if "__name__ ==" in self.text(test):
                return
            case ast.If(test=test) if "TYPE_CHECKING" in self.text(test):
                children = iter(node.orelse)
            case ast.AnnAssign(value=value):
                children = iter([value] if value is not None else [])
            case ast.ClassDef():
                place = _Place()
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                body = node.body if isinstance(node.body, list) else [node.body]
                lines = tuple(range(body[0].lineno, (body[-1].end_lineno or 0) + 1))
                once = [*getattr(node, "decorator_list", []), *node.args.defaults, *node.args.kw_defaults]
                yield from ((one, _Place(lines=lines)) for one in once if one is not None)
                children, place = iter(body), _Place(inside=True, statement=place.statement)
        yield from ((child, place) for child in children)

    def changes(self, node: ast.AST, *, bound: bool = False) -> Iterator[_Change]:
        """The changes of a node itself; a ``bound`` in capitals could as well be another, so that it is taken to 0."""
        match node:
            case ast.Constant(value=int(value) | float(value)) if bound and value >= BOUND:
                yield self.other("constant", node, "0")
            case ast.BinOp(left=left, op=operator, right=right) if not (_text_like(left) or _text_like(right)):
                yield from self.between(left, right, operator)
            case ast.BoolOp(values=values, op=operator):
                for left, right in pairwise(values):
                    yield from self.between(left, right, operator)
            case ast.Compare(left=first, ops=operators, comparators=others):
                for (left, right), each in zip(pairwise([first, *others]), operators, strict=True):
                    yield from self.between(left, right, each)
                yield from self.keys(first, *others)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                yield self.other("constant", node, str(-value - 1))  # not 1 for -1: of two axes it is the same one
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
                yield self.other("operator", node, f"({self.text(operand)})")
            case ast.AugAssign(op=operator, value=value) if type(operator) in SWAPS and not _text_like(value):
                before, after = SWAPS[type(operator)]
                place = self.source.index(f"{before}=".encode(), self.span(node.target)[1])
                for text in (f"{after}=", "="):
                    yield _Change("operator", place, place + len(before) + 1, text)
            case ast.Constant(value=bool(value)):
                yield self.other("constant", node, str(not value))
            case ast.Constant(value=int(value)):
                for number in (value + 1, value - 1) if value <= 100 else (value * 10,):
                    yield self.other("constant", node, str(number))
            case ast.Constant(value=float(value)):
                yield self.other("constant", node, repr(value + 1 if value < 1e-3 else value * 2))
            case ast.Subscript(slice=key):
                yield from self.keys(key)
            case ast.Dict(keys=keys):
                yield from self.keys(*keys)
            case ast.keyword(arg=name, value=value) if name not in UNTOUCHED:
                yield from self.keys(value)
            case ast.Expr(value=ast.Call() as call) | ast.Expr(value=ast.Await(value=ast.Call() as call)):
                if _name(call) not in LOGS:
                    yield self.other("call", node, "pass")
            case ast.Return(value=value) if value is not None and self.text(value) not in {"None", "False"}:
                yield self.other("return", value, "None")
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield from self.condition(test, forced=("False",) if isinstance(node, ast.While) else ("False", "True"))
            case ast.comprehension(ifs=tests):
                for test in tests:
                    yield from self.condition(test, forced=("False", "True"))
            case ast.Call(args=args) if _name(node) not in SYMMETRIC | TEXTS:
                for left, right in pairwise(args):
                    (start, middle), (behind, end) = self.span(left), self.span(right)
                    texts = self.text(right), self.text(left)
                    if texts[0] != texts[1] and not any(text.startswith("*") for text in texts):
                        yield _Change("arguments", start, end, self.source[middle:behind].decode().join(texts))

    def condition(self, test: ast.expr, forced: tuple[str, ...]) -> Iterator[_Change]:
        if not isinstance(test, ast.Constant) and not re.search("TYPE_CHECKING|__name__ ==", self.text(test)):
            yield self.other("condition", test, f"(not ({self.text(test)}))")
            if not any(isinstance(one, ast.NamedExpr) for one in ast.walk(test)):
                yield from (self.other("condition", test, text) for text in forced)

    def keys(self, *nodes: ast.expr | None) -> Iterator[_Change]:
        """Another word in place of each that is a key or a mode."""
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _WORD.fullmatch(node.value):
                yield self.other("constant", node, repr(f"{node.value}_"))

    def between(self, left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[_Change]:
        """Another operator between two operands, whose brackets and comments stay."""
        before, after = SWAPS.get(type(operator), ("", ""))
        start, end = self.span(left)[1], self.span(right)[0]
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[start:end])
        place = re.search(re.escape(before.encode()).replace(rb"\ ", rb"\s+"), gap)
        if before and place:
            yield _Change("operator", start + place.start(), start + place.end(), after)

    def other(self, kind: str, node: ast.stmt | ast.expr, text: str) -> _Change:
        return _Change(kind, *self.span(node), text)

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        end = self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        return self.starts[node.lineno - 1] + node.col_offset, end

    def text(self, node: ast.stmt | ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _text_like(node: ast.expr) -> bool:
    """Texts and displays: with another operator they fail wherever they run."""
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.Dict | ast.ListComp) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
