"""The verifier: extraction, the box, the verdict."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.code._grade import grade_packed
from grpo_verifiers.code._results import Result, unpack_results, verdict_of
from grpo_verifiers.code._trials import trials
from grpo_verifiers.code.guest.blocks import PYTHON
from grpo_verifiers.code.levels import choose, level_problems
from grpo_verifiers.code.pool import blame_for_box, shared_pool
from grpo_verifiers.code.question import GradingTask
from grpo_verifiers.code.referee import Referee
from grpo_verifiers.code.tests import BadTestsError, read_tests
from grpo_verifiers.options import Matches, Range, TagName
from grpo_verifiers.reading.fences import language_blocks
from grpo_verifiers.reading.thinking import answer_part
from grpo_verifiers.sandbox.box import BoxError, BoxKind, Level, Limits
from grpo_verifiers.verdict import Status, Verdict, excused

ModuleName = Annotated[str, Matches(r"[^\W\d]\w*(\.[^\W\d]\w*)*", "the name of a module")]
_RUNS = 20
_MOST_BLOCKS = 100
_TRUSTING = "assert_mode is 'in_process': a program can fool tests in its own process"


# Programs run in boxes of their own, each with its own time limit; here only their answers are compared.
@Traits(
    isolation="inline",
    timeout=3600.0,
    max_concurrency=4096,
    pure=True,
    option_problems=level_problems,
    trials=trials,
    gold_columns=("solution",),
    boxes=True,
)
async def code(
    completion: str,
    tests: Any,
    *,
    scoring: Literal["all", "share"] = "all",
    time_limit: Annotated[float, Range(0.01, 3600)] = 5.0,
    total_limit: Annotated[float, Range(0.01, 86_400)] | None = None,
    memory: Annotated[float, Range(0.05, 1024)] = 1.0,
    processes: Annotated[int, Range(1, 4096)] = 32,
    disk: Annotated[int, Range(1, 1 << 20)] = 64,
    float_tolerance: Annotated[float, Range(0, 1)] = 1e-6,
    assert_mode: Literal["apart", "in_process"] = "apart",
    level: Level = "process",
    highest: Level = "full",
    preload: Sequence[ModuleName] = (),
    max_source: Annotated[int, Range(1, 1 << 20)] = 100_000,
    think: TagName | None = "think",
) -> Verdict:
    r"""Run the fenced program of a completion, its last block or blocks, against the tests of its row.

    >>> from grpo_verifiers import get_verifier
    >>> program = "```python\ndef add(a, b):\n    return a + b\n```"
    >>> tests = [{"function": "add", "args": [1, 2], "expected": 3}]
    >>> get_verifier("code").verify(program, tests=tests).score
    1.0

    A test is ``{stdin, stdout}``, ``{function, args, expected}`` (or ``expected_repr``, a Python literal, for values
    beyond JSON; ``args_repr`` and ``kwargs`` likewise) or ``{code}`` with assertions. Every input of ``stdin`` is a run
    of its own; calls share one.

    Use it when the answer is a program and rows have tests. `grpo-plus verify --check-golds` checks the quality of the
    tests.

    Scores: 1 correct; 0 wrong (a test fails); with ``scoring="share"`` the share of tests, partial between; 0
    unparsable (no closed block); 0 timeout or error, where the program ran out of time or broke its box; None, error,
    where ``tests`` cannot be used.

    Config:
        verifiers:
          - name: code
            time_limit: 2.0
            scoring: share
            columns: {solution: canonical_solution}

    Args:
        completion: the text with the program.
        tests: a list of tests, or that list in JSON, such as ``[{"stdin": "1 2", "stdout": "3"}]``.
        scoring: ``"all"``: 1 where every test passes; ``"share"``: the share that passes.
        time_limit: seconds that one run may take.
        total_limit: seconds that all runs of a program may take together; None for 20 times ``time_limit``. A test
            that is not reached in this time has not passed.
        memory: GiB for a run and all its processes.
        processes: processes and threads of a run at a time.
        disk: MiB of its private folder.
        float_tolerance: relative, for floats and printed decimals; 0 compares their values exactly.
        assert_mode: ``"apart"``: test code runs in a box of its own and calls the program over a pipe, which transfers
            values and the fields of objects; ``"in_process"``: in the program's process, which can then fool it.
        level: the least confinement to run under: ``"full"`` (namespaces, Landlock, seccomp), ``"process"`` (the last
            two), or ``"none"``, for programs that you would run by hand.
        highest: the most confinement to use, even if more is available.
        preload: modules to import before programs are forked ("numpy"); programs without need for them pay nothing.
        max_source: characters of a program.
        think: tag of the thinking section, which is ignored; None reads everything.
    """
    try:
        read = read_tests(tests)
    except BadTestsError as error:
        return excused(str(error))
    blocks, bare = _blocks(answer_part(completion, think), max_source)
    source = blocks[-1]
    if not source.strip():
        return Verdict(0.0, Status.UNPARSABLE, "no closed fenced block with a python program")
    if len(source) > max_source:
        return Verdict(
            0.0, Status.UNPARSABLE, f"a program of {len(source)} characters, at most {max_source} are run (max_source)"
        )
    limits = Limits(
        wall=float(time_limit),
        cpu=max(1, round(time_limit + 0.5)),
        memory=int(memory * (1 << 30)),
        processes=processes,
        disk=disk << 20,
    )
    in_process = assert_mode == "in_process"
    all_required = scoring == "all"
    modules = tuple(map(str.__str__, preload))  # plain: a referee may not know another class of texts
    total = _RUNS * limits.wall if total_limit is None else float(total_limit)
    tolerance = float(float_tolerance)

    def work(referee: Referee) -> list[Result]:
        kind = BoxKind(choose(level, highest), modules)
        question = GradingTask(blocks, bare, read, kind, limits, tolerance, in_process, all_required, total)
        return ask_referee(question, referee)

    try:
        results: list[Result] = await asyncio.wrap_future(shared_pool().submit(work))
    except BadTestsError as error:
        return excused(str(error))
    except BoxError as error:
        return await blame_for_box(error, level, highest, modules)
    trusts_program = in_process and any(type(test).__name__ == "CodeTest" for test in read)
    return verdict_of(results, scoring, _TRUSTING if trusts_program else "")


def _blocks(answer: str, most: int) -> tuple[list[str], bool]:
    """The last blocks, up to ``most`` characters together; True if they name no language."""
    blocks = language_blocks(answer, PYTHON)[-_MOST_BLOCKS:]
    sources: list[str] = []
    size = 0
    for block in reversed(blocks):
        source = block.source(answer)
        size += len(source)
        if sources and size > most:
            break
        sources.append(source)
    return sources[::-1] or [""], bool(blocks) and not blocks[-1].language


def ask_referee(question: GradingTask, referee: Referee) -> list[Result]:
    """``grade`` in the referee's process; BoxError if that process fails, too."""
    packed = referee.run(grade_packed, question, question.total + question.limits.wall)
    return unpack_results(packed, len(question.tests))
