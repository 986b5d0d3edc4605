"""``grpo-plus doctor``: look at this machine, and at a config, before a run."""

import contextlib
import json
import os
import sys
from collections.abc import Sequence

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import Parser

PROG = "grpo-plus doctor"
ROWS = 100
"""Rows whose tokens and golds are looked at, unless told otherwise."""


def run(arguments: Sequence[str]) -> int:
    """Print the report; the exit code is 2 for a problem, and with --strict 1 for a warning."""
    parser = Parser(
        prog=PROG,
        description="Look at this machine, and with a config at its model, data and verifiers. No weights are loaded "
        "or downloaded.",
        epilog="Every option of grpo-plus train may be given as well: grpo-plus train --help. Exit codes: 0, 2 for a "
        "problem, and with --strict 1 for a warning.",
        usage=f"{PROG} [config.yaml] [--json] [--strict] [--rows N | --all-rows] [--any.option VALUE …]",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as data")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where there are warnings")
    parser.add_argument(
        "--rows", type=int, default=ROWS, help=f"rows whose tokens and golds are looked at (default {ROWS})"
    )
    parser.add_argument("--all-rows", "--all_rows", action="store_true", help="look at all of them")
    options, rest = parser.parse_known_args(list(arguments))
    if options.rows < 1:
        raise UserError(f"--rows is {options.rows}, expected at least 1.")
    from grpo_plus.doctor.examination import Examination, examine_machine
    from grpo_plus.doctor.report import data_report, exit_code, text_report

    examination = Examination()
    # Libraries and plug-ins print; what is printed here is the report alone.
    with contextlib.redirect_stdout(sys.stderr):
        _quiet()
        if rest:
            from grpo_plus.cli._doctor_config import examine_config

            examine_config(examination, rest, None if options.all_rows else options.rows)
        else:
            examine_machine(examination)
            examination.unchecked.append("model, data and verifiers: no config was given")
    if options.json:
        print(json.dumps(data_report(examination), indent=2, ensure_ascii=False))
    else:
        print(text_report(examination, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return exit_code(examination, strict=options.strict)


def _quiet() -> None:
    """Libraries show no bars, which would be lines of a log."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with contextlib.suppress(Exception):  # a package that is broken is a finding of its own
        import datasets

        datasets.disable_progress_bars()
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # its errors are raised as well, and reported
