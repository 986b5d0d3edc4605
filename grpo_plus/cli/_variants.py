"""``python -m grpo_plus.cli._variants ASK ANSWER``: check every variant of a sweep."""

import functools
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_plus.cli import UserError, end_with_parent
from grpo_plus.sweep.plan import VariantCheck
from grpo_verifiers.errors.frames import plugin_traceback
from grpo_verifiers.files import read_text, write_atomic

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed

PROG = "grpo-plus sweep"


def check_variants(variants: list[tuple[str, list[str]]]) -> VariantCheck:
    """Return the problems that ``train`` reports for each variant. Data is loaded once for all."""
    from grpo_plus.cli._arguments import parse
    from grpo_plus.cli._data import load_rows
    from grpo_plus.cli._gather import problems_before_loading
    from grpo_plus.cli._notes import slow_here

    problems: dict[str, list[str]] = {}
    parsed: dict[str, Parsed] = {}
    loaded = functools.cache(load_rows)
    for label, arguments in variants:
        try:
            parsed[label] = parse(PROG, arguments)
            slow = slow_here(parsed[label])
            messages = [*([slow] if slow else []), *problems_before_loading(parsed[label], loaded)]
        except UserError as error:
            messages = [f"{error}\n{plugin_traceback(error)}".rstrip()]
        for problem in messages:
            problems.setdefault(problem, []).append(label)
    return VariantCheck(
        processes=max([1, *(each.processes or 1 for each in parsed.values())]),
        machines=max([1, *(each.machines for each in parsed.values())]),
        cpu=all(each.training.use_cpu for each in parsed.values()),
        problems=problems,
    )


if __name__ == "__main__":
    end_with_parent()
    ask, answer = map(Path, sys.argv[1:])
    write_atomic(answer, json.dumps(asdict(check_variants(json.loads(read_text(ask))))))
