"""``grpo-plus report``: write one page about a run, or about several side by side."""

from collections.abc import Sequence
from pathlib import Path

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import CommandParser


def run(arguments: Sequence[str]) -> int:
    """Write the page, and print its path."""
    parser = CommandParser(
        prog="grpo-plus report",
        description="Write one self-contained HTML page about a run: curves, verdicts, and every sampled group. "
        "Several runs are compared: one line each, or one with a band for the seeds of a sweep's variant.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path, help="output_dir of a run, also of stock TRL")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page (default: report.html in the first RUN)")
    options = parser.parse_args(list(arguments))
    from grpo_plus.record import RunError
    from grpo_plus.report.write import write_report

    try:
        path = write_report(options.runs, options.out)
    except RunError as error:
        raise UserError(str(error)) from error
    print(f"The report is {path} ({path.stat().st_size / 2**20:.1f} MB).")
    return 0
