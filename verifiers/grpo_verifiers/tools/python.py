r"""The tool ``python``: the model's programs run in the box of the verifier ``code``, and remember from turn to turn.

Use it when a task takes more than arithmetic: loops, tables, algebra with a package of `preload`.

>>> python("x = 6 * 7\nx").strip()
'42'

Config:
    tools: [{name: python, timeout: 5.0, memory: 0.5}]
"""

from collections.abc import Sequence
from typing import Annotated, Any

from grpo_verifiers.code.levels import choose
from grpo_verifiers.code.referee import BoxSet, Referee
from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.options import Range
from grpo_verifiers.sandbox.box import BoxError, BoxKind, Level, Limits
from grpo_verifiers.tools.guest import MAX_TEXT, cut

REFERENCE = "grpo_verifiers.tools.python:python"
_FOREVER = 24 * 3600
_open: list[ProgramRun] = []
"""In a referee: the program of its completion."""


def python(
    code: str,
    *,
    memory: Annotated[float, Range(0.05, 1024)] = 1.0,
    output: Annotated[int, Range(1, 1 << 20)] = 16_384,
    level: Level = "process",
    highest: Level = "full",
    preload: Sequence[str] = (),
) -> str:
    """Run Python code. Variables and imports stay for the next call.

    Args:
        code: the program; the value of its last line is shown beside what it prints
        memory: GiB for the program and all its processes.
        output: characters of a result that the model gets.
        level: the least confinement to run under, as for the verifier ``code``.
        highest: the most confinement to run under.
        preload: modules to import before programs are forked, such as ``numpy``.

    Returns:
        What it printed, and the traceback where it failed.
    """
    box = PythonBox({"memory": memory, "output": output, "level": level, "highest": highest, "preload": preload})
    try:
        return box.run(code, 10.0)[1]
    finally:
        box.close()


class PythonBox:
    """The program of one completion, in a box of its own; used by one thread at a time."""

    def __init__(self, options: Any) -> None:
        values = {"memory": 1.0, "output": 16_384, "level": "process", "highest": "full", "preload": (), **options}
        self._kind = BoxKind(choose(values["level"], values["highest"]), tuple(map(str.__str__, values["preload"])))
        self._question = {"memory": int(values["memory"] * (1 << 30)), "output": min(values["output"], MAX_TEXT)}
        self._referee = Referee()
        self._ended = self._used = False

    def run(self, code: str, seconds: float) -> tuple[str, str]:
        """Run code; return its status (ok, late, died) and the text for the model."""
        question = {**self._question, "box": self._kind, "code": code, "seconds": seconds}
        for attempt in (0, 1):
            try:
                status, text = self._referee.run(take_turn, question, seconds)
                self._used = True
                return str(status), cut(str(text), 2 * MAX_TEXT)
            except BoxError:
                self.close()
                if self._ended:
                    return "died", "the completion was ended"
                if self._used:
                    self._used = False
                    return "died", "its box broke. Its variables are lost."
                if attempt:
                    raise
        raise AssertionError

    def interrupt(self) -> None:
        """From another thread: end the running program; no other can start."""
        self._ended = True
        self._referee.interrupt()

    def close(self) -> None:
        """End it, with all that it started."""
        self._referee.close()

    def forget(self) -> None:
        """In a forked child."""
        self._referee.forget()


def take_turn(question: dict[str, Any], boxes: BoxSet) -> list[str]:
    """In the referee: run a piece of the program; start the program first if necessary."""
    if not _open:
        limits = Limits(
            wall=_FOREVER, cpu=_FOREVER, memory=question["memory"], message=8 * question["output"] + 4096, sent=1 << 62
        )
        first = {"mode": "turns", "output": question["output"]}
        _open.append(ProgramRun(boxes.box(question["box"]), limits, [first]))
    program = _open[0]
    try:
        reply = program.ask({"code": question["code"]}, question["seconds"])
        shown = isinstance(reply, list) and len(reply) == 3 and reply[0] == "printed" and isinstance(reply[1], str)
        if shown:
            program.rest()
    except BoxError:
        _open.clear()
        raise
    if shown and not program.end:
        note = f"\n[cut: at most {question['output']} characters are shown]" if reply[2] else ""
        return ["ok", reply[1] + note]
    _open.clear()
    with program:
        why = program.why if reply is None or shown else "sent an invalid answer"
    if program.end == "timeout":
        why = f"it took longer than {question['seconds']:g} s and was ended"
        return ["late", f"{why}. Its variables are lost."]
    return ["died", f"the program ended: {why}. Its variables are lost."]
