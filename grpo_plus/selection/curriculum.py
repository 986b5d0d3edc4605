"""Easy prompts first, harder ones later in the run.

The difficulty is a column of the dataset, or one minus the share of right samples in a file of ``grpo-plus eval``. At
first the easiest ``start`` of the prompts are open; their share grows evenly until all are open after ``full`` of the
steps. Prompts of equal difficulty open together. Biased: prompts that are not open are sampled by ``explore`` only.

Use it when hard prompts are never solved at first, and the difficulty of each is available or measurable in advance.

Paper: Bengio et al., 2009, Curriculum learning.

Degenerate case: equal difficulties open all prompts at once.

Config:
    selection: {name: curriculum, column: level, start: 0.2, full: 0.5}
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from grpo_plus.selection.history import PromptHistory, digest_of
from grpo_plus.selection.part import Selection, SelectionOutputError
from grpo_verifiers.errors.messages import show, unknown
from grpo_verifiers.files import read_text
from grpo_verifiers.options import Range

_PASSES = 1.0
"""The least score of a right sample of an evaluation."""


def curriculum(
    history: PromptHistory,
    *,
    column: str | None = None,
    file: str | None = None,
    verifier: str | None = None,
    start: Annotated[float, Range(0, 1, open_low=True)] = 0.2,
    full: Annotated[float, Range(0, 1, open_low=True)] = 0.5,
) -> Tensor:
    """1 for the easiest share s of the prompts, 0 for the rest; s grows from start to 1 over full of the steps.

    Args:
        history: of the prompts; its ``progress`` and ``columns`` are read.
        column: the column of the dataset with the difficulty, a number: higher is harder.
        file: the samples of an evaluation of these prompts, ``samples.jsonl``; instead of ``column``.
        verifier: the label whose verdicts in the file count, if there are several.
        start: share of the prompts that is open at first.
        full: share of the steps after which all are.
    """
    if column is None:
        difficulty_P = _of_file(history, str(file), verifier)
    elif column in history.columns:
        difficulty_P = _numbers(history, history.columns[column], f"the column {column!r}")
    else:
        raise SelectionOutputError(f"selection 'curriculum': {unknown('column', column, history.columns)}")
    share = min(1.0, start + (1 - start) * history.progress / full)
    order = difficulty_P.sort().values
    hardest = order[max(0, math.ceil(share * len(order) - 1e-9) - 1)]
    return (difficulty_P <= hardest).double()


def _problems(keywords: Mapping[str, Any]) -> list[str]:
    column, file = keywords.get("column"), keywords.get("file")
    if (column is None) != (file is None):
        return []
    both = f"column and file are both {'unset' if column is None else 'set'}"
    return [f"selection 'curriculum': {both}, expected one of them as the difficulty."]


def _of_file(history: PromptHistory, file: str, verifier: str | None) -> Tensor:
    path = Path(file)
    try:
        stamp = path.stat().st_mtime_ns
    except OSError as error:
        raise SelectionOutputError(f"selection 'curriculum': file {file} cannot be read: {error}.") from error
    rates = _pass_rates(path, stamp, verifier)
    by_prompt = [rates.get(digest_of(prompt)) for prompt in history.columns["prompt"]]
    missing = [place for place, rate in enumerate(by_prompt) if rate is None]
    if missing:
        raise SelectionOutputError(
            f"selection 'curriculum': {file} has no judged sample of {len(missing)} of {len(by_prompt)} prompts, first "
            f"{show(history.columns['prompt'][missing[0]])}: evaluate the full dataset with grpo-plus eval."
        )
    return torch.tensor([1 - rate for rate in by_prompt if rate is not None], dtype=torch.float64)


@lru_cache(maxsize=4)
def _pass_rates(path: Path, _stamp: int, verifier: str | None) -> dict[bytes, float]:
    right: dict[bytes, list[bool]] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            sample = json.loads(line)
            verdicts = sample["verdicts"]
            label = verifier if verifier is not None else next(iter(verdicts))
            if verifier is None and len(verdicts) > 1:
                text = f"{path} has verdicts of {', '.join(sorted(verdicts))}: name one of them as verifier."
                raise SelectionOutputError(f"selection 'curriculum': {text}")
            if label not in verdicts:
                raise SelectionOutputError(f"selection 'curriculum': {path}: {unknown('verifier', label, verdicts)}")
            score, digest = verdicts[label]["score"], digest_of(sample["prompt"])
        except (ValueError, TypeError, KeyError, AttributeError, StopIteration, RecursionError) as error:
            if isinstance(error, SelectionOutputError):
                raise
            raise SelectionOutputError(
                f"selection 'curriculum': {path}, line {number} is no sample of an evaluation "
                f"({type(error).__name__}: {error}): expected the samples.jsonl of grpo-plus eval --out."
            ) from error
        if score is not None:
            right.setdefault(digest, []).append(score >= _PASSES)
    return {digest: sum(each) / len(each) for digest, each in right.items()}


def _numbers(history: PromptHistory, values: Sequence[Any], where: str) -> Tensor:
    for place, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            prompt = show(history.columns["prompt"][place]) if "prompt" in history.columns else str(place)
            raise SelectionOutputError(
                f"selection 'curriculum': {where} is {show(value)} for the prompt {prompt}, expected a finite number."
            )
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


SELECTION = Selection("curriculum", curriculum, weighted=False, check=_problems)
