"""Languages that programs are written in, one file each: a module here with a ``LANGUAGE`` is one, by its name."""

import importlib
import pkgutil
from dataclasses import dataclass


@dataclass(frozen=True)
class Language:
    """How programs of a language are marked and run.

    Attributes:
        names: what its fenced blocks are called, in lower case.
        file: name of the source file; unused where the zygote itself runs the program.
        commands: command lines to try in turn, the interpreter by its full path; none for Python, which is forked.
        memory: bytes of address space to add for the interpreter itself.
        piston: what the Piston API calls it.
    """

    names: tuple[str, ...]
    file: str
    commands: tuple[tuple[str, ...], ...] = ()
    memory: int = 0
    piston: str = ""


def available() -> list[str]:
    """The names of all languages."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def language_of(name: str) -> Language:
    """The language of a name that ``available`` lists."""
    found: Language = importlib.import_module(f"{__name__}.{name}").LANGUAGE
    return found
