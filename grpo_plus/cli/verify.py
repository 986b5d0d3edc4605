"""``grpo-plus verify``: score a file of completions with a verifier."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import Parser
from grpo_plus.cli._verifiers import add_verifier_options, make_verifiers, missing_columns
from grpo_verifiers.errors import VerifierError
from grpo_verifiers.errors.messages import readable
from grpo_verifiers.files import open_own
from grpo_verifiers.redaction import redact_text
from grpo_verifiers.verdict import MAX_DETAIL

if TYPE_CHECKING:
    from grpo_verifiers import Verdict, Verifier

CHUNK = 256
"""Rows in a batch: enough to keep every worker busy, few enough to move the progress bar."""


def run(arguments: Sequence[str]) -> int:
    """Score every row; the exit code is 1 if a row could not be judged or a gold answer does not accept itself."""
    options = _options(arguments)
    import datasets

    from grpo_plus.cli._data import load_rows, pick_split
    from grpo_verifiers.exec.runner import close_shared_runners

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        (verifier,) = make_verifiers([options.verifier], options)
        rows = pick_split(load_rows(options.data, options.config), options.split, "--split")
        _require(verifier, rows.column_names, options)
        if options.check_golds:
            return _check_golds(verifier, rows)
        return _score(verifier, rows, options)
    except VerifierError as error:
        raise UserError(str(error)) from error
    finally:
        close_shared_runners()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="grpo-plus verify", description=__doc__)
    parser.add_argument("data", help="a .jsonl, .json, .parquet or .csv file, a folder, or a dataset on the hub")
    parser.add_argument("--verifier", required=True, help="a verifier by name or reference")
    parser.add_argument("--completion-column", default="completion", help="column of the completions")
    parser.add_argument("--prompt-column", help="column of the prompts, for verifiers that read them")
    add_verifier_options(parser)
    parser.add_argument("--split", default="train", help="split of the dataset")
    parser.add_argument("--config", help="configuration of a hub dataset")
    parser.add_argument("--out", type=Path, help="results file (.jsonl); default: beside the data")
    parser.add_argument(
        "--check-golds", action="store_true", help="score no completions, check that every gold answer accepts itself"
    )
    options: argparse.Namespace = parser.parse_args(list(arguments))
    return options


def _require(verifier: "Verifier", columns: Sequence[str], options: argparse.Namespace) -> None:
    needed = verifier.required_columns | verifier.named_columns
    if not options.check_golds:
        needed["completion"] = options.completion_column
    if options.prompt_column:
        needed["prompt"] = options.prompt_column
    if missing := missing_columns(needed, columns):
        raise UserError(
            f"the data lacks columns of the verifier {verifier.label!r}. {' '.join(missing)} "
            "Say where a value stands with --completion-column or --column PARAMETER=COLUMN."
        )


def _score(verifier: "Verifier", rows: Any, options: argparse.Namespace) -> int:
    out = options.out or _beside(options.data)
    counts: Counter[str] = Counter()
    total = 0.0
    scored = 0
    try:
        # A path from the user may be a link or /dev/stdout; the default path may not.
        file = (open if options.out else open_own)(out, "w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"the results file {out} cannot be written: {error}.") from error
    with file:
        for index, verdict in _verdicts(verifier, rows, options):
            counts[verdict.status.value] += 1
            if verdict.score is not None:
                total += verdict.score
                scored += 1
            reason = redact_text(readable(verdict.detail, MAX_DETAIL))
            row = {"row": index, "score": verdict.score, "status": verdict.status.value, "detail": reason}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    _print_summary(counts, total / scored if scored else None)
    print(f"results: {out}")
    return 1 if counts["error"] or counts["timeout"] else 0


def _verdicts(verifier: "Verifier", rows: Any, options: argparse.Namespace) -> "Iterator[tuple[int, Verdict]]":
    from rich.console import Console
    from rich.progress import Progress

    columns = [name for name in rows.column_names if name not in (options.completion_column, options.prompt_column)]
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("verifying", total=len(rows))
        for start in range(0, len(rows), CHUNK):
            batch = rows[start : start + CHUNK]
            completions = [_completion(value) for value in batch[options.completion_column]]
            prompts = batch[options.prompt_column] if options.prompt_column else [""] * len(completions)
            held = {name: batch[name] for name in columns}
            verdicts = verifier.verify_batch(prompts, completions, None, **held)
            yield from enumerate(verdicts, start)
            progress.advance(task, len(verdicts))


def _completion(value: Any) -> Any:
    return "" if value is None else value


def _check_golds(verifier: "Verifier", rows: Any) -> int:
    report = verifier.check_golds(rows)
    if report is None:
        raise UserError(f"the verifier {verifier.label!r} has no gold answers to check.")
    for line in report.lines(limit=None):
        print(line)
    return 0 if report.ok else 1


def _print_summary(counts: Counter[str], mean: float | None) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("status", "rows", "share")
    total = sum(counts.values())
    for status, count in counts.most_common():
        table.add_row(status, str(count), f"{count / total:.1%}")
    Console().print(table)
    print(f"rows: {total}, mean score: {'none' if mean is None else f'{mean:.4f}'}")


def _beside(data: str) -> Path:
    path = Path(data)
    return path.with_suffix(".verdicts.jsonl") if path.is_file() else Path(f"{path.name}.verdicts.jsonl")
