"""``grpo-plus verify``: score a file of completions with one verifier or several."""

import argparse
import contextlib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._data import local_data
from grpo_plus.cli._parser import CommandParser
from grpo_plus.cli._verifiers import add_verifier_options, make_verifiers, require_columns
from grpo_plus.record.files import plain
from grpo_verifiers.errors import ConfigError, VerifierError
from grpo_verifiers.errors.messages import readable, unknown, without_middle
from grpo_verifiers.exec.printed import has_reason
from grpo_verifiers.redaction import redact, redact_text
from grpo_verifiers.verdict import MAX_DETAIL, Status, Verdict

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
    parser.add_argument("--out", type=Path, help="also write all verdicts to this file (.jsonl)")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing results file (--out)")
    parser.add_argument(
        "--check-golds", action="store_true", help="score no completions, check that every gold answer accepts itself"
    )
    options = parser.parse_args(list(arguments))
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
    with open_results(options.out, overwrite=options.overwrite) as file:
        for lines in _lines(verifiers, rows, options):
            results.add(lines)
            if file is not None:
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    results.show()
    if file is not None:
        print(f"results: {options.out}")
    return int(any(counts["error"] or counts["timeout"] for counts in results.statuses.values()))


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
    named = verifier.gold_columns | verifier.required_columns | verifier.named_columns
    return {parameter: columns[column][at] for parameter, column in named.items() if column in columns}


def _check_golds(verifier: "Verifier", rows: Any, *, named: bool) -> int:
    report = verifier.check_golds(rows)
    if report is None:
        raise UserError(f"the verifier {verifier.label!r} has no gold answers to check.")
    for line in report.lines(limit=None):
        print(f"{verifier.label}: {line}" if named else line)
    return 0 if report.ok else 1


GAP = "[… {} characters …]"
GOLD_CHARACTERS = 8000
"""Stored characters of a gold answer; tests of programs may be megabytes."""
SHOWN = 1200
"""Printed characters of a completion or gold; the file has all."""
ALL, DISAGREE = "all", "disagree"


@dataclass
class VerifyResults:
    """Statuses and scores of a run of ``verify`` by verifier, and the rows to show.

    ``selected`` are the statuses to show, of any verifier; ``most`` limits the rows.
    """

    labels: Sequence[str]
    selected: Collection[str] = ()
    most: int = 20
    statuses: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    scores: dict[str, list[float | None]] = field(default_factory=lambda: defaultdict(list))
    shown: list[Sequence[Mapping[str, Any]]] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)
    matches: int = 0

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Count the lines of one row, one a verifier."""
        for line in lines:
            self.statuses[line["verifier"]][line["status"]] += 1
            self.scores[line["verifier"]].append(line["score"])
            self.reasons |= {line["verifier"]} if line["score"] is not None or has_reason(line["detail"]) else set()
        differ = len({line["score"] >= 1 for line in lines if line["score"] is not None}) > 1
        traits = {ALL, *(line["status"] for line in lines), *([DISAGREE] if differ else [])}
        if traits & {*self.selected}:
            self.matches += 1
            self.shown += [lines] if self.matches <= self.most else []

    def show(self) -> None:
        """Print the table and the selected rows."""
        from rich.console import Console
        from rich.table import Table

        rows = len(self.scores[self.labels[0]])
        table = Table("status", *self.labels)
        for status, _ in sum(self.statuses.values(), Counter[str]()).most_common():
            counts = (self.statuses[label][status] for label in self.labels)
            table.add_row(status, *(f"{count} ({count / rows:.1%})" for count in counts))
        console = Console() if sys.stdout.isatty() else Console(width=100, force_terminal=False)
        console.print(table)
        means = ", ".join(f"{label} {_mean(self.scores[label])}" for label in self.labels)
        print(f"rows: {rows}, mean scores: {means}")
        for label in self.labels:
            if rows and label not in self.reasons:
                print(f"{label} returned None for all {rows} rows, without a reason: is a 'return' missing?")
        for lines in self.shown:
            print("\n".join(shown_row(lines)))
        if more := self.matches - len(self.shown):
            print(f"\n{more} more rows match: --show-rows shows more, --out FILE has all.")
        elif self.selected and not self.shown:
            print(f"\nno row matches --show ({', '.join(self.selected)}).")


def _mean(scores: Sequence[float | None]) -> str:
    numbers = [score for score in scores if score is not None]
    return f"{sum(numbers) / len(numbers):.4f}" if numbers else "none"


def line_of(row: int, label: str, verdict: Verdict, completion: Any, gold: Mapping[str, Any]) -> dict[str, Any]:
    """Return one line of the results file, without secrets."""
    golds = {name: redact(plain(value), name) for name, value in gold.items()}
    return {
        "row": row,
        "verifier": label,
        "score": verdict.score,
        "status": verdict.status.value,
        "detail": redact_text(readable(verdict.detail, MAX_DETAIL)),
        "completion": redact(plain(completion)),
        "gold": {
            name: without_middle(gold, GOLD_CHARACTERS, GAP) if isinstance(gold, str) else gold
            for name, gold in golds.items()
        },
    }


def shown_row(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format a row for people: completion, gold answers, and the verdict and reason of each verifier."""
    first = lines[0]
    texts = [f"\nrow {first['row']}", *_text("completion", first["completion"])]
    golds = {name: value for line in lines for name, value in line["gold"].items()}
    for name, value in golds.items():
        texts += _text(f"gold {name}", value)
    for line in lines:
        score = "no score" if line["score"] is None else f"score {line['score']:g}"
        texts.append(f"  {line['verifier']}: {line['status']}, {score}{line['detail'] and ': ' + line['detail']}")
    return [readable(redact_text(text), 4 * SHOWN) for text in texts]


def _text(name: str, value: Any) -> list[str]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    lines = without_middle(text, SHOWN, GAP).splitlines()
    if len(lines) < 2:
        return [f"  {name}: {text if lines else repr(text)}"] if len(text) <= SHOWN else [f"  {name}: {lines[0]}"]
    return [f"  {name}:", *(f"    {line}" for line in lines)]


def read_statuses(texts: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Parse the statuses of ``--show``."""
    allowed = [*(status.value for status in Status), ALL, DISAGREE]
    statuses = [word.strip() for text in texts for word in text.split(",")]
    for word in statuses:
        if word not in allowed:
            raise UserError(f"--show: {unknown('status', word, allowed)}")
    if DISAGREE in statuses and len(labels) < 2:
        raise UserError("--show disagree needs a second --verifier to disagree with.")
    return list(dict.fromkeys(statuses))


def open_results(out: Path | None, *, overwrite: bool) -> contextlib.AbstractContextManager[IO[str] | None]:
    """Open the results file; None without one."""
    if out is None:
        return contextlib.nullcontext()
    if out.is_file() and not overwrite:
        raise UserError(f"{out} exists already: name another file with --out, or pass --overwrite.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return out.open("w", encoding="utf-8", errors="backslashreplace")  # JSON can read escaped invalid Unicode
    except OSError as error:
        raise UserError(f"the results file {out} cannot be written: {error}. Name another with --out.") from error
