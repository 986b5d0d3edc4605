"""``grpo-plus doctor``: check this machine and a config before a run."""

import contextlib
import json
import os
import sys
from collections.abc import Sequence

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import CommandParser

PROG = "grpo-plus doctor"
ROWS = 100
"""Default number of rows whose tokens and golds are checked."""


def run(arguments: Sequence[str]) -> int:
    """Print the report; the exit code is 2 for a problem, and with --strict 1 for a warning."""
    parser = CommandParser(
        prog=PROG,
        description="Check this machine, and with a config its model, data and verifiers. No weights are loaded or "
        "downloaded.",
        epilog="Every option of grpo-plus train works here as well: grpo-plus train --help. Exit codes: 0, 2 for a "
        "problem, and with --strict 1 for a warning.",
        usage=f"{PROG} [config.yaml] [--json] [--strict] [--rows N | --all-rows] [--any.option VALUE …]",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as data")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there are warnings")
    parser.add_argument(
        "--rows", type=int, default=ROWS, help=f"rows whose tokens and golds are checked (default {ROWS})"
    )
    parser.add_argument("--all-rows", "--all_rows", action="store_true", help="check all rows")
    options, rest = parser.parse_known_args(list(arguments))
    if options.rows < 1:
        raise UserError(f"--rows is {options.rows}, expected at least 1.")
    from grpo_plus.doctor.examination import Examination, data_report, examine_machine, exit_code, text_report

    examination = Examination()
    # Libraries and plug-ins print too, but stdout gets the report only.
    with contextlib.redirect_stdout(sys.stderr):
        _quiet()
        if rest:
            from grpo_plus.cli._doctor_config import examine_config

            examine_config(examination, rest, None if options.all_rows else options.rows)
        else:
            examine_machine(examination)
            examination.unchecked.append("model, data and verifiers: no config file")
    if options.json:
        print(json.dumps(data_report(examination), indent=2, ensure_ascii=False))
    else:
        print(text_report(examination, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return exit_code(examination, strict=options.strict)


def _quiet() -> None:
    """Switch off progress bars of libraries, which would be lines of a log."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with contextlib.suppress(Exception):  # a broken package is a separate finding
        import datasets

        datasets.disable_progress_bars()
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # its errors are raised as well, and reported
