"""``grpo-plus check``: effect, needs and problems of a config, and of this machine."""

import contextlib
import json
import math
import os
import re
import sys
from argparse import Namespace
from collections.abc import Sequence

from grpo_plus.check.sample import REWARDS
from grpo_plus.cli import UserError
from grpo_plus.cli._parser import CommandParser
from grpo_plus.cli._quick_checks import check_early
from grpo_verifiers.errors.messages import unknown

PROG = "grpo-plus check"
SECTIONS = ("config", "data", "model", "memory", "machine")
ROWS = 100
"""Default number of rows whose tokens and golds are checked."""


def _parser() -> CommandParser:
    parser = CommandParser(
        prog=PROG,
        description="Check a config with its data, model and memory, and this machine; without a config, the machine. "
        "No weights are loaded or downloaded.",
        epilog="Every option of grpo-plus train works here as well: grpo-plus train --help. --advantage A,B,C compares "
        "estimators. Exit codes: 0, 2 for a problem, and with --strict 1 for a warning.",
        usage=f"{PROG} [config.yaml] [--only SECTION,…] [--rewards {REWARDS}] [--vram GIB] [--any.option VALUE …]",
    )
    add = parser.add_argument
    add("--only", metavar="SECTION,…", help=f"sections to check, of {', '.join(SECTIONS)} (default: all)")
    rewards = "rewards of one group, whose advantages are shown; one list for each reward of the config, or one for all"
    add("--rewards", default=REWARDS, metavar="A,B[;C,D]", help=f"{rewards} (default {REWARDS})")
    add("--lengths", metavar="N,N", help="completion lengths of that group in tokens (default: all 10)")
    add("--vram", type=float, help="memory of a card in GiB, by its name: settings that fit it are shown")
    add("--prompt-length", type=int, default=256, help="tokens of a prompt, for the memory (default 256)")
    add("--rows", type=int, default=ROWS, help=f"rows whose tokens and golds are checked (default {ROWS})")
    add("--all-rows", "--all_rows", action="store_true", help="check all rows")
    add("--json", action="store_true", help="print the findings as data")
    add("--strict", action="store_true", help="exit with 1 if there are warnings")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Print the report; the exit code is 2 for a problem, and with --strict 1 for a warning."""
    try:
        return _run(arguments)
    except UserError as error:  # a mistake in an option or an unreadable file: torch need not be imported for it
        if "--json" not in arguments:
            raise
        from grpo_plus.check.examination import Examination, data_report, refused_findings

        refused = Examination({"config": list(refused_findings(str(error)))}, unchecked=["everything else"])
        print(json.dumps(data_report(refused), indent=2, ensure_ascii=False))
        return 2


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    parser._negative_number_matcher = re.compile(r"-[\d.][\d.,;e+-]*\Z")  # noqa: SLF001 - else --rewards -1,1 is an option
    options, rest = parser.parse_known_args(list(arguments))
    options.own = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001 - argparse has no public list
    sections = _sections(options.only, has_config=bool(rest))
    _refuse_idle(options, parser, sections)
    _check_numbers(options, has_config=bool(rest))
    check_early(rest, own=options.own)
    from grpo_plus.check import examination as report

    examination = report.Examination(raised=UserError)
    # Libraries and plug-ins print too, but stdout gets the report only.
    with contextlib.redirect_stdout(sys.stderr):
        _quiet()
        output_dir = None
        if rest:
            with examination.failing("config"):  # imports fail with packages that do not fit
                from grpo_plus.cli._config_check import check_config

                output_dir = check_config(examination, rest, options, sections)
        elif {"config", "data", "model"} & sections:
            examination.unchecked.append("config, data, model and memory: no config file")
        if "machine" in sections:
            report.examine_machine(examination, output_dir)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    data = report.data_report(examination) if options.json else {}
    print(json.dumps(data, indent=2, ensure_ascii=False) if data else report.text_report(examination, colour=colour))
    return report.exit_code(examination, strict=options.strict)


def _sections(text: str | None, *, has_config: bool) -> set[str]:
    chosen = {word.strip() for word in text.split(",")} if text is not None else {*SECTIONS}
    if strange := sorted(chosen - {*SECTIONS}):
        raise UserError(f"--only: {unknown('section', strange[0], SECTIONS)}")
    if text is not None and not has_config and chosen != {"machine"}:
        raise UserError(f"--only {text} needs a config: {PROG} config.yaml --only {text}.")
    return chosen


_READ_BY = {"config": ("rewards", "lengths"), "data": ("rows", "all_rows"), "memory": ("vram", "prompt_length")}


def _refuse_idle(options: Namespace, parser: CommandParser, sections: set[str]) -> None:
    for section, names in _READ_BY.items():
        for name in names if section not in sections else ():
            if getattr(options, name) != parser.get_default(name):
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} is for the section {section}, which --only leaves out: remove one of the two.")


def _check_numbers(options: Namespace, *, has_config: bool) -> None:
    if options.vram is not None and not has_config:
        raise UserError(
            f"--vram {options.vram:g} needs a config, or a model: --model_name_or_path NAME --load_in_4bit."
        )
    for flag, number in (("--rows", options.rows), ("--prompt-length", options.prompt_length)):
        if number < 1:
            raise UserError(f"{flag} is {number}, expected at least 1.")
    if options.vram is not None and not 0 < options.vram < math.inf:
        raise UserError(f"--vram is {options.vram:g}, expected the card's memory in GiB, like 12.")


def _quiet() -> None:
    """Switch off progress bars of libraries, which would be lines of a log."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with contextlib.suppress(Exception):  # a broken package is a separate finding
        import datasets

        datasets.disable_progress_bars()
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # its errors are raised as well, and reported
