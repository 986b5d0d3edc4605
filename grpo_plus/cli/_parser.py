"""Parser with one message instead of the usage, and with the nearest option for a mistyped one."""

import argparse
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NoReturn

from grpo_plus.cli import UserError
from grpo_verifiers.errors.messages import nearest


class CommandParser(argparse.ArgumentParser):
    """A parser of one command, without abbreviations; its errors are `UserError`."""

    def __init__(self, **keywords: Any) -> None:
        self._words: list[str] = []
        about = re.sub(r"^``[^`]+``: ", "", keywords.get("description") or "").replace("``", "")
        super().__init__(**{"allow_abbrev": False, **keywords, "description": about[:1].upper() + about[1:]})

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> argparse.Namespace:
        """Parse as argparse does; report a mistyped option before a missing one."""
        self._words = words = self._with_dashes(list(args or ()))
        options = self._option_string_actions
        for word in _options_of(words):
            name = word.partition("=")[0]
            if word.startswith("--") and name not in options:
                close = nearest(name, options)
                self.error(f"unknown option {name}" + (f", did you mean {close}?" if close else ""))
        parsed: argparse.Namespace = super().parse_args(words, namespace)
        return parsed

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse as argparse does; underscores in options count as dashes, and a repeated option is an error."""
        words = self._with_dashes(list(args or ()))
        if twice := repeated(self, words):
            raise UserError(twice)
        return super().parse_known_args(words, namespace)

    def _with_dashes(self, words: list[str]) -> list[str]:
        options = self._option_string_actions
        for at, word in enumerate(_options_of(words)):
            name, equals, value = word.partition("=")
            if name not in options and (option := name.replace("_", "-")) in options:
                words[at] = f"{option}{equals}{value}"
        return words

    def error(self, message: str) -> NoReturn:
        """Raise the message for the command line."""
        message = with_values(self, self._words, message)
        end = "" if message.endswith("?") else "."
        raise UserError(f"{message}{end} {self.prog} --help lists all options.")


def with_values(parser: argparse.ArgumentParser, words: Sequence[str], message: str) -> str:
    """Add the accepted values to a message of argparse about an option of ``words`` without a value."""
    bare = re.match(r"argument (\S+): expected (one|at least one|\d+) arguments?", message)
    named = {"/".join(action.option_strings): action for action in parser._actions}  # noqa: SLF001 - argparse has no public list
    action = named.get(bare[1]) if bare else None
    if bare is None or action is None:
        return message
    last = [at + 1 == len(words) or words[at + 1].startswith("--") for at in range(len(words))]
    bare_words = [word for word, ends in zip(words, last, strict=True) if ends and word in action.option_strings]
    choices = f"one of {', '.join(map(str, action.choices))}" if action.choices else ""
    meaning = parser._get_formatter()._expand_help(action).rstrip(".") if action.help else ""  # noqa: SLF001 - same
    return ": ".join(filter(None, (f"argument {[*bare_words, bare[1]][0]}", "expected a value", choices, meaning)))


def repeated(parser: argparse.ArgumentParser, words: Sequence[str]) -> str | None:
    """Return the problem of a repeated option in ``words``: argparse would use its last value only.

    Options that collect their values may be repeated, and so may switches, and different keys of one mapping.
    """
    options = parser._option_string_actions  # noqa: SLF001 - argparse has no public list
    earlier: dict[str, list[str]] = {}
    for word in _options_of(words):
        name = word.partition("=")[0]
        action = options.get(name) or options.get(name.partition(".")[0] if word.startswith("--") else word[:2])
        if action is None or isinstance(action, _COLLECTING):
            continue
        before = earlier.setdefault(action.dest, [])
        if "." in name or any("." in other for other in before):  # a mapping: --field.key sets one key of it
            lost = next((other for other in before if other == name or other.startswith(f"{name}.")), None)
        elif action.nargs == 0:
            lost = next((other for other in before if other not in action.option_strings), None)
        else:
            lost = before[0] if before else None
        if lost is not None:
            several = action.nargs in ("+", "*") or isinstance(action.nargs, int)
            once = "give it once, with all its values after it" if several else "give it once"
            again = "is given twice" if lost == name else f"comes after {lost}"
            return f"{name} {again}, and would replace the earlier value: {once}."
        before.append(name)
    return None


_COLLECTING = (argparse._AppendAction, argparse._AppendConstAction, argparse._CountAction, argparse._HelpAction)  # noqa: SLF001 - argparse has no public names for these


def _options_of(words: Sequence[str]) -> Sequence[str]:
    """Return the words up to a bare ``--``; values among them match no option of any parser."""
    return words[: list(words).index("--")] if "--" in words else words


def by_option(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each word with its option, with underscores for dashes; the first words have none."""
    option = ""
    for word in words:
        if word.startswith("--"):
            option = "--" + word.partition("=")[0].removeprefix("--").replace("-", "_")
        yield option, word


def without(words: Iterable[str], options: Collection[str]) -> list[str]:
    """Remove some options, or single keys of them, and their values from a command line."""
    return [word for option, word in by_option(words) if not {option, option.partition(".")[0]} & {*options}]
