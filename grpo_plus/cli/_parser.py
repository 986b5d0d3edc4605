"""argparse with one message instead of the usage, and with the nearest option for a mistyped one."""

import argparse
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

from grpo_plus.cli import UserError
from grpo_verifiers.errors.messages import nearest

_ASKED: ContextVar[bool] = ContextVar("asked", default=False)


class _Asked(BaseException):
    """Carries the parser of a command out of the command."""

    def __init__(self, parser: "Parser") -> None:
        self.parser = parser


def asked_parser(command: Callable[[Sequence[str]], int], words: Sequence[str]) -> "Parser | None":
    """The parser that a command makes for ``words``, without running the command; None where it makes none."""
    token = _ASKED.set(True)
    try:
        command(words)
    except _Asked as asked:
        return asked.parser
    except (UserError, SystemExit):
        return None
    finally:
        _ASKED.reset(token)
    return None


class Parser(argparse.ArgumentParser):
    """A parser of one command, without abbreviations; its errors are `UserError`."""

    def __init__(self, **keywords: Any) -> None:
        self._words: list[str] = []
        super().__init__(**{"allow_abbrev": False, **keywords})

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As in argparse; underscores in an option are dashes, and a mistyped option is named before a missing one."""
        if _ASKED.get():
            raise _Asked(self)
        self._words = given = list(args or ())
        known = self._option_string_actions
        for at, word in enumerate(given[: given.index("--")] if "--" in given else given):
            if not word.startswith("--"):
                continue
            name, equals, value = word.partition("=")
            option = name.replace("_", "-")
            if option not in known:
                close = nearest(name, known)
                self.error(f"unknown option {name}" + (f", did you mean {close}?" if close else ""))
            given[at] = f"{option}{equals}{value}"
        return super().parse_args(given, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse."""
        if _ASKED.get():
            raise _Asked(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise the message for the command line."""
        message = with_values(self, self._words, message)
        end = "" if message.endswith("?") else "."
        raise UserError(f"{message}{end} {self.prog} --help lists all options.")


def with_values(parser: argparse.ArgumentParser, words: Sequence[str], message: str) -> str:
    """A message of argparse; one about an option of ``words`` without a value also tells the values that it takes."""
    bare = re.match(r"argument (\S+): expected (one|at least one|\d+) arguments?", message)
    named = {"/".join(action.option_strings): action for action in parser._actions}  # noqa: SLF001 - argparse has no public list
    action = named.get(bare[1]) if bare else None
    if bare is None or action is None:
        return message
    last = [at + 1 == len(words) or words[at + 1].startswith("--") for at in range(len(words))]
    given = [word for word, ends in zip(words, last, strict=True) if ends and word in action.option_strings]
    known = f"one of {', '.join(map(str, action.choices))}" if action.choices else ""
    told = parser._get_formatter()._expand_help(action).rstrip(".") if action.help else ""  # noqa: SLF001 - same
    return ": ".join(filter(None, (f"argument {[*given, bare[1]][0]}", "expected a value", known, told)))
