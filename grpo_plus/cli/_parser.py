"""argparse with one message instead of the usage, and with the nearest option for a mistyped one."""

import argparse
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from grpo_plus.cli import UserError
from grpo_verifiers.errors.messages import nearest


class Parser(argparse.ArgumentParser):
    """A parser of one command, without abbreviations; its errors are `UserError`."""

    def __init__(self, **keywords: Any) -> None:
        self._words: list[str] = []
        super().__init__(**{"allow_abbrev": False, **keywords})

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As in argparse; a mistyped option is named before a missing one."""
        self._words = given = self._spelled(list(args or ()))
        known = self._option_string_actions
        for word in _options_of(given):
            name = word.partition("=")[0]
            if word.startswith("--") and name not in known:
                close = nearest(name, known)
                self.error(f"unknown option {name}" + (f", did you mean {close}?" if close else ""))
        return super().parse_args(given, namespace)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As in argparse; underscores in an option are dashes, and an option that replaces its own value is refused."""
        given = self._spelled(list(args or ()))
        if twice := repeated(self, given):
            raise UserError(twice)
        return super().parse_known_args(given, namespace)

    def _spelled(self, words: list[str]) -> list[str]:
        known = self._option_string_actions
        for at, word in enumerate(_options_of(words)):
            name, equals, value = word.partition("=")
            if name not in known and (option := name.replace("_", "-")) in known:
                words[at] = f"{option}{equals}{value}"
        return words

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


def repeated(parser: argparse.ArgumentParser, words: Sequence[str]) -> str | None:
    """What is wrong with an option of ``words`` that comes again: argparse keeps its last value and drops the others.

    Options that collect their values may come again, and so may switches, and different keys of one mapping.
    """
    known = parser._option_string_actions  # noqa: SLF001 - argparse has no public list
    seen: dict[str, list[str]] = {}
    for word in _options_of(words):
        name = word.partition("=")[0]
        action = known.get(name) or known.get(name.partition(".")[0] if word.startswith("--") else word[:2])
        if action is None or isinstance(action, _COLLECTING):
            continue
        before = seen.setdefault(action.dest, [])
        if "." in name or any("." in other for other in before):  # a mapping: --field.key sets one key of it
            lost = next((other for other in before if other == name or other.startswith(f"{name}.")), None)
        elif action.nargs == 0:
            lost = next((other for other in before if other not in action.option_strings), None)
        else:
            lost = before[0] if before else None
        if lost is not None:
            several = action.nargs in ("+", "*") or isinstance(action.nargs, int)
            once = "give it once, with all its values behind it" if several else "give it once"
            again = "is given twice" if lost == name else f"comes after {lost}"
            return f"{name} {again}, and would replace what was given before: {once}."
        before.append(name)
    return None


_COLLECTING = (argparse._AppendAction, argparse._AppendConstAction, argparse._CountAction, argparse._HelpAction)  # noqa: SLF001 - argparse has no public names of them


def _options_of(words: Sequence[str]) -> Sequence[str]:
    """The words up to a bare ``--``; those of them that are values are no option of any parser."""
    return words[: list(words).index("--")] if "--" in words else words


def by_option(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each word with the option that it belongs to, with underscores for dashes; the first words belong to none."""
    option = ""
    for word in words:
        if word.startswith("--"):
            option = "--" + word.partition("=")[0].removeprefix("--").replace("-", "_")
        yield option, word


def without(words: Iterable[str], options: Collection[str]) -> list[str]:
    """The words of a command line without some options, or single keys of them, and their values."""
    return [word for option, word in by_option(words) if not {option, option.partition(".")[0]} & {*options}]
