"""The verifier ``code_steps``: for each test of the row, the statement at which the program fails.

A program runs up to one of its statements, inside the box of the ``code`` verifier, and bisection finds the first one
that does not complete in few runs. The program itself reports exceptions, so it can improve the scores of its steps,
but never its answers: ``code`` judges the outcome.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.code.guest.blocks import PYTHON
from grpo_verifiers.code.levels import choose, level_problems
from grpo_verifiers.code.pool import blame_for_box, shared_pool
from grpo_verifiers.code.question import TimeBudget
from grpo_verifiers.code.referee import BoxSet, Referee
from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.code.tests import BadTestsError, CallTest, CodeTest, StdioTest, Test, read_tests
from grpo_verifiers.options import Range, TagName
from grpo_verifiers.reading.fences import dedent, language_blocks
from grpo_verifiers.reading.thinking import blank_thinking
from grpo_verifiers.sandbox.box import BoxError, BoxKind, Level, Limits
from grpo_verifiers.steps.aggregate import Aggregate, step_verdict
from grpo_verifiers.steps.segments import Span, own_text, segment, without_specials
from grpo_verifiers.verdict import Status, Verdict, excused

_IDLE = re.compile(
    r"(?:pass|\.\.\.|-?\d[\d_.]*|None|True|False|'[^']*'|\"[^\"]*\"|\"\"\"[^\"]*\"\"\"|'''[^']*''')\s*;?\s*\Z"
)
_PATIENCE = 3
_RUNS = 20
"""The limit of all runs, in limits of one run."""
Ran = Literal["through", "left", "failed", "late"]


@dataclass(frozen=True)
class _Program:
    """The program that begins at ``start`` of a text: a completion with its special tokens blanked out.

    ``indent`` is that of its fence; ``spans`` are its statements. ``cut``: its block is not closed, so that its last
    statement is incomplete.
    """

    text: str
    start: int
    indent: str
    spans: Sequence[Span]
    cut: bool

    @property
    def complete(self) -> int:
        """The number of complete statements."""
        return len(self.spans) - self.cut

    def source(self, last: int) -> str:
        """The program up to the end of a statement."""
        return dedent(self.text[self.start : self.spans[last][1]], self.indent)

    def statement(self, at: int) -> str:
        """The source of one statement."""
        start, end = self.spans[at]
        return dedent(self.text[start - len(self.indent) if start else 0 : end], self.indent)


@dataclass(frozen=True)
class _Case:
    """A program, the boxes that it runs in, the limits of each run and the time budget of all."""

    program: _Program
    boxes: BoxSet
    box_kind: BoxKind
    limits: Limits
    budget: TimeBudget

    def run(self, mode: str, source: str, **options: Any) -> ProgramRun:
        """A run that begins now."""
        message = {"mode": mode, "source": source}
        return ProgramRun(self.boxes.box(self.box_kind), self.budget.bounded(self.limits), [message], **options)


@Traits(
    isolation="inline",
    timeout=3600.0,
    max_concurrency=4096,
    pure=True,
    steps=True,
    option_problems=level_problems,
    boxes=True,
)
async def code_steps(
    completion: str,
    completion_text: str,
    tests: Any,
    turn_spans: Sequence[Span] | None = None,
    *,
    aggregate: Aggregate = "min",
    time_limit: Annotated[float, Range(0.01, 3600)] = 5.0,
    memory: Annotated[float, Range(0.05, 1024)] = 1.0,
    max_source: Annotated[int, Range(1, 1 << 20)] = 100_000,
    level: Level = "process",
    highest: Level = "full",
    think: TagName | None = "think",
) -> Verdict:
    r"""Score each statement of the last Python program by the share of tests under which it runs through.

    >>> from grpo_verifiers import get_verifier
    >>> program = "```python\na = int(input())\nb = 1 // a\n```"
    >>> verdict = get_verifier("code_steps").verify(program, tests=[{"stdin": "0", "stdout": ""}])
    >>> verdict.score, [step.score for step in verdict.steps]
    (0.0, [1.0, 0.0])

    A test with standard input runs the program with it. A test that calls a function loads the program; if the call
    itself raises, the statement that defines the function has failed. A wrong value is no failure here. A test does not
    score the statements after the failed one, or after the exit of the program; statements without effect (``pass``, a
    constant) are never scored.

    Use it when programs crash: with ``advantage: process`` the statement that failed is blamed and not all of them.
    Use ``code`` as well, which judges the result.

    Scores: that of the steps by ``aggregate``; each step is a share of tests from 0 to 1; 0 unparsable (no Python
    statement in a block); None, not applicable, where no statement was reached; None, error, where ``tests`` cannot be
    used.

    Config:
        advantage: process
        verifiers: [code, {name: code_steps, weight: 0.0}]

    Args:
        completion: the model's text; unused, see ``completion_text``.
        completion_text: the completion as sampled.
        tests: as ``code`` takes them.
        turn_spans: the spans of the model's own turns; results of tools are not read.
        aggregate: the completion's score from those of its steps: min, mean, last or product.
        time_limit: seconds that one run may take.
        memory: GiB for a run and all its processes.
        max_source: characters of a program.
        level: the least confinement to run under, as for ``code``.
        highest: the most confinement to use, as for ``code``.
        think: tag of the thinking section that is left out; None leaves nothing out.
    """
    del completion
    try:
        read = read_tests(tests)
    except BadTestsError as error:
        return excused(str(error))
    completion_text = own_text(completion_text, turn_spans)
    program = _program(completion_text, think)
    if program is None:
        return Verdict(0.0, Status.UNPARSABLE, "no fenced block with a complete Python statement")
    if (size := program.spans[-1][1] - program.start) > max_source:
        return Verdict(
            0.0, Status.UNPARSABLE, f"a program of {size} characters, at most {max_source} are run (max_source)"
        )
    limits = Limits(wall=float(time_limit), cpu=max(1, round(time_limit + 0.5)), memory=int(memory * (1 << 30)))

    total = _RUNS * limits.wall

    def work(referee: Referee) -> list[list[float | None]]:
        task = (program, BoxKind(choose(level, highest)), limits, total, read)
        rows: list[list[float | None]] = referee.run(step_rows, task, total + limits.wall)
        return rows

    try:
        rows = await asyncio.wrap_future(shared_pool().submit(work))
    except BoxError as error:
        return await blame_for_box(error, level, highest, ())
    scores = [_share([row[at] for row in rows]) for at in range(program.complete)] + [None] * program.cut
    for at, (start, end) in enumerate(program.spans):
        if _IDLE.match(completion_text[start:end].strip()):
            scores[at] = None
    bad = next((at for at, score in enumerate(scores, 1) if score is not None and score < 1), None)
    result = f"{program.complete} statements" if bad is None else f"statement {bad} of {program.complete} fails"
    tried = f"{len(read)}" if len(rows) == len(read) else f"{len(rows)} of {len(read)}"
    return step_verdict(program.spans, scores, aggregate, f"{result} under {tried} tests")


def _program(text: str, think: str | None = "think") -> _Program | None:
    """The program of a completion; None without a complete statement."""
    clean = without_specials(blank_thinking(text, think))  # a program in the thinking does not count
    blocks = language_blocks(clean, PYTHON, unclosed=True)
    if not blocks:
        return None
    start, _, indent, _, closed = blocks[-1]
    program = _Program(clean, start, indent, segment(clean, "statements"), not closed)
    return program if program.complete > 0 else None


def _share(scores: Sequence[float | None]) -> float | None:
    present = [score for score in scores if score is not None]
    return sum(present) / len(present) if present else None


def step_rows(task: tuple[_Program, BoxKind, Limits, float, Sequence[Test]], boxes: BoxSet) -> list[list[float | None]]:
    """For each test the score of every statement; in the referee, where the time of all runs begins."""
    program, box_kind, limits, total, tests = task
    case, count = _Case(program, boxes, box_kind, limits, TimeBudget(total)), program.complete
    loaded: list[float | None] | None = None
    rows = []
    late = 0
    for test in tests:
        if case.budget.over():
            break
        if isinstance(test, StdioTest):
            if late < _PATIENCE:
                row, timeouts = _search(count, partial(_main, case, test))
                late += timeouts
                rows.append(row)
            continue
        if loaded is None:
            loaded, _ = _search(count, partial(_load, case))
        row = list(loaded)
        if all(score == 1 for score in row) and (failed := _failed_call(case, test)) is not None:
            row[failed] = 0.0
        rows.append(row)
    return rows


def _search(count: int, run: Callable[[int], Ran]) -> tuple[list[float | None], int]:
    """Scores of the statements by the first one that does not run through, and how many runs were out of time."""
    ended = run(count - 1)
    if ended == "through":
        return [1.0] * count, 0
    low, high, timeouts = 0, count - 1, int(ended == "late")  # every statement before low runs through, high does not
    while low < high and timeouts < _PATIENCE:
        middle = (low + high) // 2
        outcome = run(middle)
        timeouts += outcome == "late"
        if outcome == "through":
            low = middle + 1
        else:
            high, ended = middle, outcome
    own = 1.0 if ended == "left" else 0.0
    return [1.0] * low + [None] * (high - low) + [own] + [None] * (count - high - 1), timeouts


def _main(case: _Case, test: StdioTest, last: int) -> Ran:
    """Run the program up to a statement."""
    # Written after the last statement: the mark in the output proves that all have run.
    mark = f"\n{secrets.token_hex(16)}\n".encode()
    source = f"{case.program.source(last)}\n__import__('sys').stdout.flush(), __import__('os').write(1, {mark!r})"
    with case.run("main", source, stdin=test.stdin.encode("utf-8", "surrogatepass"), capture=True) as program:
        reply = program.receive()
        program.wait()
    if program.end != "exit":
        return "late" if program.end == "timeout" else "failed"
    if mark in program.output:
        return "through"
    return "failed" if reply is not None else "left"


def _load(case: _Case, last: int) -> Ran:
    """Load the program up to a statement."""
    with case.run("calls", case.program.source(last), last=True) as program:
        reply = program.receive()
    if reply == ["loaded"]:
        return "through"
    return "late" if program.end == "timeout" else "failed"


def _failed_call(case: _Case, test: CallTest | CodeTest) -> int | None:
    """The statement that defines a function with a failing or endless call; None if the call succeeds."""
    if isinstance(test, CallTest):
        question: dict[str, Any] = {"name": test.function, "args": test.args, "kwargs": test.kwargs}
        names = {test.function.partition(".")[0]}
    else:
        question = {"code": test.code}
        names = test.names
    with case.run("calls", case.program.source(case.program.complete - 1), questions=[question], last=True) as program:
        program.receive()
        reply = program.answer()
    failed = not isinstance(reply, list) or not reply or reply[0] == "raised"
    if isinstance(reply, list) and reply[:2] == ["raised", "AssertionError"] and isinstance(test, CodeTest):
        failed = False  # a wrong value
    chosen = "|".join(map(re.escape, sorted(names)))
    if not failed or not chosen:
        return None
    binds = re.compile(rf"^(?:(?:async\s+)?def|class)\s+(?:{chosen})\b|^(?:{chosen})\s*=", re.MULTILINE)
    matches = [at for at in range(case.program.complete) if binds.search(case.program.statement(at))]
    return matches[-1] if matches else None
