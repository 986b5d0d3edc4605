"""The data of a reward model on the command line: rows, which kind they are, and the tokens of each."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_plus.cli import UserError
from grpo_plus.reward_model.preferences import SIDES, Conversation, Pair, read_pairs
from grpo_plus.reward_model.reading import step_ids, token_ids
from grpo_plus.reward_model.stepwise import COLUMNS, Stepwise, read_stepwise
from grpo_plus.reward_model.tasks import PairTask, StepTask

PAIRS, STEPS = "pairs", "steps"


@dataclass(frozen=True)
class Rows:
    """Rows that were read and judged; ``kind`` is pairs or steps."""

    kind: str
    rows: Sequence[Pair] | Sequence[Stepwise]
    table: Any

    @property
    def groups(self) -> list[str]:
        """The prompt of each row."""
        return [row.group if isinstance(row, Pair) else row.question for row in self.rows]


def read_rows(
    data: str, config: str | None, split: str, *, field: str, base: Path | None, limit: int | None = None
) -> Rows:
    """The rows of one split; `UserError` if there are none, `ConfigError` if they cannot be used."""
    from grpo_plus.cli._data import load_rows, pick_split

    table = pick_split(load_rows(data, config, base=base), split, field)
    if not hasattr(table, "__len__"):
        raise UserError(f"the dataset {data!r} is a stream; a reward model is trained and measured on rows at hand.")
    if limit is not None:
        table = table.select(range(min(limit, len(table))))
    if len(table) == 0:
        raise UserError(f"the dataset {data!r} has no rows in the split {split!r}.")
    columns = table.column_names
    if all(name in columns for name in SIDES):
        return Rows(PAIRS, read_pairs(table), table)
    if all(name in columns for name in COLUMNS):
        return Rows(STEPS, read_stepwise(table), table)
    raise UserError(
        f"the dataset {data!r} has the columns {', '.join(columns)}. A reward model is trained on pairs (chosen, "
        f"rejected, and prompt if they do not hold it) or on steps with labels ({', '.join(COLUMNS)})."
    )


def _tokens(tokenizer: Any, row: Pair, side: Conversation) -> list[int]:
    from jinja2 import TemplateError

    try:
        return token_ids(tokenizer, side)
    except TemplateError as error:
        raise UserError(f"row {row.row}: the chat template of the model takes no such messages: {error}.") from error


def in_tokens(rows: Rows, tokenizer: Any, longest: int | None) -> tuple[PairTask | StepTask, list[int]]:
    """The rows as a model reads them, and which of them: longer ones are left out."""
    if rows.kind == PAIRS and not tokenizer.chat_template and any(not isinstance(row.chosen, str) for row in rows.rows):  # type: ignore[union-attr]  # pairs
        raise UserError("the data has messages, but the model's tokenizer has no chat template to make a text of them.")
    if longest is None:
        longest = sys.maxsize
    kept = []
    for at, row in enumerate(rows.rows):
        if isinstance(row, Pair):
            sides = _tokens(tokenizer, row, row.chosen), _tokens(tokenizer, row, row.rejected)
            if sides[0] == sides[1]:
                raise UserError(
                    f"row {row.row}: chosen and rejected are equal to the model's tokenizer, which does not know what "
                    "tells them apart. Remove the row, or take another model."
                )
            fits = max(map(len, sides)) <= longest
        elif isinstance(row, Stepwise):
            sides = step_ids(tokenizer, row)
            fits = len(sides[0]) <= longest
        if fits:
            kept.append((at, row, sides))
    if not kept:
        raise UserError(f"all {len(rows.rows)} rows are longer than max_length ({longest} tokens): nothing is left.")
    groups = rows.groups
    names = [groups[at] for at, _, _ in kept]
    first, second = [sides[0] for _, _, sides in kept], [sides[1] for _, _, sides in kept]
    task: PairTask | StepTask
    if rows.kind == PAIRS:
        margins = [row.margin for _, row, _ in kept if isinstance(row, Pair)]
        task = PairTask(first, second, margins, names, tokenizer.pad_token_id)
    else:
        labels = [row.labels for _, row, _ in kept if isinstance(row, Stepwise)]
        task = StepTask(first, second, labels, names, tokenizer.pad_token_id)
    return task, [at for at, _, _ in kept]
