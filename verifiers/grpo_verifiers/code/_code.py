"""The verifier: extraction, the box, the verdict."""

import asyncio
import urllib.parse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from grpo_verifiers.code._grade import grade_packed
from grpo_verifiers.code._piston import Server, ServerError, execute, grade_remote
from grpo_verifiers.code._results import Result, unpack_results, verdict_of
from grpo_verifiers.code.box_set import BoxSet
from grpo_verifiers.code.languages import Language, available, language_of
from grpo_verifiers.code.levels import LEVELS, SandboxError, choose, probe
from grpo_verifiers.code.pool import Pool, remote_pool, shared_pool
from grpo_verifiers.code.question import Question, pack, unpack_kind
from grpo_verifiers.code.referee import Referee
from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.code.tests import BadTestsError, read_tests
from grpo_verifiers.reading.fences import dedented, wanted_blocks
from grpo_verifiers.reading.thinking import answer_part
from grpo_verifiers.sandbox.box import BoxError, BoxKind, Level
from grpo_verifiers.sandbox.limits import Limits
from grpo_verifiers.text._options import integer, number, one_of, require, tag_name
from grpo_verifiers.verdict import Status, Verdict, blamed, excused

_RUNS = 20
_TRUSTING = "assert_mode is 'in_process': a program can fool tests that run beside it"


async def code(
    completion: str,
    tests: Any,
    *,
    language: str = "python",
    scoring: Literal["all", "share"] = "all",
    time_limit: float = 5.0,
    total_limit: float | None = None,
    memory: float = 1.0,
    processes: int = 32,
    disk: int = 64,
    float_tolerance: float = 1e-6,
    assert_mode: Literal["apart", "in_process"] = "apart",
    level: Literal["full", "process", "none"] = "process",
    highest: Literal["full", "process", "none"] = "full",
    preload: Sequence[str] = (),
    max_source: int = 100_000,
    think: str | None = "think",
    piston: str | None = None,
    concurrency: int = 16,
) -> Verdict:
    """Run the fenced program of a completion against the tests of its row: its last block, or what that belongs to.

    A test is ``{stdin, stdout}``, ``{function, args, expected}`` (or ``expected_repr``, a Python literal, for what JSON
    cannot say; ``args_repr`` and ``kwargs`` likewise) or ``{code}`` with assertions. Every input of ``stdin`` is a run
    of its own; calls share one.

    Args:
        completion: the text with the program.
        tests: a list of tests, or that list in JSON.
        language: what the program is written in.
        scoring: ``"all"``: 1 where every test passes; ``"share"``: the share that passes.
        time_limit: seconds that one run may take.
        total_limit: seconds that all runs of a program may take together; None for 20 times ``time_limit``. A test
            that is not reached within them has not passed.
        memory: GiB for a run and all its processes.
        processes: processes and threads of a run at a time.
        disk: MiB of its private folder.
        float_tolerance: relative, for floats and printed decimals; 0 compares their values exactly.
        assert_mode: ``"apart"``: test code runs in a box of its own and calls the program over a pipe, which values and
            the fields of objects cross; ``"in_process"``: beside the program, which can then fool it.
        level: the least confinement to run under: ``"full"`` (namespaces, Landlock, seccomp), ``"process"`` (the last
            two), or ``"none"``, for programs that you would run by hand.
        highest: the most confinement to use where more is there.
        preload: modules to import before programs are forked ("numpy"); programs without need for them pay nothing.
        max_source: characters of a program.
        think: tag of the thinking section, which is not looked at; None looks at everything.
        piston: address of a server with the Piston API, up to ``/execute``, that runs the programs instead of this
            machine; ``level``, ``processes``, ``disk`` and ``preload`` are that server's to set.
        concurrency: requests to the server at a time.
    """
    options = {name: value for name, value in locals().items() if name not in {"completion", "tests"}}
    require("code", _value_problems(**options))
    try:
        read = read_tests(tests)
    except BadTestsError as error:
        return excused(str(error))
    tongue = language_of(language)
    blocks = _blocks(answer_part(completion, think), tongue, max_source)
    source = blocks[-1]
    if not source.strip():
        return Verdict(0.0, Status.UNPARSABLE, f"no closed fenced block with a {language} program")
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
    lowest: Level = level
    in_process = assert_mode == "in_process"
    whole = scoring == "all"

    total = _RUNS * limits.wall if total_limit is None else float(total_limit)
    tolerance = float(float_tolerance)

    def work(referee: Referee) -> list[Result]:
        if piston is not None:
            nowhere = BoxKind("none")  # boxes of this machine stay unused
            question = Question(blocks, read, tongue, nowhere, limits, tolerance, in_process, whole, total)
            return grade_remote(question, Server(piston))
        plan = BoxKind(choose(lowest, highest), tuple(preload))
        return ask_referee(Question(blocks, read, tongue, plan, limits, tolerance, in_process, whole, total), referee)

    pool = shared_pool() if piston is None else remote_pool(concurrency)
    try:
        results: list[Result] = await asyncio.wrap_future(pool.submit(work))
    except ServerError as error:
        return await _after_server_failure(error, piston or "", tongue, pool)
    except BadTestsError as error:
        return excused(str(error))
    except BoxError as error:
        return await _after_failure(error, lowest, highest, tuple(preload))
    noted = in_process and any(type(test).__name__ == "CodeTest" for test in read)
    return verdict_of(results, scoring, _TRUSTING if noted else "")


