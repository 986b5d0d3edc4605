"""Choose a completion's program among its blocks, by the names that they bind and read, before anything runs.

A program that is shown in one block and used in a later one is the first; one that is written in several is all of
them. No test runs for the choice, so that a completion with several programs has one, and not its best.
"""

import ast
import contextlib
import warnings

from .names import bound_by, unknown_names

PYTHON = ("python", "py", "python3", "py3", "ipython", "ipython3", "pypy", "pypy3")
"""Names of fenced blocks with a program, in lower case."""
_SESSION = (">>>", "In [", "$ ", "!", "%", "pip ", "python ")
_PLAIN = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Pass,
    ast.Assign,
    ast.AnnAssign,
)


class _Facts:
    """The effect of a block's unindented statements.

    Attributes:
        parses: it is a program by its grammar.
        binds: names that it binds at its left edge.
        makes: names that it binds and does not import.
        needs: names that it reads and binds nowhere.
        defines: it has functions or classes.
        acts: it has an effect when it runs.
        main: it tests for ``__name__``, so it has a main part.
        idle: it has no statement but values, as an example's output, or is a session at a prompt.
    """

    def __init__(self, *, parses: bool = False, idle: bool = False) -> None:
        self.parses, self.idle = parses, idle
        self.defines = self.acts = self.main = False
        self.binds: set[str] = set()
        self.makes: set[str] = set()
        self.needs: set[str] = set()


def program_of(blocks: list[str], names: list[list[str]], *, bare: bool = False) -> str:
    """The program of a completion with these blocks, in order, whose tests call one of each of ``names``.

    If tests call names: the last block that defines one of them; the last block if none does or it cannot be parsed.
    Else the last block, or an earlier one if the last uses its definitions and the earlier one has a main part, or if
    the last only uses it and the earlier one has an effect by itself. Sessions at a prompt and blocks without a
    statement are skipped, and ``bare`` blocks (fences without a language) that cannot be parsed. Blocks that bind the
    names which the chosen one reads and does not bind come before it, and those that define other names in tests.
    """
    facts = [_facts(block) for block in blocks]
    left = [at for at, each in enumerate(facts) if not each.idle and (each.parses or not bare)]
    left = left or [at for at, each in enumerate(facts) if not each.idle]
    if not left:
        return blocks[-1]
    at = left[-1]
    if facts[at].parses and names:
        called = {name for owners in names for name in owners}
        at = next((each for each in reversed(left) if facts[each].makes & called), at)
    elif facts[at].parses:
        while earlier := _binders(facts, left, at):
            has_main = any(facts[each].main for each in earlier)
            if not has_main and (facts[at].defines or not _acts(facts, left, earlier[-1])):
                break
            at = earlier[-1]
    chosen = {*_binders(facts, left, at), at}
    for owners in names if facts[at].parses else ():
        makers = [each for each in left if facts[each].makes.intersection(owners)]
        if makers and not chosen.intersection(makers):
            chosen |= {*_binders(facts, left, makers[-1]), makers[-1]}
    lines = [line for each in sorted(chosen) for line in blocks[each].split("\n")]
    return "\n".join(sorted(lines, key=lambda line: not (len(chosen) > 1 and line.startswith("from __future__ "))))


def _acts(facts: list[_Facts], left: list[int], at: int) -> bool:
    return any(facts[each].acts for each in [*_binders(facts, left, at), at])


def _binders(facts: list[_Facts], left: list[int], at: int) -> list[int]:
    """The blocks that a block needs: the nearest earlier one for each missing name, and the needs of those."""
    binders: list[int] = []
    missing = set(facts[at].needs)
    for each in reversed(left[: left.index(at)]):
        if bound := facts[each].binds & missing:
            binders.insert(0, each)
            missing = (missing - bound) | facts[each].needs
    return binders


def _facts(block: str) -> _Facts:
    if block.lstrip().startswith(_SESSION):
        return _Facts(idle=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(block)
    except Exception:  # noqa: BLE001 - SyntaxError, ValueError, RecursionError, MemoryError: all say the same
        return _Facts()
    facts = _Facts(parses=True)
    loads = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    facts.main = any(node.id == "__name__" for node in loads)
    facts.needs = unknown_names(tree)
    with contextlib.suppress(RecursionError):
        _edge(tree.body, facts)
    imported = [bound_by(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    facts.makes = facts.binds.difference(*imported)
    facts.idle = all(map(_is_idle, tree.body))
    return facts


def _edge(body: list[ast.stmt], facts: _Facts) -> None:
    """Collect the effect of statements outside functions and classes."""
    for part in body:
        facts.binds |= bound_by(part)
        facts.acts |= not isinstance(part, _PLAIN) and not _is_constant(part)
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            facts.defines = True
            continue
        for inner in ast.iter_child_nodes(part):
            if isinstance(inner, ast.stmt):
                _edge([inner], facts)
            elif isinstance(inner, ast.ExceptHandler):
                _edge(inner.body, facts)
            else:
                facts.binds |= {
                    node.id
                    for node in ast.walk(inner)
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                }


def _is_constant(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)


def _is_idle(part: ast.stmt) -> bool:
    """True for a statement without effect: an expression without calls, ``a: 3``, ``pass``."""
    if isinstance(part, ast.Pass) or (isinstance(part, ast.AnnAssign) and part.value is None):
        return True
    busy = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
    return isinstance(part, ast.Expr) and not any(isinstance(node, busy) for node in ast.walk(part))
