"""``grpo-plus verify``: score a file of completions with one verifier or several."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._data import local_data
from grpo_plus.cli._parser import CommandParser
from grpo_plus.cli._verifiers import add_verifier_options, make_verifiers, require_columns
from grpo_plus.cli._verify_results import VerifyResults, as_line, line_of, open_results, read_statuses
from grpo_verifiers.errors import ConfigError, VerifierError

if TYPE_CHECKING:
    from grpo_verifiers import Verifier

CHUNK = 256
"""Rows in a batch: enough to keep every worker busy, few enough to move the progress bar."""


def run(arguments: Sequence[str]) -> int:
    """Score every row; return 1 if a row has no verdict or a gold answer does not accept itself."""
    options = _options(arguments)
    local_data(options.data, None, "data")
    try:
        verifiers = make_verifiers(options)
        statuses = read_statuses(options.show, [verifier.label for verifier in verifiers])
        return _verify(verifiers, statuses, options)
    except (ConfigError, VerifierError, TypeError) as error:
        if isinstance(error, TypeError) and "expected a string or a list of chat messages" not in str(error):
            raise
        raise UserError(str(error)) from error
    finally:
        from grpo_verifiers.exec.runner import close_shared_runners

        close_shared_runners()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="grpo-plus verify",
        description=__doc__,
        epilog="A line of the results is one verdict: row, verifier, score, status, detail, completion and gold.",
    )
    parser.add_argument("data", help="a .jsonl, .json, .parquet or .csv file, a folder, or a dataset on the hub")
    add_verifier_options(parser)
    parser.add_argument("--completion-column", default="completion", help="column of the completions")
    parser.add_argument("--prompt-column", help="column of the prompts, for verifiers that read them")
    parser.add_argument("--split", default="train", help="split of the dataset")
    parser.add_argument("--config", help="configuration of a hub dataset")
    parser.add_argument(
        "--show", action="append", default=[], metavar="STATUS[,STATUS]",
        help="also print rows with completion, gold, verdict and reason: wrong, unparsable, error, timeout, …, all, or "
        "disagree: if verifiers do",
    )  # fmt: skip
    parser.add_argument("--show-rows", type=int, default=20, metavar="N", help="limit of --show (default: 20)")
    parser.add_argument("--out", type=Path, help="results file (.jsonl); default: a new one in the folder of the data")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing results file")
    parser.add_argument(
        "--check-golds", action="store_true", help="score no completions, check that every gold answer accepts itself"
    )
    options: argparse.Namespace = parser.parse_args(list(arguments))
    if not options.verifier:
        raise UserError(
            "name a verifier: --verifier math, or --verifier ./my_file.py:my_check. grpo-plus plugins lists all."
        )
    if options.show_rows < 1:
        raise UserError(f"--show-rows is {options.show_rows}, expected at least 1.")
    if options.check_golds and (flags := [f for f in ("show", "out", "overwrite") if getattr(options, f)]):
        raise UserError(f"--check-golds scores no completions, so it excludes --{flags[0]}: leave one out.")
    return options


def _verify(verifiers: "Sequence[Verifier]", statuses: Sequence[str], options: argparse.Namespace) -> int:
    import datasets

    from grpo_plus.cli._data import load_rows, pick_split

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    rows = pick_split(load_rows(options.data, options.config, field="data"), options.split, "--split")
    extra = {} if options.check_golds else {"completion": options.completion_column}
    extra |= {"prompt": options.prompt_column} if options.prompt_column else {}
    needed = {each.label: {**each.required_columns, **each.named_columns, **extra} for each in verifiers}
    require_columns(needed, rows.column_names, "--completion-column or --column PARAMETER=COLUMN")
    if options.check_golds:
        return max(_check_golds(verifier, rows, named=len(verifiers) > 1) for verifier in verifiers)
    results = VerifyResults([verifier.label for verifier in verifiers], statuses, options.show_rows)
    file, path = open_results(options.out, options.data, overwrite=options.overwrite)
    with file:
        for lines in _lines(verifiers, rows, options):
            results.add(lines)
            file.writelines(map(as_line, lines))
    results.show(path)
    print(f"results: {path}")
    return int(results.failed)


def _lines(verifiers: "Sequence[Verifier]", rows: Any, options: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """Yield the lines of each row, one a verifier; all verifiers work on a batch at the same time."""
    from rich.console import Console
    from rich.progress import Progress

    columns = [name for name in rows.column_names if name not in (options.completion_column, options.prompt_column)]
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("verifying", total=len(rows))
        for start in range(0, len(rows), CHUNK):
            batch = rows[start : start + CHUNK]
            completions = [_completion(value) for value in batch[options.completion_column]]
            prompts = batch[options.prompt_column] if options.prompt_column else [""] * len(completions)
            values = {name: batch[name] for name in columns}
            pending = [verifier.start(prompts, completions, None, **values) for verifier in verifiers]
            verdicts = [each.result() for each in pending]
            for at, completion in enumerate(completions):
                yield [
                    line_of(start + at, verifier.label, of_all[at], completion, _gold(verifier, values, at))
                    for verifier, of_all in zip(verifiers, verdicts, strict=True)
                ]
            progress.advance(task, len(completions))


def _completion(value: Any) -> Any:
    """Restore a text: readers parse 42 as a number, and an empty text as None."""
    if value is None:
        return ""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _gold(verifier: "Verifier", columns: dict[str, list[Any]], at: int) -> dict[str, Any]:
    """Return the values of a row for a verifier's comparison, by parameter name."""
    named = verifier.gold_columns | verifier.required_columns | verifier.named_columns
    return {parameter: columns[column][at] for parameter, column in named.items() if column in columns}


def _check_golds(verifier: "Verifier", rows: Any, *, named: bool) -> int:
    report = verifier.check_golds(rows)
    if report is None:
        raise UserError(f"the verifier {verifier.label!r} has no gold answers to check.")
    for line in report.lines(limit=None):
        print(f"{verifier.label}: {line}" if named else line)
    return 0 if report.ok else 1