def _blocks(answer: str, tongue: Language, most: int) -> list[str]:
    """The last block, and those before it as long as all together are no longer than a program may be."""
    found = [dedented(answer[block.start : block.end], block.indent) for block in wanted_blocks(answer, tongue.names)]
    kept = [found.pop() if found else ""]
    while found and not tongue.commands and sum(map(len, kept)) + len(found[-1]) <= most:
        kept.insert(0, found.pop())
    return kept


def ask_referee(question: Question, referee: Referee) -> list[Result]:
    """The outcome of each test, in order, from the process that runs and reads the program.

    Raises:
        BoxError: the box failed, or that process did.
        BadTestsError: a test that cannot be run, whatever the program.
    """
    packed = referee.run(grade_packed, pack(question), question.total + question.limits.wall)
    return unpack_results(packed, len(question.tests))


def run_nothing(plan: dict[str, Any], boxes: BoxSet) -> str:
    """How an empty program fails; empty where it does not."""
    with ProgramRun(boxes.box(unpack_kind(plan)), Limits(), [{"mode": "calls", "source": ""}]) as program:
        return "" if program.receive() == ["loaded"] else f"an empty program {program.why}"


async def _after_failure(error: BoxError, lowest: Level, highest: Level, preload: tuple[str, ...]) -> Verdict:
    """Whose doing it was that two boxes in a row failed on a program: a program that does nothing tells."""

    def try_nothing(referee: Referee) -> None:
        if failed := referee.run(run_nothing, asdict(BoxKind(choose(lowest, highest), preload)), Limits().wall):
            raise BoxError(failed)

    try:
        await asyncio.wrap_future(shared_pool().submit(try_nothing))
    except BoxError as again:
        raise SandboxError(f"code: the sandbox does not work: {again}\n{probe().story()}") from again
    return blamed(f"broke its box twice: {error}"[:400])


async def _after_server_failure(error: ServerError, url: str, tongue: Language, pool: Pool) -> Verdict:
    """Whose doing it was that the server failed on a program: one that does nothing tells."""

    def try_nothing(_: Referee) -> None:
        execute(Server(url, retries=1), tongue, "", "", Limits())

    try:
        await asyncio.wrap_future(pool.submit(try_nothing))
    except ServerError as again:
        raise SandboxError(f"code: the Piston server does not work: {again}") from again
    return blamed(f"broke its server: {error}"[:400])


def check_options(**options: Any) -> list[str]:
    """The problems with these values, and with what this machine offers for them."""
    problems = _value_problems(**options)
    if not problems and options["piston"] is None:
        try:
            choose(options["level"], options["highest"])
        except SandboxError as error:
            problems.append(str(error))
    return problems


def _value_problems(
    *,
    language: str,
    scoring: str,
    time_limit: float,
    total_limit: float | None,
    memory: float,
    processes: int,
    disk: int,
    float_tolerance: float,
    assert_mode: str,
    level: Level,
    highest: Level,
    preload: Sequence[str],
    max_source: int,
    think: str | None,
    piston: str | None,
    concurrency: int,
) -> list[str]:
    problems = one_of("language", language, tuple(available())) + one_of("scoring", scoring, ("all", "share"))
    problems += number("time_limit", time_limit, 0.01, 3600) + number("memory", memory, 0.05, 1024)
    problems += [] if total_limit is None else number("total_limit", total_limit, 0.01, 86_400)
    problems += integer("processes", processes, 1, 4096) + integer("disk", disk, 1, 1 << 20)
    problems += number("float_tolerance", float_tolerance, 0, 1) + integer("max_source", max_source, 1, 1 << 20)
    problems += one_of("assert_mode", assert_mode, ("apart", "in_process"))
    ranks = one_of("level", level, LEVELS) + one_of("highest", highest, LEVELS)
    if not ranks and LEVELS.index(highest) < LEVELS.index(level):
        ranks = [f"highest ({highest!r}) is below level ({level!r})."]
    problems += ranks
    bad = [name for name in preload if not all(part.isidentifier() for part in name.split("."))]
    problems += [f"preload holds {name!r}, expected names of modules." for name in bad]
    problems += integer("concurrency", concurrency, 1, 1024)
    if piston is not None and urllib.parse.urlsplit(piston).scheme not in {"http", "https"}:
        problems.append(f"piston is {piston!r}, expected an address such as http://localhost:2000/api/v2.")
    return problems + ([] if think is None else tag_name("think", think))
