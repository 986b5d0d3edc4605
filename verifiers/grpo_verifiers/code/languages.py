"""Languages of programs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """A language of programs: its fences and its interpreter.

    Attributes:
        names: the names of its fenced blocks, in lower case.
        file: name of the source file; unused where the zygote itself runs the program.
        commands: command lines to try in turn, the interpreter by its full path; none for Python, which is forked.
    """

    names: tuple[str, ...]
    file: str = ""
    commands: tuple[tuple[str, ...], ...] = ()


PYTHON = Language(("python", "py", "python3", "py3", "ipython", "ipython3", "pypy", "pypy3"))
"""Of the version that the trainer runs."""
BASH = Language(("bash", "sh", "shell"), "main.sh", (("/bin/bash", "main.sh"), ("/usr/bin/bash", "main.sh")))
"""With the programs of ``/usr/bin``."""
LANGUAGES = {"bash": BASH, "python": PYTHON}
