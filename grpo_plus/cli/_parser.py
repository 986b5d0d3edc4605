"""argparse with one message instead of the usage, and with the nearest option for a mistyped one."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from grpo_plus.cli import UserError
from grpo_verifiers.errors.messages import nearest


class Parser(argparse.ArgumentParser):
    """A parser of one command, without abbreviations; its errors are `UserError`."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **keywords})

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As in argparse; underscores in an option are dashes, and a mistyped option is named before a missing one."""
        given = list(args or ())
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

    def error(self, message: str) -> NoReturn:
        """Raise the message for the command line."""
        end = "" if message.endswith("?") else "."
        raise UserError(f"{message}{end} {self.prog} --help lists all options.")
