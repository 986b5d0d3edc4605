"""``grpo-plus reward-model eval``: the accuracy of a reward model on preferences or labelled steps, and its scores."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import Parser
from grpo_plus.cli._reward_data import PAIRS, Rows, in_tokens, read_rows
from grpo_plus.reward_model.saved import FILE
from grpo_plus.reward_model.tasks import Judged
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.files import open_own, restore_folder

PROG = "grpo-plus reward-model eval"
MOST_VALUES = 50
"""Of a column that the table has a row for each of."""


def run(arguments: Sequence[str]) -> int:
    """Check all that needs no model, then load it, score, print and write."""
    options = _options(arguments)
    import datasets
    import torch
    from transformers.utils import logging

    from grpo_plus.checkpoints.folder import read_json
    from grpo_plus.cli._reward_loading import load_model, load_tokenizer
    from grpo_plus.cli._reward_tables import console, results_table

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
        logging.disable_progress_bar()
    for name in ("batch", "limit", "max_length"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name)}, expected at least 1.")
    if options.out is not None and not options.out.expanduser().parent.is_dir():
        raise UserError(f"--out: the folder {options.out.parent} does not exist.")
    folder = Path(options.model).expanduser()
    restore_folder(folder)
    if options.model.startswith((".", "/", "~")) and not folder.is_dir():
        raise UserError(f"the model folder {options.model!r} does not exist.")
    rows = read_rows(options.data, options.config, options.split, field="--split", base=None, limit=options.limit)
    told = read_json(folder / FILE).get("kind", rows.kind)
    if told != rows.kind:
        raise UserError(f"{options.model} was trained on {told}, and the data has {rows.kind}: give data of that kind.")
    parts = _parts(rows, options.by)
    common = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
    tokenizer = load_tokenizer(options.model, **common)
    task, kept = in_tokens(rows, tokenizer, options.max_length)
    if left_out := len(rows.rows) - len(kept):
        print(f"{left_out} of {len(rows.rows)} rows are longer than max_length and left out.")
    if task.size(range(len(task))) == 0:
        raise UserError("the rows have no label: there is nothing to measure against.")
    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    extra: dict[str, Any] = {"dtype": options.dtype, "device_map": {"": options.device or str(present)}}
    model, _ = load_model(options.model, rows.kind, tokenizer, trained=True, **extra, **common)
    judged = task.judge(model.eval(), options.batch)
    out = options.out or _beside(options.data)
    _write(out, own=options.out is None, kind=rows.kind, kept=kept, judged=judged)
    found = {f"all of {options.split}": judged}
    for value in dict.fromkeys(parts[at] for at in kept) if parts else ():
        part = judged.of_rows([at for at, row in enumerate(kept) if parts[row] == value])
        if part is not None:
            found[f"{options.by}: {value}"] = part
    console().print(results_table(rows.kind, found))
    print("95% confidence intervals, over the choice of prompts; every prompt counts alike.")
    print(f"scores: {out}")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog=PROG, description=__doc__)
    parser.add_argument("model", help="folder of a reward model or of an adapter, or a name on the hub")
    parser.add_argument("--data", required=True, help="a file, a folder, a name on the hub, or module:function")
    parser.add_argument("--config", help="configuration of a hub dataset")
    parser.add_argument("--split", default="train", help="split of the dataset (default: train)")
    parser.add_argument("--limit", type=int, help="only the first rows")
    parser.add_argument("--by", metavar="COLUMN", help="the accuracy for each value of this column, too")
    parser.add_argument("--batch", type=int, default=16, help="rows scored together (default: 16)")
    parser.add_argument("--max-length", type=int, help="tokens; longer rows are left out, and counted")
    parser.add_argument("--dtype", default="auto", help="auto (as stored), float32, bfloat16 or float16")
    parser.add_argument("--device", help="cpu, cuda, …; default: what there is")
    parser.add_argument("--revision", help="of a model on the hub")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the model's own code")
    parser.add_argument("--out", type=Path, help="file for the scores (.jsonl); default: beside the data")
    options: argparse.Namespace = parser.parse_args(arguments)
    dtypes = ("auto", "float32", "bfloat16", "float16")
    if options.dtype not in dtypes:
        raise UserError(f"--dtype: {unknown('type', options.dtype, dtypes)}")
    return options


def _parts(rows: Rows, by: str | None) -> list[str]:
    """The value of the column for each row; empty without one."""
    if by is None:
        return []
    if by not in rows.table.column_names:
        raise UserError(f"--by: {unknown('column', by, rows.table.column_names)}")
    values = [str(value) for value in rows.table[by]]
    if (count := len(set(values))) > MOST_VALUES:
        raise UserError(f"--by: the column {by!r} has {count} different values, expected at most {MOST_VALUES}.")
    return values


def _write(out: Path, *, own: bool, kind: str, kept: Sequence[int], judged: Judged) -> None:
    """The scores of each row, as the model gives them; of steps the probability of a good one."""
    try:
        # A path from the user may be a link or /dev/stdout; the default path may not.
        with (open_own if own else open)(out, "w", encoding="utf-8") as file:
            for row, scores in zip(kept, judged.scores, strict=True):
                line: dict[str, Any] = {"row": row}
                line |= {"chosen": scores[0], "rejected": scores[1]} if kind == PAIRS else {"steps": list(scores)}
                file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise UserError(f"the file of scores {out} cannot be written: {error}.") from error


def _beside(data: str) -> Path:
    path = Path(data)
    return path.with_suffix(".scores.jsonl") if path.is_file() else Path(f"{path.name}.scores.jsonl")
